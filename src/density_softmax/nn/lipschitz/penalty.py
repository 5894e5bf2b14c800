"""Gradient penalties that pull the encoder towards a Lipschitz constant of 1 (Eq. 4).

The paper's text says the spectral norm of the Jacobian, its demo computes the Frobenius norm, and
its code for images takes the gradient of the sum of all features. All three are here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor, nn

from density_softmax.config import Family, at_least
from density_softmax.nn.execution import full_precision
from density_softmax.nn.lipschitz.linearization import (
    Linearization,
    left_singular_vectors,
    per_sample_unit,
)
from density_softmax.training import Estimate, Values

# Under the root, because the derivative of sqrt at 0 is infinite.
EPSILON = 1e-12

Encoder = Callable[[Tensor], Tensor]


def sample_norm(v: Tensor) -> Tensor:
    """The Euclidean norm of each sample, (batch,), with a finite derivative at 0.

    Args:
        v: (batch, ...).
    """
    return (_squares(v) + EPSILON).sqrt()


def _squares(v: Tensor) -> Tensor:
    return v.flatten(1).square().sum(1)


class Penalty(nn.Module, ABC):
    """A term of the loss that depends on the encoder's Jacobian."""

    @abstractmethod
    def forward(self, encoder: Encoder, x: Tensor) -> tuple[Tensor, Tensor]:
        """The features z = f(x) of a batch and its weighted mean penalty, from one pass."""

    def after_step(self) -> Estimate | None:
        """What to estimate after each step of the optimizer."""
        return None


class PenaltyConfig(Family, ABC):
    """The family of penalties."""

    @abstractmethod
    def build(self) -> Penalty:
        """The penalty, before its first step."""


@final
class NoPenalty(Penalty):
    """0: plain empirical risk minimisation."""

    @dataclass(frozen=True)
    class Config(PenaltyConfig, kind="none"):
        """No settings."""

        def build(self) -> NoPenalty:
            """No penalty."""
            return NoPenalty()

    def forward(self, encoder: Encoder, x: Tensor) -> tuple[Tensor, Tensor]:
        """The features and 0."""
        return encoder(x), torch.zeros((), device=x.device)


@dataclass(frozen=True)
class PenaltyOptions:
    """Settings that all norms have in common.

    Attributes:
        weight: λ in Eq. 4; 0 leaves the penalty out.
        sided: `two` pulls the norm to 1 from both sides, as the paper does; `one` only asks
            that it be at most 1, and lets the encoder contract.
        every: penalise only every k-th step, k times as much, so that the mean gradient stays.
        freeze_norm: take the statistics of batch norms in training mode for constants, so that
            each sample has a Jacobian of its own. Without it samples mix: the gradient at x_j
            includes the effect of x_j on the features of the others. See `Linearization`.
    """

    weight: float = 1e-2
    sided: Literal["two", "one"] = "two"
    every: int = 1
    freeze_norm: bool = True

    def __post_init__(self) -> None:
        at_least(self, weight=0, every=1)


