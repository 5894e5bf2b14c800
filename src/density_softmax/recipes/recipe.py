"""A recipe: everything that decides the result of a run, except the seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from density_softmax.config import differences, without_places
from density_softmax.data.sources import DataConfig
from density_softmax.engine.runtime import EngineConfig
from density_softmax.methods.base import MethodConfig
from density_softmax.nn.backbones.base import BackboneConfig
from density_softmax.types import Data

__all__ = ["Methods", "Recipe", "Suite"]

Methods = tuple[MethodConfig, ...]


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


class Suite(NamedTuple):
    """What all methods share on one data set, and the settings of each."""

    data: DataConfig
    encoder: BackboneConfig
    methods: Methods
    engine: EngineConfig = EngineConfig()
