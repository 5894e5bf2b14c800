"""Two moons and two ovals with their out-of-distribution clusters, generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from density_softmax.config import at_least
from density_softmax.data.sources import ArraySource, DataConfig, hold_out_any
from density_softmax.types import Data, Split, Task

# The evaluation grid of the surfaces: [−3, 3] × [−2, 2] with 100 points a side.
GRID_EXTENT = (-3.0, 3.0, -2.0, 2.0)
GRID_SIZE = 100

Points = NDArray[np.float64]
Labels = NDArray[np.int64]


@final
@dataclass(frozen=True)
class Toy(DataConfig, kind="toy"):
    """The 2-D data of the paper's section on distance awareness (settings of Liu et al. 2020).

    Attributes:
        shape: which of the two sets.
        num_points: training points; the in-domain test set is another one of the same size.
        heldout: share of the training points kept for calibration. With 0 all points train, for
            methods without a stage that reads held-out data.
    """

    shape: Literal["two_moons", "two_ovals"] = "two_moons"
    num_points: int = 1000
    heldout: float = 0.2

    def __post_init__(self) -> None:
        """Refuse a set without points."""
        at_least(self, num_points=1)

    def load(self, seed: int) -> Data:
        """Generate training, held-out, test and OOD points, and the evaluation grid."""
        # Independent streams: asking for more test points does not change the training points.
        train, test, far = (np.random.default_rng([seed, stream]) for stream in range(3))
        x, y = _tensors(*self._in_domain(train))
        kept, heldout = hold_out_any(len(x), self.heldout, seed, self.shape)
        return Data(
            task=Task(class_names=("0", "1"), input_shape=(2,)),
            train=ArraySource(x[kept], y[kept]),
            heldout=None if heldout is None else ArraySource(x[heldout], y[heldout]),
            splits=(
                Split("iid", "iid", ArraySource(*_tensors(*self._in_domain(test)))),
                Split("cluster", "ood", _unlabelled(self._out_of_domain(far))),
                Split("grid", "surface", _unlabelled(grid())),
            ),
        )

    def _in_domain(self, rng: np.random.Generator) -> tuple[Points, Labels]:
        generate = _moons if self.shape == "two_moons" else _ovals
        return generate(self.num_points, rng)

    def _out_of_domain(self, rng: np.random.Generator) -> Points:
        if self.shape == "two_moons":
            return _cluster((1.0, -1.5), (0.1, 0.001), 500, rng)
        return _cluster((0.0, -1.25), (0.5, 0.001), 500, rng)


def grid() -> Points:
    """Return the points of the evaluation grid, row by row from the lower left."""
    left, right, bottom, top = GRID_EXTENT
    xs, ys = np.linspace(left, right, GRID_SIZE), np.linspace(bottom, top, GRID_SIZE)
    return np.stack(np.meshgrid(xs, ys), axis=-1).reshape(-1, 2)


def _moons(num_points: int, rng: np.random.Generator) -> tuple[Points, Labels]:
    """Interleaved half circles with noise .1, pulled apart by (∓.1, ±.2)."""
    from sklearn.datasets import make_moons

    x, y = make_moons(num_points, noise=0.1, random_state=int(rng.integers(2**31)))
    return x + np.where(y[:, None] == 0, [-0.1, 0.2], [0.1, -0.2]), y


def _ovals(num_points: int, rng: np.random.Generator) -> tuple[Points, Labels]:
    """Two Gaussian ovals of half the points each, 3 apart."""
    half = num_points // 2
    variance = (0.01, 0.005)
    left = _cluster((-1.5, 0.0), variance, half, rng)
    right = _cluster((1.5, 0.0), variance, num_points - half, rng)
    return np.concatenate([left, right]), np.repeat([0, 1], [half, num_points - half])


def _cluster(
    mean: tuple[float, float], variance: tuple[float, float], num: int, rng: np.random.Generator
) -> Points:
    return np.asarray(mean) + np.sqrt(variance) * rng.standard_normal((num, 2))


def _tensors(x: Points, y: Labels) -> tuple[Tensor, Tensor]:
    return torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y, dtype=torch.int64)


def _unlabelled(x: Points) -> ArraySource:
    return ArraySource(*_tensors(x, np.full(len(x), -1)))
