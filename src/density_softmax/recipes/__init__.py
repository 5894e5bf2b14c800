"""Recipes: functions that return everything a run needs. `RECIPES` is their registry."""

from collections.abc import Mapping, Sequence
from typing import Any

from density_softmax.config import ConfigError, override
from density_softmax.recipes.cifar import cifar10, cifar10_small, cifar100
from density_softmax.recipes.digits import digits
from density_softmax.recipes.imagenet import imagenet
from density_softmax.recipes.recipe import Recipe, RecipeFunction
from density_softmax.recipes.toy import toy

__all__ = ["RECIPES", "Recipe", "get_recipe", "prepare"]

RECIPES: dict[str, RecipeFunction] = {
    "toy": toy,
    "digits": digits,
    "cifar10_small": cifar10_small,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "imagenet": imagenet,
}


def get_recipe(name: str, method: str = "density_softmax") -> Recipe:
    """The recipe of that name with the settings of that method."""
    if name not in RECIPES:
        raise ConfigError(f"unknown recipe '{name}'; there are: {', '.join(RECIPES)}")
    return RECIPES[name](method)


def prepare(name: str, method: str, changes: Sequence[str] | Mapping[str, Any] = ()) -> Recipe:
    """A recipe with the settings of a method, and changes to them.

    Args:
        name: of the recipe.
        method: the registry key of the method.
        changes: `path=value` texts, e.g. `method.scale=max`, or JSON values by path.
    """
    recipe = get_recipe(name, method)
    return override(recipe, changes) if isinstance(changes, Mapping) else override(recipe, *changes)
