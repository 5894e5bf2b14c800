"""The corruptions of CIFAR-10-C and ImageNet-C, made anew for images of any size.

Nineteen types of five severities, after Hendrycks & Dietterich (2019), "Benchmarking Neural
Network Robustness to Common Corruptions and Perturbations", ICLR. What an image becomes depends
on the image, its index, the seed, the type and the severity, and on nothing else: neither on the
batch it is in nor on the order of calls. The severities of a type share their random numbers.

Known differences from the published arrays: random numbers are our own; frost textures are
generated, not photographed; results are rounded, not truncated, to bytes; the disk of defocus
blur and the distances within spatter are exact where the authors' are approximate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from density_softmax.data.corruptions import blur, digital, noise, weather
from density_softmax.data.corruptions.constants import (
    ALL_CORRUPTIONS,
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SEVERITIES,
    SMALL_SIDE,
    strength,
)
from density_softmax.data.corruptions.digital import spatter
from density_softmax.data.corruptions.filters import Draws, Pixels, to_pixels, to_tensor

__all__ = [
    "ALL_CORRUPTIONS",
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "SEVERITIES",
    "SMALL_SIDE",
    "corrupt",
]

MIN_SIDE = 8

_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    function.__name__: function
    for function in (
        noise.gaussian_noise,
        noise.shot_noise,
        noise.impulse_noise,
        blur.defocus_blur,
        blur.glass_blur,
        blur.motion_blur,
        blur.zoom_blur,
        weather.snow,
        weather.frost,
        weather.fog,
        weather.brightness,
        digital.contrast,
        digital.elastic_transform,
        digital.pixelate,
        digital.jpeg_compression,
        noise.speckle_noise,
        blur.gaussian_blur,
        spatter,
        digital.saturate,
    )
}
assert tuple(_FUNCTIONS) == ALL_CORRUPTIONS

# Float64 values worked on at a time, 8 MB: enough to spread the cost of a call over many images.
_CHUNK_VALUES = 2**20


def corrupt(
    images: Pixels,
    kind: str,
    severity: int,
    *,
    indices: Sequence[int] | NDArray[np.integer] | None = None,
    seed: int = 0,
) -> Pixels:
    """Corrupt a batch of images.

    Images whose shorter side is at most `SMALL_SIDE` pixels take the constants published for
    CIFAR, larger ones those for ImageNet. Images of one channel are treated as grey; `saturate`,
    which is about colour alone, returns them unchanged.

    Args:
        images: uint8 (batch, height, width, channels) with 3 or 1 channels, sides of 8 or more.
        kind: one of `ALL_CORRUPTIONS`.
        severity: one of `SEVERITIES`.
        indices: the images' places in their data set, which choose their random numbers;
            0, 1, … if not given.
        seed: chooses another realisation of all random numbers; 0 to 2⁶⁴ − 1.

    Returns:
        uint8 of the shape of `images`.

    Raises:
        ValueError: on an unknown kind or severity, or images, indices or seed of another form.
    """
    _check_choice("corruption", kind, ALL_CORRUPTIONS)
    _check_choice("severity", severity, SEVERITIES)
    _check_images(images)
    _check_seed(seed)
    places = _checked_indices(indices, len(images))
    constants = strength(kind, severity, *images.shape[1:3])
    result = np.empty_like(images, order="C")
    step = max(1, _CHUNK_VALUES // math.prod(images.shape[1:]))
    for start in range(0, len(images), step):
        part = slice(start, start + step)
        draws = Draws(kind, places[part], seed)
        result[part] = to_pixels(_FUNCTIONS[kind](to_tensor(images[part]), draws, *constants))
    return result


def _check_choice(what: str, value: object, legal: Sequence[object]) -> None:
    if value not in legal:
        raise ValueError(f"unknown {what} {value!r}; choose one of {', '.join(map(str, legal))}")


def _check_images(images: Pixels) -> None:
    if images.dtype != np.uint8:
        raise ValueError(f"images have dtype {images.dtype}; they must be uint8, 0 to 255")
    if images.ndim != 4 or images.shape[3] not in (1, 3) or min(images.shape[1:3]) < MIN_SIDE:
        raise ValueError(
            f"images have shape {images.shape}; it must be (batch, height, width, channels) "
            f"with height and width of at least {MIN_SIDE} and 1 or 3 channels"
        )


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed {seed} is out of range; it must be from 0 to 2**64 - 1")


def _checked_indices(
    indices: Sequence[int] | NDArray[np.integer] | None, num_images: int
) -> list[int]:
    places = np.arange(num_images) if indices is None else np.asarray(indices)
    if places.shape != (num_images,) or (num_images and places.dtype.kind not in "iu"):
        raise ValueError(
            f"indices have shape {places.shape} and dtype {places.dtype}; "
            f"they must be {num_images} integers, one per image"
        )
    if num_images and places.min() < 0:
        raise ValueError(f"index {places.min()} is negative; indices count from 0")
    return [int(place) for place in places]
