"""The contract of every density p(z; α) on features."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from density_softmax.config import Family
from density_softmax.errors import UserError
from density_softmax.nn.precision import at_least_float32, full_precision
from density_softmax.stages import Stage

__all__ = ["Density", "DensityConfig", "mean_and_variance"]


class Density(nn.Module, ABC):
    """A density on feature vectors that knows how it is fitted."""

    def log_prob(self, z: Tensor) -> Tensor:
        """log p(z; α), (batch,), in float32 or more whatever the network computes in."""
        with full_precision(z):
            return self.log_prob_of_floats(at_least_float32(z))

    @abstractmethod
    def log_prob_of_floats(self, z: Tensor) -> Tensor:
        """log p(z; α) of features in float32 or float64, (batch,)."""

    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """How α is found, from training features."""


class DensityConfig(Family, ABC):
    """The family of densities."""

    @abstractmethod
    def build(self, num_features: int, num_classes: int) -> Density:
        """An unfitted density on vectors of `num_features` that come from `num_classes`."""


def mean_and_variance(count: Tensor, total: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each feature from its sums; a variance is 0 where nothing varies.

    Raises:
        UserError: if no density can be fitted to such data.
    """
    num_features = len(total)
    if count < 2:
        raise UserError(f"training samples: {int(count)}; a density needs at least two")
    mean, second = total / count, squares / count
    if not second.isfinite().all():
        broken = int((~second.isfinite()).sum())
        raise UserError(
            f"{broken} of {num_features} features are NaN or infinite on training data: "
            "the encoder has diverged; lower its learning rate"
        )
    variance = second - mean.square()
    # What varies less than rounding does not vary: dividing by it would invent information.
    varies = variance > torch.finfo(torch.float32).eps ** 2 * second
    if not varies.any():
        raise UserError(
            f"all {num_features} features are constant on training data: the encoder says "
            "nothing about its inputs; train it longer or with another learning rate"
        )
    return mean, torch.where(varies, variance, 0.0)
