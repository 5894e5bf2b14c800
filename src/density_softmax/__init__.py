"""Classifiers that know what they do not know, at the cost of one forward pass."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from density_softmax.version import __version__

if TYPE_CHECKING:
    from density_softmax.deploy.export import export
    from density_softmax.engine import EngineConfig, fit
    from density_softmax.estimator import DensitySoftmaxClassifier
    from density_softmax.methods import (
        DDU,
        DUE,
        DUQ,
        MIMO,
        SNGP,
        BatchEnsemble,
        ConstantTemperature,
        DeepEnsemble,
        DensitySoftmax,
        Deterministic,
        Heteroscedastic,
        MCDropout,
        MeanField,
        NaturalPosteriorNetwork,
        PosteriorNetwork,
        Rank1BNN,
        TemperatureScaling,
        load,
    )
    from density_softmax.nn.backbones.headless import Headless
    from density_softmax.posthoc import attach
    from density_softmax.serve.predictor import Predictor
    from density_softmax.types import Prediction

__all__ = [
    "DDU",
    "DUE",
    "DUQ",
    "MIMO",
    "SNGP",
    "BatchEnsemble",
    "ConstantTemperature",
    "DeepEnsemble",
    "DensitySoftmax",
    "DensitySoftmaxClassifier",
    "Deterministic",
    "EngineConfig",
    "Headless",
    "Heteroscedastic",
    "MCDropout",
    "MeanField",
    "NaturalPosteriorNetwork",
    "PosteriorNetwork",
    "Prediction",
    "Predictor",
    "Rank1BNN",
    "TemperatureScaling",
    "__version__",
    "attach",
    "export",
    "fit",
    "load",
]

# Public names and where they live. They are imported when first used, because torch takes
# seconds to import and neither `--help` nor a deployed model needs it.
_HOMES = {
    "DDU": "density_softmax.methods",
    "DUE": "density_softmax.methods",
    "DUQ": "density_softmax.methods",
    "MIMO": "density_softmax.methods",
    "SNGP": "density_softmax.methods",
    "attach": "density_softmax.posthoc",
    "Headless": "density_softmax.nn.backbones.headless",
    "BatchEnsemble": "density_softmax.methods",
    "ConstantTemperature": "density_softmax.methods",
    "DeepEnsemble": "density_softmax.methods",
    "DensitySoftmax": "density_softmax.methods",
    "DensitySoftmaxClassifier": "density_softmax.estimator",
    "Deterministic": "density_softmax.methods",
    "EngineConfig": "density_softmax.engine",
    "Heteroscedastic": "density_softmax.methods",
    "MCDropout": "density_softmax.methods",
    "MeanField": "density_softmax.methods",
    "NaturalPosteriorNetwork": "density_softmax.methods",
    "PosteriorNetwork": "density_softmax.methods",
    "Prediction": "density_softmax.types",
    "Predictor": "density_softmax.serve.predictor",
    "Rank1BNN": "density_softmax.methods",
    "TemperatureScaling": "density_softmax.methods",
    "export": "density_softmax.deploy.export",
    "fit": "density_softmax.engine",
    "load": "density_softmax.methods",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'density_softmax' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
