"""How processes share the samples of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Part", "num_batches", "share"]

# A batch norm that normalises by the batch has nothing to do with one sample.
SMALLEST_BATCH = 2


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
    smallest: int = SMALLEST_BATCH,
) -> list[list[Part]]:
    """The steps of a pass over `order`, each a list of this process's parts of the batch.

    A last batch of less than `smallest` samples joins the one before it. No part is smaller
    either, as long as its batch is not: a batch is divided among fewer processes, and into fewer
    parts, if it has to. Every process takes the same number of steps. One that is left without
    samples reads the first of the batch with weight 0.
    """
    steps = []
    last = num_batches(len(order), batch_size, smallest) - 1
    for number in range(last + 1):
        end = (number + 1) * batch_size if number < last else len(order)
        batch = list(order[number * batch_size : end])
        shares = _divide(batch, world, smallest)
        chunks = _divide(shares[rank], accumulate, smallest) if rank < len(shares) else []
        parts = [Part(chunk, len(chunk) * world / len(batch)) for chunk in chunks]
        steps.append(parts or [Part(batch[:smallest], 0.0)])
    return steps


def _divide(indices: list[int], number: int, smallest: int) -> list[list[int]]:
    """At most so many parts, none below `smallest` unless all together are."""
    number = max(1, min(number, len(indices) // smallest))
    return [indices[i::number] for i in range(number)]


def num_batches(num_samples: int, batch_size: int, smallest: int = SMALLEST_BATCH) -> int:
    """How many batches a pass over all samples takes, none but the only one below `smallest`."""
    whole, rest = divmod(num_samples, batch_size)
    joins = whole > 0 and rest < smallest
    return whole + (rest > 0 and not joins)
