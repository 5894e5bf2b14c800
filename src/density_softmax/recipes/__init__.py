"""Recipes: functions that return everything a run needs. `RECIPES` is their registry."""

from __future__ import annotations

from collections.abc import Callable

from density_softmax.config import ConfigError
from density_softmax.recipes import cifar, digits, imagenet, toy
from density_softmax.recipes.recipe import Recipe

__all__ = ["RECIPES", "Recipe", "get_recipe"]

RECIPES: dict[str, Callable[[str], Recipe]] = {
    "toy": toy.toy,
    "digits": digits.digits,
    "cifar10_small": cifar.cifar10_small,
    "cifar10": cifar.cifar10,
    "cifar100": cifar.cifar100,
    "imagenet": imagenet.imagenet,
}


def get_recipe(name: str, method: str = "density_softmax") -> Recipe:
    """A recipe with the settings of a method.

    Args:
        name: of the recipe, such as `toy`.
        method: the kind of the method, such as `density_softmax`.
    """
    if name not in RECIPES:
        raise ConfigError(f"unknown recipe '{name}'; there are: {', '.join(RECIPES)}")
    return RECIPES[name](method)
