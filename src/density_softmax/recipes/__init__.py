"""Recipes: everything a run needs, by the names of a recipe and of a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from density_softmax.config import ConfigError, override
from density_softmax.recipes import cifar, digits, imagenet, toy
from density_softmax.recipes.recipe import Recipe, Suite

__all__ = ["RECIPES", "Recipe", "get_recipe", "prepare"]

RECIPES: dict[str, Callable[[], Suite]] = {
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
    suite = RECIPES[name]()
    configs = {config.kind: config for config in suite.methods}
    if method not in configs:
        raise ConfigError(
            f"recipe '{name}' has no method '{method}'; there are: {', '.join(configs)}"
        )
    return Recipe(name, suite.data, suite.encoder, configs[method], suite.engine)


def prepare(name: str, method: str, changes: Sequence[str] | Mapping[str, Any] = ()) -> Recipe:
    """A recipe with the settings of a method, and changes to them.

    Args:
        name: of the recipe.
        method: the registry key of the method.
        changes: `path=value` texts, e.g. `method.scale=max`, or JSON values by path.
    """
    recipe = get_recipe(name, method)
    return override(recipe, changes) if isinstance(changes, Mapping) else override(recipe, *changes)
