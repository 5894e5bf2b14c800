"""Flows of the zuko library, behind the contract of densities."""

from __future__ import annotations

import importlib
import inspect
import json
from dataclasses import dataclass
from types import ModuleType
from typing import Any, final

from torch import Tensor, nn

from density_softmax.errors import UserError
from density_softmax.nn.densities.base import DensityConfig
from density_softmax.nn.densities.flows import TrainedDensity
from density_softmax.training import Adam, Descent

__all__ = ["ZukoDensity"]


@final
class ZukoDensity(TrainedDensity):
    """log p(u; α) of a flow that zuko defines (Rozet et al., https://zuko.readthedocs.io).

    Whether p → 0 far away depends on the flow. Some flows bend space only inside a box around
    zero, which is where standardised features are. These flows are not made for export.
    """

    @dataclass(frozen=True)
    class Config(DensityConfig, kind="zuko"):
        """Which flow, and how it is trained.

        Attributes:
            standardize: whether features are standardised first.
            flow: the name of a class in `zuko.flows`.
            arguments: what it is built with besides the number of features, each as
                `name=value` with a JSON value: `transforms=5`, `hidden_features=[64, 64]`.
            descent: how it is trained.
        """

        standardize: bool = True
        flow: str = "NSF"
        arguments: tuple[str, ...] = ()
        descent: Descent = Descent(epochs=50, optimizer=Adam(lr=1e-3), clip_norm=10.0)

        def build(self, num_features: int, num_classes: int) -> ZukoDensity:
            """An unfitted flow on vectors of `num_features`; classes make no difference."""
            return ZukoDensity(num_features, self)

    def __init__(self, num_features: int, config: Config | None = None) -> None:
        config = config or ZukoDensity.Config()
        super().__init__(num_features, config.standardize)
        self.descent = config.descent
        self.flow = build_flow(config.flow, num_features, config.arguments)

    def standard_log_prob(self, u: Tensor) -> Tensor:
        """As the flow says."""
        return self.flow().log_prob(u)


def build_flow(name: str, num_features: int, arguments: tuple[str, ...]) -> nn.Module:
    """The flow of that name; errors list the flows there are."""
    known = flow_classes(zuko_flows())
    if name not in known:
        raise UserError(f"unknown zuko flow '{name}'; there are: {', '.join(sorted(known))}")
    keywords = dict(map(parse, arguments))
    try:
        return known[name](num_features, **keywords)
    except TypeError as error:
        raise UserError(
            f"zuko's {name} cannot be built with {', '.join(arguments)}: {error}"
        ) from None


def zuko_flows() -> ModuleType:
    """The module `zuko.flows`, if zuko is installed."""
    try:
        return importlib.import_module("zuko.flows")
    except ModuleNotFoundError:
        raise UserError(
            "this density needs the zuko library: pip install density-softmax[flows]"
        ) from None


def flow_classes(flows: ModuleType) -> dict[str, Any]:
    """Every distribution in `zuko.flows` that is built from a number of features."""
    classes = inspect.getmembers(flows, inspect.isclass)
    return {
        name: member
        for name, member in classes
        if issubclass(member, flows.LazyDistribution)
        and "features" in inspect.signature(member).parameters
    }


def parse(argument: str) -> tuple[str, Any]:
    """`name=value` with a JSON value, or any text as it is."""
    name, equals, text = argument.partition("=")
    if not equals or not name.isidentifier():
        raise UserError(f"'{argument}' is not of the form name=value, such as transforms=5")
    try:
        return name, json.loads(text)
    except json.JSONDecodeError:
        return name, text
