"""Recipes: everything a run needs, by the names of a recipe and of a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from density_softmax.config import ConfigError, assignment, override
from density_softmax.data.tables import SUFFIXES
from density_softmax.errors import choices
from density_softmax.methods import kinds_of
from density_softmax.recipes.recipe import Recipe, Suite

__all__ = ["RECIPES", "Recipe", "find_suite", "get_recipe", "prepare", "recipe_of"]

# By the name of each recipe the module that has a function of that name.
RECIPES = {
    "toy": "toy",
    "table": "table",
    "digits": "digits",
    "cifar10_small": "cifar",
    "cifar100_small": "cifar",
    "cifar10": "cifar",
    "cifar100": "cifar",
    "imagenet": "imagenet",
}


def find_suite(name: str) -> Callable[[], Suite]:
    """The function that returns the data, the encoder and the methods of a recipe.

    Args:
        name: of the recipe, such as `toy`.
    """
    if name not in RECIPES:
        raise ConfigError(_no_recipe(name))
    found: Callable[[], Suite] = getattr(import_module(f"{__name__}.{RECIPES[name]}"), name)
    return found


def get_recipe(name: str, method: str = "density_softmax") -> Recipe:
    """A recipe with the settings of a method.

    Args:
        name: of the recipe, such as `toy`.
        method: the kind of the method, such as `density_softmax`.
    """
    suite = find_suite(name)()
    settings = suite.settings(method)
    if settings is None:
        posthoc = kinds_of("posthoc")
        raise ConfigError(
            f"recipe '{name}' has no method '{method}'; {choices(method, suite.methods)}; "
            f"and on a network that ERM has trained: {', '.join(posthoc)}"
        )
    return Recipe(name, suite.data, suite.encoder, settings, suite.engine)


def prepare(name: str, method: str, changes: Sequence[str] | Mapping[str, Any] = ()) -> Recipe:
    """A recipe with the settings of a method, and changes to them.

    Args:
        name: of the recipe.
        method: the registry key of the method.
        changes: `path=value` texts, e.g. `method.scale=max`, or JSON values by path.
    """
    recipe = get_recipe(name, method)
    return override(recipe, changes) if isinstance(changes, Mapping) else override(recipe, *changes)


def recipe_of(text: str, changes: Sequence[str] = ()) -> tuple[str, tuple[str, ...]]:
    """The name of a recipe and the changes to it, from what a user writes to train on.

    Args:
        text: the name of a recipe, or a table: `wine.csv` is the recipe `table` with
            `data.train=wine.csv`.
        changes: `path=value` texts; they come after those that the table makes.
    """
    if text in RECIPES or Path(text).suffix not in SUFFIXES:
        return text, tuple(changes)
    return "table", (assignment("data.train", text), *changes)


def _no_recipe(name: str) -> str:
    """Why a name is not that of a recipe."""
    path = Path(name)
    if path.is_dir():
        return (
            f"'{name}' is a folder and not a recipe: images are trained on by a recipe of images, "
            f"such as cifar10_small with --set data.train={name}"
        )
    if path.is_file():
        known = f"a table is a {' or an '.join(SUFFIXES)} file, images are a folder or an .npz file"
        return f"'{name}' is neither a recipe nor a file that can be trained on: {known}"
    return f"unknown recipe '{name}'; {choices(name, RECIPES)}; or give the path of a table"
