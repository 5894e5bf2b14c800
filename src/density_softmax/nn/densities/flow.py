"""Densities whose parameters are found by maximum likelihood: normalising flows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from density_softmax.nn.densities.base import Density, DensityConfig, mean_and_variance
from density_softmax.nn.flows import RadialFlow, RealNVP
from density_softmax.optimization import Adam, Descent
from density_softmax.stages import Estimate, Stage, Train, Values
from density_softmax.types import Batch

__all__ = ["FlowDensity", "RadialDensity", "TrainedDensity"]


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
