"""Image files: regular files, in raster formats that are named here, decoded within a bound."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from density_softmax.errors import DataError
from density_softmax.files import regular_file

if TYPE_CHECKING:
    from PIL import Image

# What Pillow may read, whatever a file is called: an EPS, for one, would start Ghostscript.
IMAGE_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF")
# More pixels make an image a decompression bomb to Pillow, too.
MAX_PIXELS = 89_478_485
# Of all images that are decoded at a time; a larger one is decoded alone.
PIXELS_AT_ONCE = 2**26
# Bytes that Pillow allocates at once. The C library keeps smaller blocks that are freed, such as
# Pillow's own of 16 MB, for the thread that freed them.
BLOCK_SIZE = 2**26
IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")

Box = tuple[float, float, float, float]


def decode(
    source: Path | IO[bytes],
    channels: int,
    height: int,
    width: int,
    most_pixels: int | None = None,
) -> NDArray[np.uint8]:
    """The pixels of an image file, (channels, height, width).

    However many threads call it, the images in memory have at most `PIXELS_AT_ONCE` pixels.

    Args:
        source: a file, or its content. An image of another size is resized from its central box.
        channels: 3 for colour, 1 for grey.
        height: in pixels.
        width: in pixels.
        most_pixels: an image with more of them is refused; by default `MAX_PIXELS`.
    """
    with _opened(source, most_pixels) as image, _DECODING.reserved(image.width * image.height):
        small = _shrunk(image, channels, height, width)
        image.close()  # its pixels are gone before others are decoded
    return np.asarray(small).reshape(height, width, channels).transpose(2, 0, 1)


def _shrunk(image: Image.Image, channels: int, height: int, width: int) -> Image.Image:
    from PIL import Image

    image = _converted(image, channels)
    if image.size == (width, height):
        return image.copy()
    box = central_box(*image.size, aspect=width / height)
    return image.resize((width, height), Image.Resampling.BILINEAR, box)


def read_image(path: Path, channels: int) -> Image.Image:
    """An image file with 8 bits per channel.

    Args:
        path: a regular file in one of `IMAGE_FORMATS`, of at most `MAX_PIXELS`.
        channels: 3 for colour, 1 for grey.
    """
    with _opened(path) as image:
        return _converted(image, channels)


def image_size(source: Path | IO[bytes]) -> tuple[int, int]:
    """Width and height of an image file, which is not decoded.

    Args:
        source: the file, or its content.
    """
    with _opened(source) as image:
        return image.size


@contextmanager
def _opened(source: Path | IO[bytes], most_pixels: int | None = None) -> Iterator[Image.Image]:
    """An image of which only the header is read, and checked; errors name the file."""
    from PIL import Image, UnidentifiedImageError

    name, most = "the image", MAX_PIXELS if most_pixels is None else most_pixels
    if isinstance(source, Path):
        name = str(regular_file(source, "replace or delete it"))
    Image.core.set_block_size(BLOCK_SIZE)  # type: ignore[attr-defined]
    bombs = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    try:
        with Image.open(source, formats=IMAGE_FORMATS) as image:
            if image.width * image.height > most:
                size = f"{image.width}×{image.height}"
                raise ValueError(f"{size} pixels, more than {most:,}: save it smaller")
            yield image
    except (OSError, SyntaxError, ValueError, *bombs) as error:
        if isinstance(error, UnidentifiedImageError) and not isinstance(source, Path):
            error = ValueError(f"it is none of {', '.join(IMAGE_FORMATS)}")  # no address of memory
        raise DataError(f"{name}: cannot be decoded ({error}); replace or delete it") from None


def _converted(image: Image.Image, channels: int) -> Image.Image:
    """The image in colour or grey, decoded."""
    image, mode = _in_bytes(image), "RGB" if channels == 3 else "L"
    image.load()
    return image if image.mode == mode else image.convert(mode)


def _in_bytes(image: Image.Image) -> Image.Image:
    """The image with 16 bits per pixel scaled to 8, where Pillow would cut them off at 255."""
    from PIL import Image

    # Pillow calls 16 bits I as well, in formats that have no more.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        # The nearest integer to v/257, without floating-point numbers of eight bytes.
        return Image.fromarray(((np.asarray(image, np.uint32) + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("pixels of 32 bits have no known range: save it with 8 bits")
    return image


class _Budget:
    """A number of things that all threads together may hold."""

    def __init__(self, total: int) -> None:
        self.total, self._free, self._change = total, total, threading.Condition()

    @contextmanager
    def reserved(self, number: int) -> Iterator[None]:
        """Wait until so many are free; more than there are is all of them."""
        number = min(number, self.total)
        with self._change:
            self._change.wait_for(lambda: self._free >= number)
            self._free -= number
        try:
            yield
        finally:
            with self._change:
                self._free += number
                self._change.notify_all()


_DECODING = _Budget(PIXELS_AT_ONCE)


def central_box(width: int, height: int, aspect: float = 1.0) -> Box:
    """The middle of an image: 7/8 of the largest box of that aspect (resize to 256, crop 224).

    Args:
        width: of the image, in pixels.
        height: of the image, in pixels.
        aspect: width over height of the box.
    """
    box_height = min(width / aspect, height) * 7 / 8
    box_width = aspect * box_height
    left, top = (width - box_width) / 2, (height - box_height) / 2
    return left, top, left + box_width, top + box_height
