"""Random numbers that belong to an image, not to its place in a batch.

Image `index` reads the Philox stream with key (seed, kind) from counter index · 2¹⁹² on
(Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). Severity is not part of the
key: all severities of an image start from the same numbers, so that only the strength differs.
Numbers are made from raw bits, whose stream NumPy guarantees over versions.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

__all__ = ["Draws"]


class Draws:
    """The random streams of a batch of images. Successive calls continue the streams.

    Args:
        kind: name of the corruption; different names give independent streams.
        indices: the images' places in their data set.
        seed: chooses another realisation of everything.
    """

    def __init__(self, kind: str, indices: Sequence[int], seed: int = 0) -> None:
        self.kind = kind
        self.indices = indices
        self.seed = seed

    @cached_property
    def _streams(self) -> list[np.random.Philox]:
        key = np.array([self.seed, zlib.crc32(self.kind.encode())], dtype=np.uint64)
        starts = np.zeros((len(self.indices), 4), dtype=np.uint64)
        starts[:, 3] = self.indices
        return [np.random.Philox(key=key, counter=start) for start in starts]

    def uniform(self, *shape: int) -> Tensor:
        """Uniform numbers in the open interval (0, 1), float64 (batch, *shape)."""
        size = int(np.prod(shape))
        raw = np.stack([stream.random_raw(size) for stream in self._streams])
        # 52 bits and a half: neither 0 nor 1, whose normal quantiles are infinite.
        uniform = (raw >> np.uint64(12)) * 2.0**-52 + 2.0**-53
        return torch.from_numpy(uniform).reshape(len(raw), *shape)

    def between(self, low: float, high: float, *shape: int) -> Tensor:
        """Uniform numbers in (low, high), float64 (batch, *shape)."""
        return low + (high - low) * self.uniform(*shape)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers Φ⁻¹(u), float64 (batch, *shape)."""
        return torch.special.ndtri(self.uniform(*shape))
