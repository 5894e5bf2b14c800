"""A recipe: everything that decides the result of a run, except the seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

from density_softmax.config import ConfigError, differences
from density_softmax.data.base import DataConfig
from density_softmax.engine.runtime import EngineConfig
from density_softmax.methods.base import MethodConfig
from density_softmax.nn.backbone import BackboneConfig

__all__ = ["Recipe", "RecipeFunction", "choose"]


@dataclass(frozen=True)
class Recipe:
    """Data, encoder, method and engine of a run."""

    name: str
    data: DataConfig
    encoder: BackboneConfig
    method: MethodConfig
    engine: EngineConfig = field(default_factory=EngineConfig)

    def variant(self, default: Recipe) -> str:
        """How this recipe deviates from `default`, as `path=value` pairs; `default` if nowhere.

        Where a run computes makes no variant. The leading `method.` goes without saying.
        """
        places = {
            f"engine.{f.name}" for f in dataclasses.fields(EngineConfig) if "place" in f.metadata
        }
        found = [
            assignment.removeprefix("method.")
            for assignment in differences(default, self)
            if assignment.partition("=")[0] not in places
        ]
        return ", ".join(found) or "default"


RecipeFunction = Callable[[str], Recipe]


def choose(recipe: str, methods: dict[str, MethodConfig], method: str) -> MethodConfig:
    """The settings of a method in a recipe."""
    if method not in methods:
        raise ConfigError(
            f"recipe '{recipe}' has no method '{method}'; there are: {', '.join(methods)}"
        )
    return methods[method]
