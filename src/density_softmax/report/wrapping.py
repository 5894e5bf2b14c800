"""What does not fit one row or one panel goes into several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

__all__ = ["divide", "with_reference"]

T = TypeVar("T")


def divide(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """The items in groups of nearly equal size, none above `most`."""
    num_groups = max(1, math.ceil(len(items) / most))
    bounds = [round(n * len(items) / num_groups) for n in range(num_groups + 1)]
    return [items[a:b] for a, b in pairwise(bounds)]


def with_reference(items: Sequence[T], most: int = 8) -> list[list[T]]:
    """Groups for one panel each: the first item, to compare with, and some of the others."""
    if len(items) <= 1:
        return [list(items)]
    return [[items[0], *others] for others in divide(items[1:], most - 1)]
