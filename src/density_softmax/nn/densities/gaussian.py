"""Gaussians in closed form, from one pass of sums."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from density_softmax.nn.densities.base import Density, DensityConfig, mean_and_variance
from density_softmax.stages import Estimate, Stage, Values
from density_softmax.types import Batch

__all__ = ["ClosedFormDensity", "GaussianDensity", "log_height", "whitening"]


class ClosedFormDensity(Density, ABC):
    """A density whose maximum-likelihood estimate is a function of sums over the data.

    It needs no standardiser: what whitens the features also puts them on one scale.
    The sums are float64, where products of float32 features are exact: what a mean far from zero
    then cancels is below the rounding of the features themselves. Covariances are the
    maximum-likelihood ones: divided by the number of samples, not by one less.
    """

    def stages(self) -> tuple[Stage, ...]:
        """One pass."""
        return (Estimate("density", self._statistics, self.estimate, on="features"),)

    def _statistics(self, batch: Batch) -> Values:
        return self.sums(batch.x.double(), batch.y)

    @abstractmethod
    def sums(self, z: Tensor, y: Tensor) -> Values:
        """What a batch of features and labels contributes."""

    @abstractmethod
    def estimate(self, total: Values) -> None:
        """Write the buffers from the sums over all data."""


@final
class GaussianDensity(ClosedFormDensity):
    """log N(z; m, Σ) = log|W| − ½ d log 2π − ½ ‖W(z − m)‖² with W Σ Wᵀ = I.

    W is the inverse of Σ's Cholesky factor: prediction is one matrix product.
    """

    center: Tensor
    whitening: Tensor
    log_height: Tensor

    @dataclass(frozen=True)
    class Config(DensityConfig, kind="gaussian"):
        """One Gaussian for all classes, full covariance."""

        def build(self, num_features: int, num_classes: int) -> GaussianDensity:
            """An unfitted Gaussian on vectors of `num_features`; classes make no difference."""
            return GaussianDensity(num_features)

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(num_features))
        self.register_buffer("whitening", torch.eye(num_features))
        self.register_buffer("log_height", log_height(self.whitening))

    def log_prob_of_floats(self, z: Tensor) -> Tensor:
        """log N(z; m, Σ)."""
        y = F.linear(z - self.center, self.whitening)
        return self.log_height - 0.5 * y.square().sum(-1)

    def sums(self, z: Tensor, y: Tensor) -> Values:
        """Count, sum and sum of outer products."""
        return {"count": z.new_tensor(len(z)), "sum": z.sum(0), "outer": z.T @ z}

    def estimate(self, total: Values) -> None:
        """Mean and covariance."""
        count, outer = total["count"], total["outer"]
        mean, variance = mean_and_variance(count, total["sum"], outer.diagonal())
        W, _ = whitening(outer / count - torch.outer(mean, mean), variance)
        self.center.copy_(mean)
        self.whitening.copy_(W)
        self.log_height.copy_(log_height(W))


def log_height(whitener: Tensor) -> Tensor:
    """log|W| − ½ d log 2π, the log density of N(0, (WᵀW)⁻¹) at 0, for triangular W."""
    return whitener.diagonal().log().sum() - 0.5 * len(whitener) * math.log(2 * math.pi)


def whitening(covariance: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """A triangular W with W (Σ + δ D) Wᵀ = I, and the smallest δ that allows one.

    D holds the variances of the features over all the data, 1 where there is none, so that δ
    means the same for features of any scale. What works is decided on C = D^(−½) Σ D^(−½): a W
    that is used in float32 needs every eigenvalue of C + δI above half of float32's epsilon. δ
    is 0 if that is so already, and otherwise the first that works of epsilon · 1, 2, 4, ...
    """
    eps = torch.finfo(torch.float32).eps
    unit = torch.where(variance > 0, variance, 1.0).sqrt()
    C = covariance / unit / unit[:, None]
    identity = torch.eye(len(C), dtype=C.dtype, device=C.device)
    delta = 0.0
    # Shifted by the bound, a matrix has a Cholesky factor just if all eigenvalues are above it.
    while torch.linalg.cholesky_ex(C + (delta - eps / 2) * identity).info:
        delta = 2 * delta or eps
    L = torch.linalg.cholesky_ex(C + delta * identity).L
    W = torch.linalg.solve_triangular(L, identity, upper=False)
    return W / unit, torch.tensor(delta)
