"""Densities p(z; α) on features, behind one contract."""

from density_softmax.nn.densities.base import Density, DensityConfig
from density_softmax.nn.densities.flow import FlowDensity, RadialDensity
from density_softmax.nn.densities.gaussian import GaussianDensity
from density_softmax.nn.densities.mixture import GaussianMixtureDensity, TiedMixtureDensity
from density_softmax.nn.densities.zuko_flow import ZukoDensity

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
