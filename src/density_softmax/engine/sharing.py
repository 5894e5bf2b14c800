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
    order: Sequence[int], batch_size: int, rank: int = 0, world: int = 1, accumulate: int = 1
) -> list[list[Part]]:
    """The steps of a pass over `order`, each a list of this process's parts of the batch.

    Every process takes the same number of steps. One that has no sample left in the last batch
    reads the first of it with weight 0.
    """
    steps = []
    for start in range(0, len(order), batch_size):
        batch = list(order[start : start + batch_size])
        mine = batch[rank::world]
        chunks = [mine[i::accumulate] for i in range(accumulate) if mine[i::accumulate]]
        parts = [Part(chunk, len(chunk) * world / len(batch)) for chunk in chunks]
        steps.append(parts or [Part(batch[:1], 0.0)])
    return steps


def num_batches(num_samples: int, batch_size: int) -> int:
    """How many batches a pass over all samples takes."""
    return -(-num_samples // batch_size)
