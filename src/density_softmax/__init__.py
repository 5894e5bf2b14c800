"""Classifiers that know what they do not know, at the cost of one forward pass."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from density_softmax.version import __version__ as __version__

# The public names besides the methods. They are imported when first used, because torch takes
# seconds to import and neither `--help` nor a deployed model needs it.
if TYPE_CHECKING:
    from density_softmax.deploy.export import export as export
    from density_softmax.engine import EngineConfig as EngineConfig
    from density_softmax.engine import fit as fit
    from density_softmax.estimator import DensitySoftmaxClassifier as DensitySoftmaxClassifier
    from density_softmax.methods import load as load
    from density_softmax.methods.density_softmax import DensitySoftmax as DensitySoftmax
    from density_softmax.nn.backbones.headless import Headless as Headless
    from density_softmax.posthoc import attach as attach
    from density_softmax.serve.predictor import Predictor as Predictor
    from density_softmax.types import Prediction as Prediction


def _homes() -> dict[str, str]:
    """The modules of the names above, read from the import statements themselves."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if (node.module or "").startswith(f"{__name__}.")]
    return {alias.name: str(node.module) for node in ours for alias in node.names}


_HOMES = _homes()


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name.startswith("_") or name not in dir(methods := import_module(f"{__name__}.methods")):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(methods, name)


def __dir__() -> list[str]:
    return sorted({*_HOMES, *dir(import_module(f"{__name__}.methods"))})
