"""The contract of every density p(z; α) on features."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from density_softmax.config import Family
from density_softmax.errors import UserError
from density_softmax.nn.precision import full_precision
from density_softmax.stages import Estimate, Stage, Values
from density_softmax.types import Batch

__all__ = ["Density", "DensityConfig", "mean_and_variance"]


class Density(nn.Module, ABC):
    """A density on standardised feature vectors that knows how it is fitted.

    With u = (z − mean) / scale, log p(z) = log p(u) − Σ log scale. A density that does not
    standardise keeps mean 0 and scale 1.
    """

    mean: Tensor
    scale: Tensor
    log_volume: Tensor

    def __init__(self, num_features: int, standardize: bool) -> None:
        super().__init__()
        self.standardize = standardize
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("scale", torch.ones(num_features))
        self.register_buffer("log_volume", torch.zeros(()))  # Σ log scale

    def log_prob(self, z: Tensor) -> Tensor:
        """log p(z; α), (batch,), in float32 whatever the network computes in."""
        with full_precision(z):
            return self.standard_log_prob(self.standardized(z)) - self.log_volume

    def standardized(self, z: Tensor) -> Tensor:
        """u = (z − mean) / scale, in float32."""
        return (z.float() - self.mean) / self.scale

    def stages(self) -> tuple[Stage, ...]:
        """How mean, scale and α are found, from training features."""
        moments = Estimate("standardize", self._moments, self._set_moments, on="features")
        return (moments, *self.fitting()) if self.standardize else self.fitting()

    @abstractmethod
    def standard_log_prob(self, u: Tensor) -> Tensor:
        """log p(u; α) of standardised features, (batch,)."""

    @abstractmethod
    def fitting(self) -> tuple[Stage, ...]:
        """How α is found once mean and scale are known."""

    def _moments(self, batch: Batch) -> Values:
        z = batch.x.double()
        return {"count": z.new_tensor(len(z)), "sum": z.sum(0), "squares": z.square().sum(0)}

    def _set_moments(self, total: Values) -> None:
        mean, variance = mean_and_variance(total["count"], total["sum"], total["squares"])
        self.mean.copy_(mean)
        self.scale.copy_(torch.where(variance == 0, 1.0, variance.sqrt()))
        self.log_volume.copy_(self.scale.log().sum())


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
