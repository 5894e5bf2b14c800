"""Noise and blur: what a camera does to an image, with the random numbers and filters for it.

A corruption is a function (x, random, *strength) ↦ x̃ on float64 images in [0, 1] of shape
(batch, channels, height, width); the result is clipped to [0, 1] when it becomes pixels.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy import ndimage, special
from torch import Tensor

Pixels = NDArray[np.uint8]
Border = Literal["nearest", "reflect"]

# Averages of a few bytes often end in exactly one half, where the last bit of a float would decide.
_TIE = 1e-6


class RandomStreams:
    """A random stream for each image of a batch. Successive calls continue the streams.

    Image `index` reads the Philox stream with key (seed, kind) from counter index · 2¹⁹² on
    (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). Severity is not part of
    the key: all severities of an image start from the same numbers, so that only the strength
    differs. Numbers are made from raw bits, whose stream NumPy guarantees over versions.

    Args:
        kind: name of the corruption; different names give independent streams.
        indices: of the images in their data set.
        seed: chooses another realisation of everything.
    """

    def __init__(self, kind: str, indices: Sequence[int], seed: int = 0) -> None:
        self.kind, self.indices, self.seed = kind, indices, seed

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


def to_tensor(pixels: Pixels) -> Tensor:
    """Return float64 images in [0, 1], (batch, channels, height, width).

    Args:
        pixels: uint8, (batch, height, width, channels).
    """
    return torch.from_numpy(pixels / 255.0).permute(0, 3, 1, 2).contiguous()


def to_pixels(x: Tensor) -> Pixels:
    """Clip to [0, 1] and round to the nearest of 256 levels: the inverse of `to_tensor`.

    Args:
        x: float64, (batch, channels, height, width).
    """
    levels = round_level(255 * x.clamp(0, 1)).to(torch.uint8)
    return levels.permute(0, 2, 3, 1).contiguous().numpy()


def round_level(x: Tensor) -> Tensor:
    """Round to the nearest integer, ties (and what float64 cannot tell from one) upwards.

    Args:
        x: of any shape.
    """
    return torch.floor(x + (0.5 + _TIE))


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

    Args:
        x: images, (batch, channels, height, width).
        factor: at least 1.
    """
    size = (x.shape[-2], x.shape[-1])
    crop = [math.ceil(side / factor) for side in size]
    enlarged = [round(side * factor) for side in crop]
    centre = _centre(x, crop)
    return _centre(F.interpolate(centre, enlarged, mode="bilinear", align_corners=True), size)


def _centre(x: Tensor, size: Sequence[int]) -> Tensor:
    top, left = ((have - want) // 2 for have, want in zip(x.shape[-2:], size, strict=True))
    return x[..., top : top + size[0], left : left + size[1]]


def gaussian_noise(x: Tensor, random: RandomStreams, std: float) -> Tensor:
    """x̃ = x + std · n, n ~ N(0, 1): the sensor in low light."""
    return x + std * random.normal(*x.shape[1:])


def shot_noise(x: Tensor, random: RandomStreams, photons: float) -> Tensor:
    """x̃ = k / photons, k ~ Poisson(photons · x): the grain of light itself.

    k is the quantile of a uniform number, so that it moves gradually with `photons`.
    """
    table = _poisson_table(photons)
    level = round_level(255 * x)
    # Row v of the table is v + P(K ≤ k); the uniform number added to v is looked up within it.
    position = torch.searchsorted(table.flatten(), level + random.uniform(*x.shape[1:]))
    return (position - level * table.shape[1]) / photons


@lru_cache(maxsize=16)
def _poisson_table(photons: float) -> Tensor:
    """P(K ≤ k) + v for the 256 grey levels v, as far as it is below 1 in float64."""
    levels = np.arange(256)[:, None]
    counts = np.arange(math.ceil(photons + 10 * math.sqrt(photons) + 40))
    return torch.from_numpy(levels + special.pdtr(counts, photons * levels / 255))


def impulse_noise(x: Tensor, random: RandomStreams, amount: float) -> Tensor:
    """Salt and pepper: a value becomes 0 or 1, each with probability amount / 2."""
    u = random.uniform(*x.shape[1:])
    return x.masked_fill(u < amount / 2, 0.0).masked_fill(u > 1 - amount / 2, 1.0)


def speckle_noise(x: Tensor, random: RandomStreams, std: float) -> Tensor:
    """x̃ = x + std · x · n, n ~ N(0, 1): noise in proportion to the signal."""
    return x + std * x * random.normal(*x.shape[1:])


def defocus_blur(x: Tensor, _: RandomStreams, radius: float, alias_sigma: float) -> Tensor:
    """An image out of focus: each point spreads to a disk with a softened rim."""
    return disk_filter(x, radius, alias_sigma)


def gaussian_blur(x: Tensor, _: RandomStreams, sigma: float) -> Tensor:
    """Smoothing by a Gaussian of standard deviation `sigma` pixels."""
    return gaussian_filter(x, sigma)


def glass_blur(
    x: Tensor, random: RandomStreams, sigma: float, radius: float, iterations: float
) -> Tensor:
    """Frosted glass: smooth, replace pixels by near ones, smooth again.

    The authors' code exchanges pixel (h, w) with (h + dy, w + dx), dy and dx uniform in
    {−radius … radius − 1}, from the last row and column to the first. As both sides of its
    exchange are views of one array, what happened to the published images is a copy:
    (h, w) takes the value of (h + dy, w + dx), which keeps its own. We do the same.
    """
    height, width = x.shape[-2:]
    smooth = round_level(255 * gaussian_filter(x, sigma)) / 255
    u = random.uniform(int(iterations), 2, height, width)
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


def motion_blur(x: Tensor, random: RandomStreams, radius: float, sigma: float) -> Tensor:
    """A moving camera: a mean along a line at a random angle within ±45° of horizontal."""
    return motion_filter(x, random.between(-45, 45), radius, sigma)


def zoom_blur(x: Tensor, _: RandomStreams, stop: float, step: float) -> Tensor:
    """A camera moving towards the scene: the mean of x and its zooms by 1, 1 + step, … < stop.

    `np.arange` decides in floating point whether `stop` itself is among them, as it did for
    the authors.
    """
    factors = np.arange(1, stop, step)
    total = x.clone()
    for factor in factors:
        total += clipped_zoom(x, float(factor))
    return total / (len(factors) + 1)
