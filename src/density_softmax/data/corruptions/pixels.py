"""Between stored pixels, uint8 (batch, height, width, channels), and tensors to compute with.

Everything between the two is float64: a value then lies within 1e-12 of what exact arithmetic
gives, and rounding to a byte comes out alike on every processor and for every batch size.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Pixels", "round_level", "to_pixels", "to_tensor"]

Pixels = NDArray[np.uint8]

# Averages of a few bytes often end in exactly one half, where the last bit of a float would decide.
_TIE = 1e-6


def to_tensor(pixels: Pixels) -> Tensor:
    """Pixels as float64 in [0, 1], (batch, channels, height, width)."""
    return torch.from_numpy(pixels / 255.0).permute(0, 3, 1, 2).contiguous()


def to_pixels(x: Tensor) -> Pixels:
    """The inverse of `to_tensor`: clip to [0, 1] and round to the nearest of 256 levels."""
    levels = round_level(255 * x.clamp(0, 1)).to(torch.uint8)
    return levels.permute(0, 2, 3, 1).contiguous().numpy()


def round_level(x: Tensor) -> Tensor:
    """Round to the nearest integer, ties (and what float64 cannot tell from one) upwards."""
    return torch.floor(x + (0.5 + _TIE))
