"""What there is to choose from, as tables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rich.table import Table

from density_softmax.data import CATALOG, Toy
from density_softmax.methods.base import MethodConfig
from density_softmax.recipes import RECIPES
from density_softmax.recipes.ablations import ABLATIONS
from density_softmax.runs.evaluation import METRICS

__all__ = ["listing"]


def listing(what: str) -> Table:
    """A table of names with one line about each."""
    tables: dict[str, Callable[[], Mapping[str, str]]] = {
        "methods": lambda: {kind: _owner(member) for kind, member in MethodConfig.members.items()},
        "recipes": lambda: {name: _first_line(recipe) for name, recipe in RECIPES.items()},
        "ablations": lambda: {name: _first_line(made) for name, made in ABLATIONS.items()},
        "datasets": _datasets,
        "metrics": lambda: METRICS,
    }
    table = Table("name", "what it is", title=what)
    for name, line in tables[what]().items():
        table.add_row(name, line)
    return table


def _datasets() -> dict[str, str]:
    sets = {name: f"{entry.images}; {entry.home}" for name, entry in CATALOG.items()}
    own = "your own: a CSV or .npz file, or an image folder, by its path"
    return {"two_moons, two_ovals": _first_line(Toy), **sets, "PATH": own}


def _owner(config: type) -> str:
    """The first line about the method that a config is nested in."""
    module = inspect.getmodule(config)
    return _first_line(getattr(module, config.__qualname__.partition(".")[0]))


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]
