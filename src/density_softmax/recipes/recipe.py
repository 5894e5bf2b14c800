"""A recipe: everything that decides the result of a run, except the seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from density_softmax.config import ConfigError, differences, without_places
from density_softmax.data.sources import DataConfig
from density_softmax.engine.runtime import EngineConfig
from density_softmax.methods.base import MethodConfig
from density_softmax.nn.backbones.base import BackboneConfig
from density_softmax.types import Data

__all__ = ["Recipe", "RecipeFunction", "choose"]

# Sets to evaluate on: entries of data that training does not depend on.
NOT_TRAINED_ON = ("shifts", "ood")


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
        return self.data.load(self.resolved_data_seed(seed))

    def resolved_data_seed(self, seed: int) -> int:
        """The seed that decides the data of a run with that seed."""
        return seed if self.data_seed is None else self.data_seed

    def variant(self, default: Recipe) -> str:
        """How this recipe deviates from `default`, as `path=value` pairs; `default` if nowhere.

        Where a run computes and reads makes no variant. The leading `method.` goes without saying.
        """
        found = differences(without_places(default), without_places(self))
        return ", ".join(change.removeprefix("method.") for change in found) or "default"

    def first_stage_differences(self, other: Recipe) -> list[str]:
        """The `path=value` pairs of this recipe by which its first stage is not that of `other`."""
        stage, others = self.method.first_stage(), other.method.first_stage()
        assert stage is not None, "asked only where there is something to share"
        if others is None or others.training != stage.training:
            return [f"method={self.method.kind}"]
        free = {"name", *(f"data.{name}" for name in NOT_TRAINED_ON)}
        settings = {
            name: getattr(other.method, theirs)
            for name, theirs in zip(stage.settings, others.settings, strict=True)
        }
        method: MethodConfig = replace(self.method, **settings)  # type: ignore[type-var]
        found = differences(without_places(replace(other, method=method)), without_places(self))
        return [
            assignment
            for assignment in found
            if ".".join(assignment.partition("=")[0].split(".")[:2]) not in free
        ]


RecipeFunction = Callable[[str], Recipe]


def choose(recipe: str, methods: dict[str, MethodConfig], method: str) -> MethodConfig:
    """The settings of a method in a recipe."""
    if method not in methods:
        raise ConfigError(
            f"recipe '{recipe}' has no method '{method}'; there are: {', '.join(methods)}"
        )
    return methods[method]
