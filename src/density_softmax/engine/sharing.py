"""How processes share the samples of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Part", "num_batches", "share"]


class Part(NamedTuple):
    """What one process reads at once.

    The global mean is the mean over processes of weight · (local mean), summed over the parts
    of a step, however unevenly the samples divide.
    """

    indices: list[int]
    weight: float


def share(
    order: Sequence[int],
    batch_size: int,
    rank: int = 0,
    world: int = 1,
    accumulate: int = 1,
    *,
    smallest: int = 1,
) -> list[list[Part]]:
    """The steps of a pass over `order`, each a list of this process's parts of the batch.

    Every process takes the same number of steps. One that has no sample left in the last batch
    reads the first of it with weight 0. A last batch of less than `smallest` samples joins the one
    before it.
    """
    steps = []
    last = num_batches(len(order), batch_size, smallest) - 1
    for number in range(last + 1):
        end = (number + 1) * batch_size if number < last else len(order)
        batch = list(order[number * batch_size : end])
        mine = batch[rank::world]
        chunks = [mine[i::accumulate] for i in range(accumulate) if mine[i::accumulate]]
        parts = [Part(chunk, len(chunk) * world / len(batch)) for chunk in chunks]
        steps.append(parts or [Part(batch[:1], 0.0)])
    return steps


def num_batches(num_samples: int, batch_size: int, smallest: int = 1) -> int:
    """How many batches a pass over all samples takes, none but the only one below `smallest`."""
    whole, rest = divmod(num_samples, batch_size)
    joins = whole > 0 and rest < smallest
    return whole + (rest > 0 and not joins)
