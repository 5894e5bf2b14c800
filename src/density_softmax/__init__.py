"""Classifiers that know what they do not know, at the cost of one forward pass."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from density_softmax.version import __version__

if TYPE_CHECKING:
    from density_softmax.engine import EngineConfig, fit
    from density_softmax.estimator import DensitySoftmaxClassifier
    from density_softmax.methods import DensitySoftmax, Deterministic, load
    from density_softmax.nn.headless import Headless
    from density_softmax.posthoc import attach
    from density_softmax.types import Prediction

__all__ = [
    "DensitySoftmax",
    "DensitySoftmaxClassifier",
    "Deterministic",
    "EngineConfig",
    "Headless",
    "Prediction",
    "__version__",
    "attach",
    "fit",
    "load",
]

# Public names and where they live. They are imported when first used, because torch takes
# seconds to import and neither `--help` nor a deployed model needs it.
_HOMES = {
    "attach": "density_softmax.posthoc",
    "Headless": "density_softmax.nn.headless",
    "DensitySoftmax": "density_softmax.methods",
    "DensitySoftmaxClassifier": "density_softmax.estimator",
    "Deterministic": "density_softmax.methods",
    "EngineConfig": "density_softmax.engine",
    "Prediction": "density_softmax.types",
    "fit": "density_softmax.engine",
    "load": "density_softmax.methods",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'density_softmax' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
