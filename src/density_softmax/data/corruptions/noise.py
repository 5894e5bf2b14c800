"""Noise: every pixel and channel is disturbed on its own.

A corruption is a function (x, draws, *strength) ↦ x̃ on float64 images in [0, 1] of shape
(batch, channels, height, width); the result is clipped to [0, 1] when it becomes pixels.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from scipy import special
from torch import Tensor

from density_softmax.data.corruptions.filters import Draws, round_level

__all__ = ["gaussian_noise", "impulse_noise", "shot_noise", "speckle_noise"]


def gaussian_noise(x: Tensor, draws: Draws, std: float) -> Tensor:
    """x̃ = x + std · n, n ~ N(0, 1): the sensor in low light."""
    return x + std * draws.normal(*x.shape[1:])


def shot_noise(x: Tensor, draws: Draws, photons: float) -> Tensor:
    """x̃ = k / photons, k ~ Poisson(photons · x): the grain of light itself.

    k is the quantile of a uniform number, so that it moves gradually with `photons`.
    """
    table = _poisson_table(photons)
    level = round_level(255 * x)
    # Row v of the table is v + P(K ≤ k); the uniform number added to v is looked up within it.
    place = torch.searchsorted(table.flatten(), level + draws.uniform(*x.shape[1:]))
    return (place - level * table.shape[1]) / photons


@lru_cache(maxsize=16)
def _poisson_table(photons: float) -> Tensor:
    """P(K ≤ k) + v for the 256 grey levels v, as far as it is below 1 in float64."""
    levels = np.arange(256)[:, None]
    counts = np.arange(math.ceil(photons + 10 * math.sqrt(photons) + 40))
    return torch.from_numpy(levels + special.pdtr(counts, photons * levels / 255))


def impulse_noise(x: Tensor, draws: Draws, amount: float) -> Tensor:
    """Salt and pepper: a value becomes 0 or 1, each with probability amount / 2."""
    u = draws.uniform(*x.shape[1:])
    return x.masked_fill(u < amount / 2, 0.0).masked_fill(u > 1 - amount / 2, 1.0)


def speckle_noise(x: Tensor, draws: Draws, std: float) -> Tensor:
    """x̃ = x + std · x · n, n ~ N(0, 1): noise in proportion to the signal."""
    return x + std * x * draws.normal(*x.shape[1:])
