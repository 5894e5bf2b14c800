"""Samples of a prediction, several of them in one pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["in_chunks", "tile"]


def tile(x: Tensor, num_copies: int) -> Tensor:
    """The batch so many times, one whole copy after the other."""
    return torch.cat([x] * num_copies)


def in_chunks(sample: Callable[[int], Tensor], num_samples: int, chunk: int) -> Tensor:
    """`num_samples` samples along the first axis, drawn by `sample(how_many)`.

    At most `chunk` at a time, to save memory; 0 draws all of them at once.
    """
    size = chunk or num_samples
    sizes = [min(size, num_samples - start) for start in range(0, num_samples, size)]
    return torch.cat([sample(number) for number in sizes])
