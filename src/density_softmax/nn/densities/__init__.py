"""Densities p(z; α) on features, behind one contract."""

from density_softmax.nn.densities.base import Density, DensityConfig
from density_softmax.nn.densities.flows import FlowDensity, RadialDensity
from density_softmax.nn.densities.gaussian import (
    GaussianDensity,
    GaussianMixtureDensity,
    TiedMixtureDensity,
)
from density_softmax.nn.densities.zuko import ZukoDensity

__all__ = [
    "Density",
    "DensityConfig",
    "FlowDensity",
    "GaussianDensity",
    "GaussianMixtureDensity",
    "RadialDensity",
    "TiedMixtureDensity",
    "ZukoDensity",
]
