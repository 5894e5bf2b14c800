"""Image files as bytes, by Pillow alone: what training and serving have in common."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from density_softmax.errors import DataError

__all__ = ["IMAGE_SUFFIXES", "Box", "central_box", "decode", "read_image"]

IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")

Box = tuple[float, float, float, float]


def decode(path: Path, channels: int, height: int, width: int) -> NDArray[np.uint8]:
    """Bytes (channels, height, width); an image of another size is resized from its middle."""
    image = read_image(path, channels)
    if image.size != (width, height):
        box = central_box(*image.size, aspect=width / height)
        image = image.resize((width, height), Image.Resampling.BILINEAR, box)
    return np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)


def read_image(path: Path, channels: int) -> Image.Image:
    """The image in colour (3 channels) or in grey (1), with 8 bits each."""
    try:
        with Image.open(path) as image:
            return _in_bytes(image).convert("RGB" if channels == 3 else "L")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: cannot be decoded ({error}); replace or delete it") from None


def _in_bytes(image: Image.Image) -> Image.Image:
    """The image with 16 bits per pixel scaled to 8, where Pillow would cut them off at 255."""
    # Pillow calls 16 bits I as well, in formats that have no more.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("pixels of 32 bits have no known range: save it with 8 bits")
    return image


def central_box(width: int, height: int, aspect: float = 1.0) -> Box:
    """The middle of an image: 7/8 of the largest box of that aspect (resize to 256, crop 224)."""
    box_height = min(width / aspect, height) * 7 / 8
    box_width = aspect * box_height
    left, top = (width - box_width) / 2, (height - box_height) / 2
    return left, top, left + box_width, top + box_height
