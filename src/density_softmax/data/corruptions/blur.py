"""Blur: every pixel becomes a mixture of its neighbours."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from density_softmax.data.corruptions.filters import (
    Draws,
    clipped_zoom,
    disk_filter,
    gaussian_filter,
    motion_filter,
    round_level,
)

__all__ = ["defocus_blur", "gaussian_blur", "glass_blur", "motion_blur", "zoom_blur"]


def defocus_blur(x: Tensor, _: Draws, radius: float, alias_sigma: float) -> Tensor:
    """An image out of focus: each point spreads to a disk with a softened rim."""
    return disk_filter(x, radius, alias_sigma)


def gaussian_blur(x: Tensor, _: Draws, sigma: float) -> Tensor:
    """Smoothing by a Gaussian of standard deviation `sigma` pixels."""
    return gaussian_filter(x, sigma)


def glass_blur(x: Tensor, draws: Draws, sigma: float, radius: float, iterations: float) -> Tensor:
    """Frosted glass: smooth, let pixels take the place of near ones, smooth again.

    The authors' code exchanges pixel (h, w) with (h + dy, w + dx), dy and dx uniform in
    {−radius … radius − 1}, from the last row and column to the first. As both sides of its
    exchange are views of one array, what happened to the published images is a copy:
    (h, w) takes the value of (h + dy, w + dx), which keeps its own. We do the same.
    """
    height, width = x.shape[-2:]
    smooth = round_level(255 * gaussian_filter(x, sigma)) / 255
    u = draws.uniform(int(iterations), 2, height, width)
    shift = torch.floor(2 * radius * u).long() - int(radius)
    source = _copied_from(shift.numpy(), int(radius))
    planes = smooth.flatten(2)
    shuffled = planes.gather(2, source[:, None].expand_as(planes)).reshape(x.shape)
    return gaussian_filter(shuffled, sigma)


def _copied_from(shift: NDArray[np.int64], radius: int) -> Tensor:
    """Where each pixel's value comes from after all copies, as flat positions (batch, pixels).

    The copies of one image depend on one another, so the loop is over positions and each step
    serves the whole batch.

    Args:
        shift: (dy, dx) of each pixel, (batch, iterations, 2, height, width).
        radius: rows and columns nearer than this to the border stay, as in the authors' code.
    """
    batch, iterations, _, height, width = shift.shape
    steps = (shift[:, :, 0] * width + shift[:, :, 1]).transpose(1, 2, 3, 0)
    source = np.repeat(np.arange(height * width)[:, None], batch, axis=1)
    lanes = np.arange(batch)
    for iteration in range(iterations):
        for h in range(height - radius, radius, -1):
            for w in range(width - radius, radius, -1):
                here = h * width + w
                source[here] = source[here + steps[iteration, h, w], lanes]
    return torch.from_numpy(source.T.copy())


def motion_blur(x: Tensor, draws: Draws, radius: float, sigma: float) -> Tensor:
    """A moving camera: a mean along a line at a random angle within ±45° of horizontal."""
    return motion_filter(x, draws.between(-45, 45), radius, sigma)


def zoom_blur(x: Tensor, _: Draws, stop: float, step: float) -> Tensor:
    """A camera moving towards the scene: the mean of x and its zooms by 1, 1 + step, … < stop.

    `np.arange` decides in floating point whether `stop` itself is among them, as it did for
    the authors.
    """
    factors = np.arange(1, stop, step)
    total = x.clone()
    for factor in factors:
        total += clipped_zoom(x, float(factor))
    return total / (len(factors) + 1)
