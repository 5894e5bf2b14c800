"""Classifiers that know what they do not know, at the cost of one forward pass."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from density_softmax.lazy import lazy_names

__version__ = "0.1.0"

# The public names besides the methods. They are imported when first used, because torch takes
# seconds to import and neither `--help` nor a deployed model needs it.
if TYPE_CHECKING:
    from density_softmax.comparison import compare as compare
    from density_softmax.decide.monitor import Monitor as Monitor
    from density_softmax.decide.policy import Decision as Decision
    from density_softmax.decide.policy import Policy as Policy
    from density_softmax.deploy.export import export as export
    from density_softmax.engine.fit import fit as fit
    from density_softmax.engine.runtime import EngineConfig as EngineConfig
    from density_softmax.estimators.network import (
        DensitySoftmaxClassifier as DensitySoftmaxClassifier,
    )
    from density_softmax.estimators.scaled import DensityScaledClassifier as DensityScaledClassifier
    from density_softmax.methods import load as load
    from density_softmax.methods.density_softmax import DensitySoftmax as DensitySoftmax
    from density_softmax.nn.backbones.headless import Headless as Headless
    from density_softmax.posthoc import attach as attach
    from density_softmax.report.comparison import Comparison as Comparison
    from density_softmax.serve.predictor import Predictor as Predictor
    from density_softmax.service.client import Client as Client
    from density_softmax.types import Prediction as Prediction
    from density_softmax.updating import update as update

_HOMES, _find = lazy_names(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name not in _HOMES and name[:1].isupper():  # a method
        return getattr(import_module(f"{__name__}.methods"), name)
    return _find(name)


def __dir__() -> list[str]:
    return sorted({*_HOMES, *dir(import_module(f"{__name__}.methods"))})
