"""A recipe: everything that decides the result of a run, except the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from density_softmax.config import ConfigError, differences, to_dict, without_local
from density_softmax.data.sources import DataConfig
from density_softmax.engine.runtime import EngineConfig
from density_softmax.methods.base import MethodConfig
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.methods.posthoc import PostHocConfig
from density_softmax.nn.backbones.base import BackboneConfig
from density_softmax.types import Data

# Sets to evaluate on: entries of data that training does not depend on.
NOT_TRAINED_ON = ("shifts", "ood")

# The settings of each method by its kind, built when they are asked for.
Methods = Mapping[str, Callable[[], MethodConfig]]


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

    def variant(self, default: Recipe) -> dict[str, Any]:
        """How this recipe deviates from `default`: JSON values by path, empty if nowhere.

        Where a run computes and reads makes no variant.
        """
        return differences(without_local(default), without_local(self))

    def evaluated_on(self, shifts: tuple[str, ...], ood: tuple[str, ...]) -> Recipe:
        """The same with these sets to evaluate on, besides its test set."""
        sets = dict(zip(NOT_TRAINED_ON, (shifts, ood), strict=True))
        known = {field.name for field in fields(self.data)}  # type: ignore[arg-type]
        if not sets.keys() <= known:
            raise ConfigError(
                f"the data of recipe '{self.name}' are generated whole: omit --shift and --ood"
            )
        return replace(self, data=replace(self.data, **sets))  # type: ignore[type-var]

    def training_inputs(self, seed: int) -> dict[str, Any]:
        """What the training of a run with that seed reads, as JSON values, its method apart."""
        recipe = to_dict(without_local(self))
        data = {k: v for k, v in recipe["data"].items() if k not in NOT_TRAINED_ON}
        return {
            "data": {**data, "seed": self.resolved_data_seed(seed)},
            "encoder": recipe["encoder"],
            "precision": self.engine.precision,
        }


class Suite(NamedTuple):
    """What all methods share on one data set, and the settings of each.

    Attributes:
        methods: settings by kind. A post-hoc method needs none: it has its defaults, on the
            training of ERM and the layers that Density-Softmax reads.
    """

    data: DataConfig
    encoder: BackboneConfig
    methods: Methods
    engine: EngineConfig = EngineConfig()

    def settings(self, kind: str) -> MethodConfig | None:
        """The settings of a method, or None if there are none."""
        if kind in self.methods:
            return self.methods[kind]()
        member = MethodConfig.members.get(kind)
        if member is None or member.group != "posthoc":
            return None
        erm, ours = self.methods["deterministic"](), self.methods["density_softmax"]()
        assert isinstance(erm, PostHocConfig)
        assert isinstance(ours, DensitySoftmax.Config)
        shared = {"descent": erm.descent, "layers": ours.layers}
        names = {field.name for field in fields(member)}  # type: ignore[arg-type]
        return member(**{name: value for name, value in shared.items() if name in names})
