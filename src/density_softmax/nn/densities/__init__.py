"""Densities p(z; α) on features, behind one contract."""

from density_softmax.nn.densities.base import Density, DensityConfig
from density_softmax.nn.densities.flows import FlowDensity, RadialDensity, ZukoDensity
from density_softmax.nn.densities.gaussian import ClassAwareDensity, GaussianDensity
from density_softmax.nn.densities.mixtures import GaussianMixtureDensity, TiedMixtureDensity

__all__ = [
    "ClassAwareDensity",
    "Density",
    "DensityConfig",
    "FlowDensity",
    "GaussianDensity",
    "GaussianMixtureDensity",
    "RadialDensity",
    "TiedMixtureDensity",
    "ZukoDensity",
]
