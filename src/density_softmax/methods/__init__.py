"""The methods, one file each. `MethodConfig.members` is their registry."""

from density_softmax.methods.base import Method, MethodConfig, load
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.methods.deterministic import Deterministic

__all__ = ["DensitySoftmax", "Deterministic", "Method", "MethodConfig", "load"]
