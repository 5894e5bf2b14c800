"""Invertible maps with tractable log-determinants."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.nn.densities.base import Density, DensityConfig, mean_and_variance
from density_softmax.training import Adam, Descent, Estimate, Stage, Train, Values
from density_softmax.types import Batch

__all__ = [
    "AffineCoupling",
    "FlowDensity",
    "RadialDensity",
    "RadialFlow",
    "RadialLayer",
    "RealNVP",
    "TrainedDensity",
]


@final
class Constant(nn.Module):
    """A learned vector, whatever the input: what a network without inputs can say."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(num_outputs))

    def forward(self, kept: Tensor) -> Tensor:
        """The vector, once per sample."""
        return self.value.expand(kept.shape[0], -1)


def conditioner(num_inputs: int, num_outputs: int, hidden: Sequence[int]) -> nn.Module:
    """A ReLU network from the half that is kept to the parameters of the half that moves."""
    if num_inputs == 0:
        return Constant(num_outputs)
    widths = [num_inputs, *hidden]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs))


@final
class AffineCoupling(nn.Module):
    """b ↦ exp(s(a)) ⊙ b + t(a), with s = tanh(network) and t a network (Dinh et al. 2017).

    The conditioners see only the half a that they use: the same functions as a masked full-width
    input gives, with half the weights. log|det| = Σ s(a).
    """

    def __init__(self, num_kept: int, num_moved: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.scale = conditioner(num_kept, num_moved, hidden)
        self.shift = conditioner(num_kept, num_moved, hidden)

    def forward(self, kept: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        """The moved half and the log-determinant."""
        s = torch.tanh(self.scale(kept))
        return s.exp() * moved + self.shift(kept), s.sum(-1)

    def inverse(self, kept: Tensor, image: Tensor) -> Tensor:
        """The half that `forward` would move to `image`."""
        s = torch.tanh(self.scale(kept))
        return (image - self.shift(kept)) * (-s).exp()


@final
class RealNVP(nn.Module):
    """Affine couplings that move the two halves of a vector in turn.

    An odd dimension gives halves that differ by one. One dimension has no halves: the only
    coupling then moves the whole vector by constants.
    """

    def __init__(self, num_features: int, num_couplings: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.halves = (num_features // 2, num_features - num_features // 2)
        first, second = self.halves
        sizes = [(first, second), (second, first)]
        if num_features == 1:
            num_couplings = min(num_couplings, 1)
        self.couplings = nn.ModuleList(
            AffineCoupling(*sizes[i % 2], hidden) for i in range(num_couplings)
        )

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """t = s_α(z) and log|det ∂t/∂z|."""
        kept, moved = z.split(self.halves, dim=-1)
        log_det = z.new_zeros(z.shape[0])
        for coupling in self.couplings:
            moved, step = coupling(kept, moved)
            kept, moved, log_det = moved, kept, log_det + step
        return self._join(kept, moved), log_det

    def inverse(self, t: Tensor) -> Tensor:
        """The z with s_α(z) = t."""
        kept, moved = self._split_image(t)
        for coupling in reversed(self.couplings):
            kept, moved = moved, kept
            moved = cast(AffineCoupling, coupling).inverse(kept, moved)
        return torch.cat([kept, moved], dim=-1)

    def _join(self, kept: Tensor, moved: Tensor) -> Tensor:
        swapped = len(self.couplings) % 2 == 1
        return torch.cat([moved, kept] if swapped else [kept, moved], dim=-1)

    def _split_image(self, t: Tensor) -> tuple[Tensor, Tensor]:
        first, second = t.split(self.halves, dim=-1)
        return (second, first) if len(self.couplings) % 2 == 1 else (first, second)


@final
class RadialLayer(nn.Module):
    """z ↦ z + β (z − c) / (α + r) with r = ‖z − c‖ (Rezende & Mohamed 2015, Eq. 14).

    It is invertible for α > 0 and β > −α, so γ = α + β > 0 is learned in place of β. With
    q = α / (α + r) and g = γ / (α + r) lengths grow by 1 − q + g across the radius and by
    1 − q² + q g along it, sums of positive terms: |det| = (1 − q + g)^(d−1) (1 − q² + q g).
    α and γ are in units of √d, the distance of typical points, and begin as the identity, β = 0.
    `num_flows` layers stand side by side in one: points (batch, 1 or flows, d) give images
    (batch, flows, d).
    """

    def __init__(self, num_features: int, num_flows: int | None = None) -> None:
        super().__init__()
        flows = () if num_flows is None else (num_flows,)
        self.center = nn.Parameter(torch.randn(*flows, num_features))
        self.raw_alpha = nn.Parameter(torch.zeros(flows))
        self.raw_gamma = nn.Parameter(torch.zeros(flows))

    def reach(self) -> tuple[Tensor, Tensor]:
        """α and γ."""
        unit = self.center.shape[-1] ** 0.5
        return unit * F.softplus(self.raw_alpha), unit * F.softplus(self.raw_gamma)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The moved points and the log-determinant."""
        alpha, gamma = self.reach()
        arm = z - self.center
        r = torch.linalg.vector_norm(arm, dim=-1)
        q, g = alpha / (alpha + r), gamma / (alpha + r)
        across, along = (1 - q) + g, (1 - q) * (1 + q) + q * g
        log_det = (z.shape[-1] - 1) * across.log() + along.log()
        return self.center + across[..., None] * arm, log_det

    def inverse(self, t: Tensor) -> Tensor:
        """The z that `forward` moves to t: r (r + γ) = ‖t − c‖ (r + α), solved for r."""
        alpha, gamma = self.reach()
        arm = t - self.center
        image = torch.linalg.vector_norm(arm, dim=-1)
        half = (image - gamma) / 2
        r = half + (half.square() + alpha * image).sqrt()
        return self.center + ((alpha + r) / (gamma + r))[..., None] * arm


@final
class RadialFlow(nn.Module):
    """Radial layers one after another, each around a centre of its own.

    Together they move no point by more than Σ|β|: far away the flow is nearly the identity.
    With `num_flows` they are so many flows, computed at once on points (batch, 1 or flows, d).
    """

    def __init__(self, num_features: int, num_layers: int, num_flows: int | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(RadialLayer(num_features, num_flows) for _ in range(num_layers))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """t = s_α(z) and log|det ∂t/∂z|."""
        log_det = z.new_zeros(z.shape[:-1])
        for layer in self.layers:
            z, step = layer(z)
            log_det = log_det + step
        return z, log_det

    def inverse(self, t: Tensor) -> Tensor:
        """The z with s_α(z) = t."""
        for layer in reversed(self.layers):
            t = cast(RadialLayer, layer).inverse(t)
        return t


class TrainedDensity(Density, ABC):
    """A density on standardised features that descends on −E log p(z; α) (Eq. 5).

    With u = (z − mean) / scale, log p(z) = log p(u) − Σ log scale. A density that does not
    standardise keeps mean 0 and scale 1.
    """

    mean: Tensor
    scale: Tensor
    log_volume: Tensor
    descent: Descent

    def __init__(self, num_features: int, standardize: bool) -> None:
        super().__init__()
        self.standardize = standardize
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("scale", torch.ones(num_features))
        self.register_buffer("log_volume", torch.zeros(()))  # Σ log scale

    def log_prob_of_floats(self, z: Tensor) -> Tensor:
        """log p(u; α) − Σ log scale."""
        return self.standard_log_prob((z - self.mean) / self.scale) - self.log_volume

    @abstractmethod
    def standard_log_prob(self, u: Tensor) -> Tensor:
        """log p(u; α) of standardised features, (batch,)."""

    def stages(self) -> tuple[Stage, ...]:
        """Mean and scale in one pass, then maximum likelihood by gradient descent."""
        descent = Train(
            "density",
            loss=lambda batch: -self.log_prob(batch.x).mean(),
            parameters=list(self.parameters()),
            descent=self.descent,
            on="features",
            monitor=lambda batch: {"nll": -self.log_prob(batch.x)},
        )
        moments = Estimate("standardize", self._moments, self._set_moments, on="features")
        return (moments, descent) if self.standardize else (descent,)

    def _moments(self, batch: Batch) -> Values:
        z = batch.x.double()
        return {"count": z.new_tensor(len(z)), "sum": z.sum(0), "squares": z.square().sum(0)}

    def _set_moments(self, total: Values) -> None:
        mean, variance = mean_and_variance(total["count"], total["sum"], total["squares"])
        self.mean.copy_(mean)
        self.scale.copy_(torch.where(variance == 0, 1.0, variance.sqrt()))
        self.log_volume.copy_(self.scale.log().sum())


def change_of_variables(t: Tensor, log_det: Tensor) -> Tensor:
    """log N(t; 0, I) + log|det ∂t/∂u|."""
    return log_det - 0.5 * (t.square().sum(-1) + t.shape[-1] * math.log(2 * math.pi))


@final
class FlowDensity(TrainedDensity):
    """log p(u; α) = log N(t; 0, I) + log|det ∂t/∂u| with t = s_α(u) a RealNVP (Eq. 5).

    Lemma 1, p → 0 far away, is stated for radial flows and Gaussian mixtures. Of a RealNVP with
    bounded s and ReLU networks one can say no more than ‖t‖ ≥ (‖u‖ − B) / A, with A and B made
    of learned weights: the limit holds, but where the data say nothing the density may stay high
    for any distance before it falls. A RealNVP with unbounded s need not fall at all.
    """

    @dataclass(frozen=True)
    class Config(DensityConfig, kind="realnvp"):
        """Two couplings with networks of four layers of 16 (Table "flows" of the paper).

        Clipping the gradient is ours: one far outlier would otherwise swell Adam's estimate of
        its size, and learning would stall for hundreds of steps.
        """

        standardize: bool = True
        couplings: int = 2
        hidden: tuple[int, ...] = (16, 16, 16, 16)
        descent: Descent = Descent(epochs=50, optimizer=Adam(lr=1e-3), clip_norm=10.0)

        def build(self, num_features: int, num_classes: int) -> FlowDensity:
            """An unfitted flow on vectors of `num_features`; classes make no difference."""
            return FlowDensity(num_features, self)

    def __init__(self, num_features: int, config: Config | None = None) -> None:
        config = config or FlowDensity.Config()
        super().__init__(num_features, config.standardize)
        self.descent = config.descent
        self.flow = RealNVP(num_features, config.couplings, config.hidden)

    def standard_log_prob(self, u: Tensor) -> Tensor:
        """Change of variables from the standard normal."""
        return change_of_variables(*self.flow(u))


@final
class RadialDensity(TrainedDensity):
    """log p(u; α) = log N(t; 0, I) + log|det ∂t/∂u| with t = s_α(u) a radial flow.

    Far away a radial flow is a bounded displacement, ‖t − u‖ ≤ Σ|β|, and its determinant tends
    to 1: log p falls like −‖u‖² / 2 in every direction (Lemma 1).
    """

    @dataclass(frozen=True)
    class Config(DensityConfig, kind="radial"):
        """The number of layers, each d + 2 parameters on vectors of d features."""

        standardize: bool = True
        layers: int = 8
        descent: Descent = Descent(epochs=50, optimizer=Adam(lr=3e-2), clip_norm=10.0)

        def build(self, num_features: int, num_classes: int) -> RadialDensity:
            """An unfitted flow on vectors of `num_features`; classes make no difference."""
            return RadialDensity(num_features, self)

    def __init__(self, num_features: int, config: Config | None = None) -> None:
        config = config or RadialDensity.Config()
        super().__init__(num_features, config.standardize)
        self.descent = config.descent
        self.flow = RadialFlow(num_features, config.layers)

    def standard_log_prob(self, u: Tensor) -> Tensor:
        """Change of variables from the standard normal."""
        return change_of_variables(*self.flow(u))
