"""Gaussians of the features of each class, and the distance or the density that they give."""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from density_softmax.methods.posthoc import PostHocConfig, Score
from density_softmax.nn.densities import (
    GaussianMixtureDensity,
    TiedMixtureDensity,
)
from density_softmax.training import Estimate, Stage, Values, reading
from density_softmax.types import Batch


class ClassDistance(Score, ABC):
    """M(z) = min_c (z − μ_c)ᵀ Σ⁻¹ (z − μ_c) with one covariance Σ for all classes."""

    def setup(self, example: Tensor | None) -> None:
        """Add the Gaussians."""
        super().setup(example)
        self.classes = TiedMixtureDensity(self.num_features, self.num_classes)

    def estimates(self) -> tuple[Stage, ...]:
        """One pass for means and covariance."""
        return tuple(
            reading(stage, lambda features: self.read(self.last(features)))
            for stage in self.classes.stages()
        )

    def read(self, z: Tensor) -> Tensor:
        """What the Gaussians read of z."""
        return z


def nearest_distance(classes: TiedMixtureDensity, z: Tensor) -> Tensor:
    """min_c (z − μ_c)ᵀ Σ⁻¹ (z − μ_c), (batch,).

    Args:
        classes: has μ_c and Σ; a class without a sample is nowhere.
        z: (batch, features).
    """
    y = F.linear(z - classes.center, classes.whitening)
    # ‖y − w_c‖² is smallest where w_c·y − ½‖w_c‖² is largest: no difference of large squares.
    offset = -0.5 * classes.location.square().sum(-1)
    seen = classes.log_weight > -math.inf
    nearest = F.linear(y, classes.location, offset.where(seen, -math.inf)).argmax(-1)
    return (y - classes.location[nearest]).square().sum(-1)


@final
class Mahalanobis(ClassDistance):
    """Mahalanobis distance (Lee et al., NeurIPS 2018) of the last features, without its extras.

    M(z) = min_c (z − μ_c)ᵀ Σ⁻¹ (z − μ_c) with class means μ_c and the covariance Σ within
    classes. Neither input noise nor a regression over layers, which the paper fits to OOD data.
    """

    @dataclass(frozen=True)
    class Config(
        PostHocConfig,
        kind="mahalanobis",
        title="Mahalanobis",
        rank=29,
        defines=("score",),
    ):
        """How the network is trained; nothing else is to choose."""

    config: Config

    def score(self, z: Tensor, logits: Tensor) -> Tensor:
        """M(z)."""
        return nearest_distance(self.classes, z)


@final
class MahalanobisPlusPlus(ClassDistance):
    """Mahalanobis++ (Müller & Hein, ICML 2025): the distance M of z / ‖z‖."""

    @dataclass(frozen=True)
    class Config(
        PostHocConfig,
        kind="mahalanobis_plus_plus",
        title="Mahalanobis++",
        rank=29,
        defines=("score",),
    ):
        """How the network is trained; nothing else is to choose."""

    config: Config

    def read(self, z: Tensor) -> Tensor:
        """z / ‖z‖."""
        return F.normalize(z, dim=-1)

    def score(self, z: Tensor, logits: Tensor) -> Tensor:
        """M(z / ‖z‖)."""
        return nearest_distance(self.classes, self.read(z))


@final
class RelativeMahalanobis(ClassDistance):
    """Relative Mahalanobis distance (Ren et al. 2021): M(z) − (z − μ)ᵀ Σ₀⁻¹ (z − μ).

    μ and Σ₀ are mean and covariance of all training features, whatever their class.
    """

    @dataclass(frozen=True)
    class Config(
        PostHocConfig,
        kind="relative_mahalanobis",
        title="Relative Mahalanobis",
        rank=29,
        defines=("score",),
    ):
        """How the network is trained; nothing else is to choose."""

    config: Config

    def setup(self, example: Tensor | None) -> None:
        """Add the Gaussian of all features, as a mixture of one class."""
        super().setup(example)
        self.background = TiedMixtureDensity(self.num_features, 1)

    def estimates(self) -> tuple[Stage, ...]:
        """One pass for the classes and one for all of them together."""

        def sums(batch: Batch) -> Values:
            z = self.last(batch.x).double()
            return self.background.sums(z, torch.zeros_like(batch.y))

        finish = self.background.estimate
        together = Estimate("background", sums, finish, on="features")
        return (*super().estimates(), together)

    def score(self, z: Tensor, logits: Tensor) -> Tensor:
        """The difference of both distances."""
        return nearest_distance(self.classes, z) - nearest_distance(self.background, z)


@final
class GaussianDiscriminant(Score):
    """The density of DDU (Mukhoti et al., CVPR 2023) on a network that was trained without it.

    −log Σ_c π_c N(z; μ_c, Σ_c), a Gaussian per class of the last features.
    """

    @dataclass(frozen=True)
    class Config(
        PostHocConfig,
        kind="gaussian_discriminant",
        title="Gaussian discriminant",
        rank=29,
        log_density="log p(z)",
        defines=("score",),
    ):
        """How the network is trained, and the covariances.

        Attributes:
            tied: one covariance for all classes, where a matrix for each is too large.
        """

        tied: bool = False

    config: Config

    def setup(self, example: Tensor | None) -> None:
        """Add the Gaussians."""
        super().setup(example)
        density = GaussianMixtureDensity.Config(tied=self.config.tied)
        self.density = density.build(self.num_features, self.num_classes)

    def estimates(self) -> tuple[Stage, ...]:
        """One pass for all classes."""
        return tuple(reading(stage, self.last) for stage in self.density.stages())

    def score(self, z: Tensor, logits: Tensor) -> Tensor:
        """−log p(z)."""
        return -self.density.log_prob(z)
