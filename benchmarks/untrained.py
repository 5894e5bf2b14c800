"""Untrained methods of the recipes, without the data: what they cost does not depend on either."""

from __future__ import annotations

import argparse

from density_softmax.methods import Method, MethodConfig
from density_softmax.recipes import Recipe
from density_softmax.report.names import method_order
from density_softmax.runs.run import Run
from density_softmax.types import Task

ERM, OURS = "deterministic", "density_softmax"


def _task(num_classes: int, *shape: int) -> Task:
    return Task(tuple(map(str, range(num_classes))), shape)


# What the data of each recipe would say if they were there.
TASKS = {
    "toy": _task(2, 2),
    "digits": _task(10, 1, 8, 8),
    "cifar10_small": _task(10, 3, 32, 32),
    "cifar100_small": _task(100, 3, 32, 32),
    "cifar10": _task(10, 3, 32, 32),
    "cifar100": _task(100, 3, 32, 32),
    "imagenet": _task(1000, 3, 224, 224),
}


def untrained(recipe: Recipe) -> Method:
    """The method of a recipe with its first weights, in evaluation mode."""
    return Run(recipe).build(TASKS[recipe.name]).eval()


def all_methods() -> list[str]:
    """Every method, in the order of the tables."""
    return sorted(MethodConfig.members, key=method_order)


def chosen_methods(text: str) -> list[str]:
    """The methods of an option `all` or `a,b`, with ERM, which all are compared to, first."""
    named = all_methods() if text == "all" else text.split(",")
    unknown = [kind for kind in named if kind not in MethodConfig.members]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no method '{unknown[0]}'; there are: {', '.join(all_methods())}"
        )
    return [ERM, *(kind for kind in named if kind != ERM)]
