"""Linear operators on batches of images that several corruptions share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy import ndimage
from torch import Tensor

__all__ = ["clipped_zoom", "disk_filter", "gaussian_filter", "motion_filter"]

Border = Literal["nearest", "reflect"]


def gaussian_filter(
    x: Tensor, sigma: float, border: Border = "nearest", truncate: float = 4.0
) -> Tensor:
    """Gaussian smoothing of the last two axes, x ↦ G_h x G_wᵀ.

    Args:
        x: any tensor of images, (..., height, width).
        sigma: standard deviation in pixels; 0 is the identity.
        border: `nearest` repeats the edge pixel, `reflect` mirrors with it (d c b a | a b c d).
        truncate: the kernel ends after this many standard deviations.
    """
    if sigma == 0:
        return x
    rows = _gaussian_matrix(x.shape[-2], sigma, border, truncate)
    cols = _gaussian_matrix(x.shape[-1], sigma, border, truncate)
    return rows @ (x @ cols.T)


@lru_cache(maxsize=64)
def _gaussian_matrix(size: int, sigma: float, border: Border, truncate: float) -> Tensor:
    identity = np.eye(size)
    matrix = ndimage.gaussian_filter1d(identity, sigma, axis=0, mode=border, truncate=truncate)
    return torch.from_numpy(matrix)


def disk_filter(x: Tensor, radius: float, alias_sigma: float) -> Tensor:
    """Mean over a disk, its rim softened by a small Gaussian; mirrored at the border.

    The kernel sums to 1. The authors' does not for radii of 8 and more, where their softening
    meets the edge of the kernel's array and brightens the image by one percent.

    Args:
        x: images, (batch, channels, height, width).
        radius: of the disk in pixels; below 1 it is a single pixel and only the Gaussian acts.
        alias_sigma: standard deviation of the Gaussian, cut to 3 taps (5 for radii above 8).
    """
    kernel = _disk(radius, alias_sigma)
    reach = kernel.shape[-1] // 2
    padded = F.pad(x, (reach,) * 4, mode="reflect")
    size = (padded.shape[-2], padded.shape[-1])
    spectrum = torch.fft.rfft2(padded) * torch.fft.rfft2(kernel, size)
    return torch.fft.irfft2(spectrum, size)[..., 2 * reach :, 2 * reach :]


@lru_cache(maxsize=16)
def _disk(radius: float, alias_sigma: float) -> Tensor:
    soft = 1 if radius <= 8 else 2
    reach = int(radius) + soft
    grid = np.arange(-reach, reach + 1)
    disk = (grid[:, None] ** 2 + grid**2 <= radius**2).astype(np.float64)
    taps = np.exp(-(np.arange(-soft, soft + 1) ** 2) / (2 * alias_sigma**2))
    for axis in (0, 1):
        disk = ndimage.correlate1d(disk, taps, axis=axis, mode="constant")
    return torch.from_numpy(disk / disk.sum())


def motion_filter(x: Tensor, angle: Tensor, radius: float, sigma: float) -> Tensor:
    """Mean along a line, y(p) = Σₜ wₜ x(p + round(t·(cos θ, sin θ))), wₜ ∝ exp(−t²/2σ²).

    The line has one arm, t = 0 … 2·radius: a moving camera smears to one side. This is the
    operator of ImageMagick's motion blur. Edge pixels repeat beyond the border.

    Args:
        x: images, (batch, channels, height, width).
        angle: θ of each image in degrees, (batch,).
        radius: half the number of steps.
        sigma: standard deviation of the weights in pixels.
    """
    height, width = x.shape[-2:]
    steps = torch.arange(2 * int(radius) + 1, dtype=x.dtype)
    weights = torch.softmax(-(steps**2) / (2 * sigma**2), dim=0)
    theta = torch.deg2rad(angle)[:, None]
    rows = _moved(height, steps * theta.sin())
    cols = _moved(width, steps * theta.cos())
    planes, result = x.flatten(2), torch.zeros_like(x).flatten(2)
    for t, weight in enumerate(weights.tolist()):
        source = (rows[:, t, :, None] * width + cols[:, t, None, :]).flatten(1)
        result += weight * planes.gather(2, source[:, None].expand_as(planes))
    return result.reshape(x.shape)


def _moved(size: int, shift: Tensor) -> Tensor:
    """Positions 0 … size − 1 moved by each rounded shift and held inside, (*shift.shape, size)."""
    rounded = torch.ceil(shift - 0.5).long()
    return (torch.arange(size) + rounded[..., None]).clamp(0, size - 1)


def clipped_zoom(x: Tensor, factor: float) -> Tensor:
    """Enlarge the centre of each image by `factor`, bilinearly, and crop to the old size.

    The crop and the enlarged image are of whole pixels; corners map to corners.
    """
    size = (x.shape[-2], x.shape[-1])
    crop = [math.ceil(side / factor) for side in size]
    enlarged = [round(side * factor) for side in crop]
    centre = _centre(x, crop)
    return _centre(F.interpolate(centre, enlarged, mode="bilinear", align_corners=True), size)


def _centre(x: Tensor, size: Sequence[int]) -> Tensor:
    top, left = ((have - want) // 2 for have, want in zip(x.shape[-2:], size, strict=True))
    return x[..., top : top + size[0], left : left + size[1]]
