"""Densities whose parameters are found by maximum likelihood: normalising flows."""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import dataclass
from typing import final

from torch import Tensor

from density_softmax.nn.densities.base import Density, DensityConfig
from density_softmax.nn.flows import RadialFlow, RealNVP
from density_softmax.optimization import Adam, Descent
from density_softmax.stages import Stage, Train

__all__ = ["FlowDensity", "RadialDensity", "TrainedDensity"]


class TrainedDensity(Density, ABC):
    """A density that descends on −E log p(z; α) (Eq. 5)."""

    descent: Descent

    def fitting(self) -> tuple[Stage, ...]:
        """Maximum likelihood by gradient descent."""
        descent = Train(
            "density",
            loss=lambda batch: -self.log_prob(batch.x).mean(),
            parameters=list(self.parameters()),
            descent=self.descent,
            on="features",
            monitor=lambda batch: {"nll": -self.log_prob(batch.x)},
        )
        return (descent,)


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
