"""Normalising flows, and the densities that they make of a standard normal."""

from __future__ import annotations

import importlib
import inspect
import json
import math
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.errors import UserError, choices
from density_softmax.nn.densities.base import Density, DensityConfig, mean_and_variance, moments
from density_softmax.training import Adam, Descent, Estimate, Stage, Train, Values


@final
class Constant(nn.Module):
    """A learned vector for every input: a conditioner that has no inputs."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(num_outputs))

    def forward(self, kept: Tensor) -> Tensor:
        """The vector, once per sample."""
        return self.value.expand(kept.shape[0], -1)


def _conditioner(num_inputs: int, num_outputs: int, hidden: Sequence[int]) -> nn.Module:
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
        self.scale = _conditioner(num_kept, num_moved, hidden)
        self.shift = _conditioner(num_kept, num_moved, hidden)

    def forward(self, kept: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        """The moved half and the log-determinant."""
        s = torch.tanh(self.scale(kept))
        return s.exp() * moved + self.shift(kept), s.sum(-1)


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
        in_order = (kept, moved) if len(self.couplings) % 2 == 0 else (moved, kept)
        return torch.cat(in_order, dim=-1), log_det


@final
class RadialLayer(nn.Module):
    """z ↦ z + β (z − c) / (α + r) with r = ‖z − c‖ (Rezende & Mohamed 2015, Eq. 14).

    It is invertible for α > 0 and β > −α, so γ = α + β > 0 is learned in place of β. With
    q = α / (α + r) and g = γ / (α + r) lengths grow by 1 − q + g across the radius and by
    1 − q² + q g along it, sums of positive terms: |det| = (1 − q + g)^(d−1) (1 − q² + q g).
    α and γ are in units of √d, the distance of typical points, and begin as the identity, β = 0.
    `num_flows` layers are computed at once: points (batch, 1 or flows, d) give images
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


def change_of_variables(t: Tensor, log_det: Tensor) -> Tensor:
    """log N(t; 0, I) + log|det ∂t/∂u|, (...).

    Args:
        t: images of u, (..., features).
        log_det: log|det ∂t/∂u|, (...).
    """
    return log_det - 0.5 * (t.square().sum(-1) + t.shape[-1] * math.log(2 * math.pi))


class TrainedDensity(Density, ABC):
    """A density on standardised features that descends on −E log p(z; α) (Eq. 5).

    With u = (z − mean) / scale, log p(z) = log p(u) − Σ log scale. A density that does not
    standardise keeps mean 0 and scale 1. A subclass sets `flow`, u ↦ (t, log|det ∂t/∂u|).

    Args:
        num_features: the width of z.
        standardize: whether mean and scale are estimated.
        descent: how α is trained.
    """

    mean: Tensor
    scale: Tensor
    log_volume: Tensor
    flow: Any

    def __init__(self, num_features: int, standardize: bool, descent: Descent) -> None:
        super().__init__()
        self.standardize, self.descent = standardize, descent
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("scale", torch.ones(num_features))
        self.register_buffer("log_volume", torch.zeros(()))  # Σ log scale

    def log_prob_of_floats(self, z: Tensor) -> Tensor:
        """log p(u; α) − Σ log scale."""
        return self.standard_log_prob((z - self.mean) / self.scale) - self.log_volume

    def standard_log_prob(self, u: Tensor) -> Tensor:
        """log p(u; α) = log N(t; 0, I) + log|det ∂t/∂u| with t = s_α(u), (batch,)."""
        return change_of_variables(*self.flow(u))

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
        standardize = Estimate(
            "standardize", lambda batch: moments(batch.x), self._set_moments, on="features"
        )
        return (standardize, descent) if self.standardize else (descent,)

    def _set_moments(self, total: Values) -> None:
        mean, variance = mean_and_variance(total["count"], total["sum"], total["squares"])
        self.mean.copy_(mean)
        self.scale.copy_(torch.where(variance == 0, 1.0, variance.sqrt()))
        self.log_volume.copy_(self.scale.log().sum())


@final
class FlowDensity(TrainedDensity):
    """A RealNVP (Eq. 5).

    Lemma 1, p → 0 far away, is stated for radial flows and Gaussian mixtures. Of a RealNVP with
    bounded s and ReLU networks one can say no more than ‖t‖ ≥ (‖u‖ − B) / A, with A and B made
    of learned weights: the limit holds, but where there are no data the density may stay high
    for any distance before it falls.
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
        super().__init__(num_features, config.standardize, config.descent)
        self.flow = RealNVP(num_features, config.couplings, config.hidden)


@final
class RadialDensity(TrainedDensity):
    """A radial flow.

    Far away it is a bounded displacement, ‖t − u‖ ≤ Σ|β|, and its determinant tends
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
        super().__init__(num_features, config.standardize, config.descent)
        self.flow = RadialFlow(num_features, config.layers)


@final
class ZukoDensity(TrainedDensity):
    """log p(u; α) of a flow that zuko defines (Rozet et al., https://zuko.readthedocs.io).

    Whether p → 0 far away depends on the flow. Some flows bend space only inside a box around
    zero, which is where standardised features are. These flows do not export.
    """

    @dataclass(frozen=True)
    class Config(DensityConfig, kind="zuko"):
        """Which flow, and how it is trained.

        Attributes:
            standardize: whether features are standardised first.
            flow: the name of a class in `zuko.flows`.
            arguments: what it is built with besides the number of features, each as
                `name=value` with a JSON value: `transforms=5`, `hidden_features=[64, 64]`.
            descent: how it is trained.
        """

        standardize: bool = True
        flow: str = "NSF"
        arguments: tuple[str, ...] = ()
        descent: Descent = Descent(epochs=50, optimizer=Adam(lr=1e-3), clip_norm=10.0)

        def build(self, num_features: int, num_classes: int) -> ZukoDensity:
            """An unfitted flow on vectors of `num_features`; classes make no difference."""
            return ZukoDensity(num_features, self)

    def __init__(self, num_features: int, config: Config | None = None) -> None:
        config = config or ZukoDensity.Config()
        super().__init__(num_features, config.standardize, config.descent)
        self.flow = _zuko_flow(config.flow, num_features, config.arguments)

    def standard_log_prob(self, u: Tensor) -> Tensor:
        """The log density of the flow."""
        return self.flow().log_prob(u)


def _zuko_flow(name: str, num_features: int, arguments: tuple[str, ...]) -> nn.Module:
    """The flow of that name; errors list the flows there are."""
    try:
        flows = importlib.import_module("zuko.flows")
    except ModuleNotFoundError:
        raise UserError(
            "this density needs the zuko library: pip install density-softmax[flows]"
        ) from None
    known: dict[str, Any] = {
        member.__name__: member
        for _, member in inspect.getmembers(flows, inspect.isclass)
        if issubclass(member, flows.LazyDistribution)
        and "features" in inspect.signature(member).parameters
    }
    if name not in known:
        raise UserError(f"unknown zuko flow '{name}'; {choices(name, sorted(known))}")
    keywords = dict(map(_parse, arguments))
    try:
        return known[name](num_features, **keywords)
    except TypeError as error:
        raise UserError(
            f"zuko's {name} cannot be built with {', '.join(arguments)}: {error}"
        ) from None


def _parse(argument: str) -> tuple[str, Any]:
    """`name=value` with a JSON value, or any text as it is."""
    name, equals, text = argument.partition("=")
    if not equals or not name.isidentifier():
        raise UserError(f"'{argument}' is not of the form name=value, such as transforms=5")
    try:
        return name, json.loads(text)
    except json.JSONDecodeError:
        return name, text
