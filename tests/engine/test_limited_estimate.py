"""An `Estimate` with a limit reads so many samples, drawn at random by the seed."""

import torch
from torch import nn
from toy_problem import EVERY_EPOCH, points

from density_softmax.data.sources import SubsetSource
from density_softmax.engine import fit
from density_softmax.methods.base import Method
from density_softmax.methods.deterministic import Deterministic
from density_softmax.training import Estimate


class Seen(Method):
    """Keeps the inputs that its only stage reads."""

    def __init__(self, limit: int | None) -> None:
        super().__init__(nn.Linear(2, 2), 2, Deterministic.Config())
        self.limit, self.x = limit, torch.zeros(0)

    def stages(self):
        keep = Estimate("see", lambda batch: {"x": batch.x}, self._keep, "concat", limit=self.limit)
        return (keep,)

    def _keep(self, total):
        self.x = total["x"]

    def forward(self, x):
        raise AssertionError("not needed")


def seen(limit: int | None, seed: int = 0) -> torch.Tensor:
    method = Seen(limit)
    fit(method, points(40, 1), points(20, 2), seed=seed, engine=EVERY_EPOCH, progress=False)
    return method.x


def rows(x: torch.Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in x.tolist()}


def test_so_many_different_samples_are_read_and_the_seed_decides_which():
    first, other = seen(25), seen(25, seed=1)
    assert len(rows(first)) == len(first) == 25
    assert rows(first) <= rows(points(40, 1).x)
    assert torch.equal(seen(25), first)
    assert rows(other) != rows(first)


def test_without_a_limit_or_below_it_all_samples_are_read_in_order():
    for limit in (None, 40, 1000):
        assert torch.equal(seen(limit), points(40, 1).x)


def test_a_part_of_a_source_reads_the_samples_it_consists_of():
    part = SubsetSource(points(40, 1), [7, 3, 30])
    (batch,) = part.read([[2, 0]], torch.device("cpu"))
    assert torch.equal(batch.x, points(40, 1).x[[30, 7]])
    assert len(part) == 3
    assert sorted(part.order(0)) == [0, 1, 2]
