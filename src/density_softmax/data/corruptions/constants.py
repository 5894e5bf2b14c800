"""The names of the corruptions and their published strengths.

Hendrycks & Dietterich (2019), "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", ICLR. The authors publish one table for CIFAR (32×32) and one for ImageNet
(224×224); no strength is interpolated between them.
"""

from __future__ import annotations

__all__ = [
    "ALL_CORRUPTIONS",
    "CIFAR",
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "IMAGENET",
    "SEVERITIES",
    "SMALL_SIDE",
    "strength",
]

CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
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
    """The published constants of one corruption for an image of the given size."""
    table = CIFAR if min(height, width) <= SMALL_SIDE else IMAGENET
    return table[kind][SEVERITIES.index(severity)]
