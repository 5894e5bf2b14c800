"""How many inputs are computed at a time."""

import pytest
import torch
from torch import nn

from density_softmax.errors import UserError
from density_softmax.methods.deterministic import Deterministic
from density_softmax.nn.batches import widest_layer
from density_softmax.serve import batches
from density_softmax.serve.batches import LARGEST, SMALLEST, batch_size, last_cache


class Counting(nn.Module):
    """Notes the sizes of the batches that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.seen = nn.Linear(4, 3), list[int]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        return self.linear(x)


@pytest.fixture
def cache(monkeypatch):
    def set_to(num_bytes: int) -> None:
        monkeypatch.setattr(batches, "last_cache", lambda: num_bytes)

    return set_to


def test_the_widest_layer_counts_what_it_reads_and_writes() -> None:
    network = nn.Sequential(nn.Linear(2, 100), nn.ReLU(), nn.Linear(100, 3))
    assert widest_layer(network, torch.zeros(5, 2)) == 4 * (100 + 100)


def test_measuring_leaves_a_network_as_it_was() -> None:
    network = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    before, generator = network.state_dict(), torch.random.get_rng_state()
    before = {name: value.clone() for name, value in before.items()}
    widest_layer(network, torch.randn(5, 2))
    torch.random.set_rng_state(generator)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert all(module.training and not module._forward_hooks for module in network.modules())


@pytest.mark.parametrize("wide", [1, 10, 1000, 65_000, 10**6, 10**9])
def test_activations_of_a_batch_fit_into_half_of_the_cache(cache, wide: int) -> None:
    cache(2**25)
    size = batch_size(wide)
    assert SMALLEST <= size <= LARGEST
    assert size * wide <= 2**24 or size == SMALLEST
    assert 2 * size * wide > 2**24 or size == LARGEST


def test_a_larger_cache_never_gives_a_smaller_batch(cache) -> None:
    sizes = []
    for exponent in range(10, 36):
        cache(2**exponent)
        sizes.append(batch_size(50_000))
    assert sizes == sorted(sizes)


def test_a_machine_that_does_not_tell_its_caches_has_the_usual_one(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(batches, "CACHES", tmp_path)
    last_cache.cache_clear()
    assert last_cache() == batches.USUAL_CACHE
    for number, text in enumerate(["32K", "1024K", "48M\n", "odd"]):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(text)
    last_cache.cache_clear()
    assert last_cache() == 48 * 2**20
    last_cache.cache_clear()


def test_predict_computes_large_batches_in_parts_and_gives_the_same(cache) -> None:
    cache(2**6)  # room for the smallest batches alone
    encoder, x = Counting(), torch.randn(20, 4)
    model = Deterministic(encoder, 2, example=x[:1]).mark_fitted()
    expected = model.predict(x, batch_size=100)
    encoder.seen.clear()
    found = model.predict(x)
    assert encoder.seen == [2, 8, 8, 4]  # the first is measured
    for each, other in zip(found, expected, strict=True):
        torch.testing.assert_close(each, other)
    encoder.seen.clear()
    model.predict(x, batch_size=5)
    model.predict(x[:8])
    assert encoder.seen == [5, 5, 5, 5, 8]


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_size_below_1_is_refused(size: int) -> None:
    method = Deterministic(nn.Linear(4, 3), 3, example=torch.zeros(1, 4))
    method.mark_fitted()
    with pytest.raises(UserError, match=f"batch_size={size}: choose 1 or more"):
        method.predict(torch.zeros(2, 4), batch_size=size)
