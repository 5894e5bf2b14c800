"""Logits that are Gaussian, with a covariance that depends on the features."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.nn.execution import full_precision
from density_softmax.nn.softmax.head import Head

__all__ = ["GaussianHead", "GaussianLogits", "Noise"]


class Noise(NamedTuple):
    """Standard normal draws, of which all samples of a batch share the same.

    Attributes:
        common: ε, (draws, factors), moves all logits together.
        own: ε′, (draws, classes), moves each logit alone.
    """

    common: Tensor
    own: Tensor

    def split(self, size: int) -> list[Noise]:
        """The same draws in parts of at most `size`."""
        parts = zip(self.common.split(size), self.own.split(size), strict=True)
        return [Noise(*part) for part in parts]


class GaussianLogits(NamedTuple):
    """u = μ + V ε + d ⊙ ε′ for a batch: N(μ, V Vᵀ + diag(d²)).

    Attributes:
        mean: μ, (batch, classes).
        factors: V, (batch, classes, factors).
        scale: d, (batch, classes).
    """

    mean: Tensor
    factors: Tensor
    scale: Tensor

    def noise(self, num_draws: int) -> Noise:
        """Fresh ε and ε′."""
        *_, num_classes, num_factors = self.factors.shape
        return Noise(
            torch.randn(num_draws, num_factors, device=self.mean.device),
            torch.randn(num_draws, num_classes, device=self.mean.device),
        )

    def sample(self, noise: Noise) -> Tensor:
        """One u per draw, (draws, batch, classes)."""
        with full_precision(self.mean):
            common = noise.common @ self.factors.permute(1, 2, 0)
        own = self.scale.T[:, None] * noise.own.T[:, :, None]
        # Computed class by class: the layout in which averages over thousands of draws are cheap.
        return (self.mean.T[:, None] + common + own).movedim(0, -1)


@final
class GaussianHead(nn.Module):
    """μ(z), V(z) and d(z) = softplus(·) + `min_scale`, each from a linear layer on the features.

    The two layers of the covariance start like Keras' dense layers, Glorot-uniform with zero
    biases, as in the authors' code.
    """

    def __init__(
        self, num_features: int, num_classes: int, num_factors: int, min_scale: float
    ) -> None:
        super().__init__()
        self.mean = Head(num_features, num_classes)
        self.factors = nn.Linear(num_features, num_classes * num_factors)
        self.scale = nn.Linear(num_features, num_classes)
        self.min_scale = min_scale
        for layer in (self.factors, self.scale):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, z: Tensor) -> GaussianLogits:
        """The distribution of the logits of a batch of features."""
        mean = self.mean(z).float()
        factors = self.factors(z).float().unflatten(-1, (mean.shape[-1], -1))
        scale = F.softplus(self.scale(z).float()) + self.min_scale
        return GaussianLogits(mean, factors, scale)
