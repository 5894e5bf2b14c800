"""The handwritten digits inside scikit-learn: real images that need no download."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from density_softmax.data.images import Images, ImageSet, numerals

__all__ = ["Digits"]

NUM_TEST = 450


@final
@dataclass(frozen=True)
class Digits(ImageSet):
    """1,797 grey images of 8×8 (Alpaydin & Kaynak 1998), 450 of them for testing.

    The set has no official split; ours is a fixed random one, the same for every seed.
    """

    @property
    def parts(self) -> tuple[str, ...]:
        """Our fixed split."""
        return ("train", "test")

    def read(self, part: str) -> Images:
        """1,347 training or 450 test images; their 17 levels of grey spread over a byte."""
        pixels, y = _load()
        order = np.random.default_rng(0).permutation(len(y))
        rows = order[:NUM_TEST] if part == "test" else order[NUM_TEST:]
        x = np.rint(pixels[rows] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
        return Images(torch.from_numpy(x), torch.from_numpy(y[rows]).long(), numerals(10))


@cache
def _load() -> tuple[NDArray[Any], NDArray[Any]]:
    pixels, y = load_digits(return_X_y=True)
    return pixels, y
