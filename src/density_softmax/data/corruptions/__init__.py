"""The corruptions of CIFAR-10-C and ImageNet-C, made anew for images of any size.

Nineteen types of five severities, after Hendrycks & Dietterich (2019), "Benchmarking Neural
Network Robustness to Common Corruptions and Perturbations", ICLR. What an image becomes depends
on the image, its index, the seed, the type and the severity, and on nothing else: neither on the
batch it is in nor on the order of calls. The severities of a type share their random numbers.

Known differences from the published arrays: random numbers are our own; frost textures are
generated, with the photographs' tones and contrasts; results are rounded, not truncated, to bytes;
the disk of defocus blur and the distances within spatter are exact where the authors' are
approximate.

The authors publish one table of strengths for CIFAR (32×32) and one for ImageNet (224×224); no
strength is interpolated between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "ALL_CORRUPTIONS",
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "SEVERITIES",
    "corrupt",
    "strength",
]

Pixels = NDArray[np.uint8]

PIXELS = 2
"""Raised when a corruption gives other pixels than before, so that no set mixes old and new."""

MIN_SIDE = 8
# Float64 values worked on at a time, 8 MB: enough to spread the cost of a call over many images.
_CHUNK_VALUES = 2**20

CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
ALL_CORRUPTIONS = CORRUPTIONS + EXTRA_CORRUPTIONS
SEVERITIES = (1, 2, 3, 4, 5)

SMALL_SIDE = 64
"""Images whose shorter side is at most this many pixels take the CIFAR table."""

Strength = tuple[float, ...]
Table = dict[str, tuple[Strength, ...]]


def _singles(*values: float) -> tuple[Strength, ...]:
    return tuple((value,) for value in values)


# A row holds the arguments, in order, of the function of the same name.
CIFAR: Table = {
    "gaussian_noise": _singles(0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": _singles(500, 250, 100, 75, 50),
    "impulse_noise": _singles(0.01, 0.02, 0.03, 0.05, 0.07),
    "speckle_noise": _singles(0.06, 0.1, 0.12, 0.16, 0.2),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    "gaussian_blur": _singles(0.4, 0.6, 0.7, 0.8, 1),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": _singles(0.05, 0.1, 0.15, 0.2, 0.3),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    "contrast": _singles(0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": (
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
    "pixelate": _singles(0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": _singles(80, 65, 58, 50, 40),
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
}

# The authors state the elastic strengths at 224 pixels as multiples of 244.
_E = 244 / 224

IMAGENET: Table = {
    "gaussian_noise": _singles(0.08, 0.12, 0.18, 0.26, 0.38),
    "shot_noise": _singles(60, 25, 12, 5, 3),
    "impulse_noise": _singles(0.03, 0.06, 0.09, 0.17, 0.27),
    "speckle_noise": _singles(0.15, 0.2, 0.35, 0.45, 0.6),
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    "gaussian_blur": _singles(1, 2, 3, 4, 6),
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": _singles(0.1, 0.2, 0.3, 0.4, 0.5),
    "spatter": (
        (0.65, 0.3, 4, 0.69, 0.6, 0),
        (0.65, 0.3, 3, 0.68, 0.6, 0),
        (0.65, 0.3, 2, 0.68, 0.5, 0),
        (0.65, 0.3, 1, 0.65, 1.5, 1),
        (0.67, 0.4, 1, 0.65, 1.5, 1),
    ),
    "contrast": _singles(0.4, 0.3, 0.2, 0.1, 0.05),
    "elastic_transform": (
        (2 * _E, 0.7 * _E, 0.1 * _E),
        (2 * _E, 0.08 * _E, 0.2 * _E),
        (0.05 * _E, 0.01 * _E, 0.02 * _E),
        (0.07 * _E, 0.01 * _E, 0.02 * _E),
        (0.12 * _E, 0.01 * _E, 0.02 * _E),
    ),
    "pixelate": _singles(0.6, 0.5, 0.4, 0.3, 0.25),
    "jpeg_compression": _singles(25, 18, 15, 10, 7),
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
}


def strength(kind: str, severity: int, height: int, width: int) -> Strength:
    """Return the published constants of a corruption for images of a given size.

    Args:
        kind: one of `ALL_CORRUPTIONS`.
        severity: one of `SEVERITIES`.
        height: of the images.
        width: of the images.
    """
    table = CIFAR if min(height, width) <= SMALL_SIDE else IMAGENET
    return table[kind][SEVERITIES.index(severity)]


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
        indices: of the images in their data set, which choose their random numbers; 0, 1, … if
            not given.
        seed: chooses another realisation of all random numbers; 0 to 2⁶⁴ − 1.

    Returns:
        uint8 of the shape of `images`.

    Raises:
        ValueError: on an unknown kind or severity, or images, indices or seed of another form.
    """
    _check_choice("corruption", kind, ALL_CORRUPTIONS)
    _check_choice("severity", severity, SEVERITIES)
    _check_images(images)
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed {seed} is out of range; it must be from 0 to 2**64 - 1")
    numbers = _checked_indices(indices, len(images))
    # Imported here, because scipy is slow to import and most processes corrupt nothing.
    from density_softmax.data.corruptions import noise_blur, weather_digital

    function: Callable[..., Tensor] = (vars(noise_blur) | vars(weather_digital))[kind]
    constants = strength(kind, severity, *images.shape[1:3])
    result = np.empty_like(images, order="C")
    step = max(1, _CHUNK_VALUES // math.prod(images.shape[1:]))
    for start in range(0, len(images), step):
        chunk = slice(start, start + step)
        random = noise_blur.RandomStreams(kind, numbers[chunk], seed)
        corrupted = function(noise_blur.to_tensor(images[chunk]), random, *constants)
        result[chunk] = noise_blur.to_pixels(corrupted)
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


def _checked_indices(
    indices: Sequence[int] | NDArray[np.integer] | None, num_images: int
) -> list[int]:
    numbers = np.arange(num_images) if indices is None else np.asarray(indices)
    if numbers.shape != (num_images,) or (num_images and numbers.dtype.kind not in "iu"):
        raise ValueError(
            f"indices have shape {numbers.shape} and dtype {numbers.dtype}; "
            f"they must be {num_images} integers, one per image"
        )
    if num_images and numbers.min() < 0:
        raise ValueError(f"index {numbers.min()} is negative; indices count from 0")
    return [int(number) for number in numbers]
