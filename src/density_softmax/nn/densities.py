"""Densities p(z; α) on features, behind one contract."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from density_softmax.config import Family
from density_softmax.nn.flows import RealNVP
from density_softmax.nn.precision import full_precision
from density_softmax.optimization import Adam, Descent
from density_softmax.stages import Estimate, Stage, Train, Values
from density_softmax.types import Batch

__all__ = ["Density", "DensityConfig", "FlowDensity"]


class Density(nn.Module, ABC):
    """A density on standardised feature vectors that knows how it is fitted.

    With u = (z − mean) / scale, log p(z) = log p(u) − Σ log scale. A density that does not
    standardise keeps mean 0 and scale 1.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, num_features: int, standardize: bool) -> None:
        super().__init__()
        self.standardize = standardize
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("scale", torch.ones(num_features))

    def log_prob(self, z: Tensor) -> Tensor:
        """log p(z; α), (batch,), in float32 whatever the network computes in."""
        with full_precision(z):
            u = (z.float() - self.mean) / self.scale
            return self.standard_log_prob(u) - self.scale.log().sum()

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
        mean = total["sum"] / total["count"]
        second = total["squares"] / total["count"]
        variance = (second - mean.square()).clamp_min(0)
        # What varies less than rounding does not vary: dividing by it would invent information.
        constant = variance <= torch.finfo(torch.float32).eps ** 2 * second
        self.mean.copy_(mean)
        self.scale.copy_(torch.where(constant, 1.0, variance.sqrt()))


class DensityConfig(Family, ABC):
    """The family of densities."""

    @abstractmethod
    def build(self, num_features: int) -> Density:
        """An unfitted density on vectors of `num_features`."""


@final
class FlowDensity(Density):
    """log p(u; α) = log N(t; 0, I) + log|det ∂t/∂u| with t = s_α(u) a RealNVP (Eq. 5)."""

    @dataclass(frozen=True)
    class Config(DensityConfig, kind="realnvp"):
        """Two couplings with networks of four layers of 16 (Table "flows" of the paper)."""

        standardize: bool = True
        couplings: int = 2
        hidden: tuple[int, ...] = (16, 16, 16, 16)
        descent: Descent = Descent(epochs=50, optimizer=Adam(lr=1e-3))

        def build(self, num_features: int) -> FlowDensity:
            """An unfitted flow on vectors of `num_features`."""
            return FlowDensity(num_features, self)

    def __init__(self, num_features: int, config: Config | None = None) -> None:
        config = config or FlowDensity.Config()
        super().__init__(num_features, config.standardize)
        self.descent = config.descent
        self.flow = RealNVP(num_features, config.couplings, config.hidden)

    def standard_log_prob(self, u: Tensor) -> Tensor:
        """Change of variables from the standard normal."""
        t, log_det = self.flow(u)
        return log_det - 0.5 * (t.square().sum(-1) + t.shape[-1] * math.log(2 * math.pi))

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