class JacobianPenalty(Penalty, ABC):
    """λ · mean (‖J‖ − 1)² with J = ∂f/∂x of each sample; one-sided, λ · mean max(0, ‖J‖ − 1)².

    The features come from the same forward pass as the Jacobian, with batch norm in its mode and
    dropout drawn once. A pass with a penalty is in full precision, whatever autocast says.

    `after_step` counts steps of the optimizer in a buffer, so that accumulated gradients count
    once. In evaluation mode the penalty is never left out and never multiplied by k: the monitored
    loss is the mean of the losses that are descended.

    Args:
        options: weight, sides and frequency.
    """

    step: Tensor

    def __init__(self, options: PenaltyOptions) -> None:
        super().__init__()
        self.options = options
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    @abstractmethod
    def norm(self, f: Linearization) -> Tensor:
        """‖J‖ of each sample, (batch,), with a graph to the weights."""

    def forward(self, encoder: Encoder, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features and penalty; the penalty is 0 on the steps between."""
        weight = self._weight()
        if weight == 0:
            return encoder(x), torch.zeros((), device=x.device)
        with full_precision(x):
            x = x.to(torch.promote_types(x.dtype, torch.float32))
            f = Linearization(encoder, x, self.options.freeze_norm)
            excess = self.norm(f) - 1
            if self.options.sided == "one":
                excess = excess.clamp_min(0)
            penalty = weight * excess.square().mean()
        return (f.z, penalty) if torch.is_grad_enabled() else (f.z.detach(), penalty.detach())

    def after_step(self) -> Estimate | None:
        """Count the step, unless nothing depends on it."""
        if self.options.every == 1:
            return None
        return Estimate("penalty", lambda batch: {}, self._count, on="labels")

    def _weight(self) -> float:
        """λ as it is on this step."""
        weight, every = self.options.weight, self.options.every
        if every == 1 or not self.training:
            return weight
        return weight * every if int(self.step) % every == 0 else 0.0

    def _count(self, total: Values) -> None:
        self.step.add_(1)


@final
class FrobeniusPenalty(JacobianPenalty):
    """‖J‖_F = (Σ σ²)^½, of which the spectral norm is the largest term: ‖J‖_F ≥ ‖J‖₂.

    Inputs of few coordinates: exact, the columns of J one by one. Others: from projections,
    ‖J‖_F² = d E‖Jᵀv‖² with v uniform on the unit sphere of R^d, d the number of features
    (Hoffman et al. 2019, https://arxiv.org/abs/1908.02729). The square is unbiased, its root is
    not: with one projection it is about 1 − 1/(4r) of ‖J‖_F in the mean, r = ‖J‖_F⁴ / ‖JJᵀ‖_F²
    being the number of directions in which J really stretches. More projections divide the gap.

    With one projection a step takes about twice the time of ERM on a WRN-28-10
    (benchmarks/penalty_step.py). A finite difference along a random direction takes as long, and
    brings a step size, a bias and a second draw of dropout.
    """

    @dataclass(frozen=True)
    class Config(PenaltyOptions, PenaltyConfig, kind="frobenius"):
        """Exact where that is cheap, otherwise one random projection.

        Attributes:
            exact_below: exact where the input has fewer coordinates than this.
            num_projections: random directions per sample where it is not exact.
        """

        exact_below: int = 16
        num_projections: int = 1

        def __post_init__(self) -> None:
            super().__post_init__()
            at_least(self, num_projections=1)

        def build(self) -> FrobeniusPenalty:
            """The penalty, before its first step."""
            return FrobeniusPenalty(self)

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or FrobeniusPenalty.Config()
        super().__init__(self.config)

    def norm(self, f: Linearization) -> Tensor:
        """(Σ_i ‖J e_i‖²)^½ or (mean_v d ‖Jᵀv‖²)^½."""
        if math.prod(f.x.shape[1:]) < self.config.exact_below:
            squares = torch.stack([_squares(column) for column in _columns(f)]).sum(0)
        else:
            d, number = math.prod(f.z.shape[1:]), self.config.num_projections
            directions = (per_sample_unit(torch.randn_like(f.z)) for _ in range(number))
            projected = [d * _squares(f.pull(v, create_graph=True)) for v in directions]
            squares = torch.stack(projected).mean(0)
        return (squares + EPSILON).sqrt()


@final
class SpectralPenalty(JacobianPenalty):
    """‖J‖₂, the largest singular value: the norm of the paper's Eq. 4.

    Inputs of few coordinates: exact, from the columns of J one by one. Others: the Lanczos method,
    from products Jv and Jᵀu without a graph; then ‖Jᵀu‖ for the unit vector u that it finds, with
    one. At convergence its gradient is that of the singular value, since u is a maximum. Before,
    it is too small, never too large. On small convolutional networks, wide ResNets and a trained
    ResNet-20, ten products are at most 4 % low, and .2 % in the mean; power iteration needs thirty.
    """

    @dataclass(frozen=True)
    class Config(PenaltyOptions, PenaltyConfig, kind="spectral"):
        """Exact on small inputs, otherwise a few iterations from a random start.

        Attributes:
            exact_below: exact where the input has fewer coordinates than this.
            iterations: products with J; each but the first costs seven tenths of a step of ERM.
        """

        exact_below: int = 16
        iterations: int = 10

        def __post_init__(self) -> None:
            super().__post_init__()
            at_least(self, iterations=1)

        def build(self) -> SpectralPenalty:
            """The penalty, before its first step."""
            return SpectralPenalty(self)

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or SpectralPenalty.Config()
        super().__init__(self.config)

    def norm(self, f: Linearization) -> Tensor:
        """√ of the largest eigenvalue of JᵀJ, or ‖Jᵀu‖ with u the left singular vector so far."""
        if math.prod(f.x.shape[1:]) < self.config.exact_below:
            J = torch.stack(_columns(f), dim=-1)
            return (torch.linalg.eigvalsh(J.mT @ J)[:, -1] + EPSILON).sqrt()
        u = left_singular_vectors(f, self.config.iterations)
        return sample_norm(f.pull(u, create_graph=True))


@final
class SumPenalty(JacobianPenalty):
    """‖Jᵀ1‖, the gradient of the sum of all features: what the paper's code for images computes.

    It is no norm of J: features that cancel each other give 0 however large J is.
    """

    @dataclass(frozen=True)
    class Config(PenaltyOptions, PenaltyConfig, kind="sum"):
        """Nothing but the common options."""

        def build(self) -> SumPenalty:
            """The penalty, before its first step."""
            return SumPenalty(self)

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or SumPenalty.Config())

    def norm(self, f: Linearization) -> Tensor:
        """‖Jᵀ1‖."""
        return sample_norm(f.pull(torch.ones_like(f.z), create_graph=True))


def _columns(f: Linearization) -> list[Tensor]:
    """J e_i of each sample, flat, one product per coordinate of the input."""
    basis = torch.eye(math.prod(f.x.shape[1:]), dtype=f.x.dtype, device=f.x.device)
    directions = (e.view(1, *f.x.shape[1:]).expand_as(f.x) for e in basis)
    return [f.push(e, create_graph=True).flatten(1) for e in directions]
