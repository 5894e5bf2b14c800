"""A recipe: everything that decides the result of a run, except the seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from density_softmax.config import ConfigError, differences
from density_softmax.data.base import DataConfig
from density_softmax.engine.runtime import PLACES, EngineConfig
from density_softmax.methods.base import MethodConfig
from density_softmax.nn.backbone import BackboneConfig
from density_softmax.types import Data

__all__ = ["Recipe", "RecipeFunction", "choose"]


@dataclass(frozen=True)
class Recipe:
    """Data, encoder, method and engine of a run.

    Attributes:
        data_seed: decides the data in place of the run's own seed, so that runs with other seeds
            can have the same training points and the same held-out slice.
    """

    name: str
    data: DataConfig
    encoder: BackboneConfig
    method: MethodConfig
    engine: EngineConfig = field(default_factory=EngineConfig)
    data_seed: int | None = None

    def load_data(self, seed: int) -> Data:
        """The data of a run with that seed."""
        return self.data.load(seed if self.data_seed is None else self.data_seed)

    def variant(self, default: Recipe) -> str:
        """How this recipe deviates from `default`, as `path=value` pairs; `default` if nowhere.

        Where a run computes makes no variant. The leading `method.` goes without saying.
        """
        places = {f"engine.{name}" for name in PLACES}
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
