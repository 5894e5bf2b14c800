"""Digital: what processing and storage do to an image."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from density_softmax.data.corruptions.draws import Draws
from density_softmax.data.corruptions.filters import gaussian_filter
from density_softmax.data.corruptions.pixels import to_pixels, to_tensor

__all__ = ["contrast", "elastic_transform", "jpeg_compression", "pixelate", "saturate"]


def contrast(x: Tensor, _: Draws, factor: float) -> Tensor:
    """x̃ = mean + factor · (x − mean), the mean being that of each image and channel."""
    mean = x.mean((2, 3), keepdim=True)
    return mean + factor * (x - mean)


def elastic_transform(x: Tensor, draws: Draws, alpha: float, sigma: float, affine: float) -> Tensor:
    """A random affine map, then a random smooth displacement of every pixel.

    The affine map moves three points around the centre by up to `affine`; the displacement is
    α · G_σ * u with u uniform in (−1, 1). Strengths are in multiples of the shorter side.

    Reference: Simard, Steinkraus & Platt (2003), "Best practices for convolutional neural
    networks applied to visual document analysis".
    """
    height, width = x.shape[2:]
    side = min(height, width)
    jitter = draws.between(-1, 1, 3, 2)
    noise = draws.between(-1, 1, 2, height, width)
    # Borders as published: mirrored about the edge pixel first, with the edge pixel second.
    x = _sample(x, _affine_source(affine * side * jitter, height, width), about_pixel=True)
    shift = alpha * side * gaussian_filter(noise, sigma * side, "reflect", truncate=3)
    source = _positions(height, width) + shift.flip(1).permute(0, 2, 3, 1)
    return _sample(x, source, about_pixel=False)


def _positions(height: int, width: int) -> Tensor:
    """The (column, row) of every pixel, (height, width, 2)."""
    rows, cols = torch.meshgrid(
        torch.arange(height, dtype=torch.float64),
        torch.arange(width, dtype=torch.float64),
        indexing="ij",
    )
    return torch.stack((cols, rows), -1)


def _affine_source(jitter: Tensor, height: int, width: int) -> Tensor:
    """Where each pixel comes from under the affine map that moves three points by `jitter`.

    Args:
        jitter: displacement of the points in pixels, (batch, 3, 2).
        height: of the image.
        width: of the image.
    """
    reach = min(height, width) // 3
    centre = torch.tensor([width // 2, height // 2], dtype=jitter.dtype)
    signs = torch.tensor([[1, 1], [1, -1], [-1, -1]], dtype=jitter.dtype)
    points = centre + reach * signs
    moved = F.pad(points + jitter, (0, 1), value=1.0)
    back = torch.linalg.solve(moved, points.expand(len(jitter), -1, -1))
    grid = F.pad(_positions(height, width), (0, 1), value=1.0)
    return grid @ back[:, None]


def _sample(x: Tensor, source: Tensor, *, about_pixel: bool) -> Tensor:
    """x at positions (column, row), bilinearly; mirrored about or beyond the edge pixel."""
    size = torch.tensor([x.shape[3], x.shape[2]], dtype=x.dtype)
    grid = 2 * source / (size - 1) - 1 if about_pixel else (2 * source + 1) / size - 1
    return F.grid_sample(
        x, grid, mode="bilinear", padding_mode="reflection", align_corners=about_pixel
    )


def pixelate(x: Tensor, _: Draws, scale: float) -> Tensor:
    """Shrink to `scale` times the size and enlarge again, both with Pillow's box filter."""

    def shrink_and_enlarge(image: Image.Image) -> Image.Image:
        width, height = image.size
        small = image.resize((int(width * scale), int(height * scale)), Image.Resampling.BOX)
        return small.resize((width, height), Image.Resampling.BOX)

    return _map_images(shrink_and_enlarge, x)


def jpeg_compression(x: Tensor, _: Draws, quality: float) -> Tensor:
    """Encode as JPEG of the given quality, chroma at half resolution, and decode."""

    def recode(image: Image.Image) -> Image.Image:
        stored = io.BytesIO()
        image.save(stored, "JPEG", quality=int(quality))
        return Image.open(stored)

    return _map_images(recode, x)


def _map_images(change: Callable[[Image.Image], Image.Image], x: Tensor) -> Tensor:
    """Apply a function of Pillow images to each image of a batch."""
    pixels = to_pixels(x)
    planes = pixels.squeeze(3) if x.shape[1] == 1 else pixels
    changed = np.stack([np.asarray(change(Image.fromarray(plane))) for plane in planes])
    return to_tensor(changed.reshape(pixels.shape))


def saturate(x: Tensor, _: Draws, factor: float, shift: float) -> Tensor:
    """S′ = min(factor · S + shift, 1) for the saturation of the HSV colour; H and V stay.

    With V the maximum, m the minimum of RGB and S = (V − m) / V, RGB = V · (1 − S · f) where
    f = (V − RGB) / (V − m) is a matter of hue alone. Grey pixels have hue 0, which is red. An
    image of one channel has no colour and stays as it is.
    """
    if x.shape[1] == 1:
        return x
    value, chroma = x.amax(1, keepdim=True), x.amax(1, keepdim=True) - x.amin(1, keepdim=True)
    red = torch.tensor([0.0, 1.0, 1.0], dtype=x.dtype)[:, None, None]
    f = torch.where(chroma > 0, (value - x) / chroma, red)
    # S · V = chroma, so multiplying the new saturation by V spares the division by it.
    return value - f * (factor * chroma + shift * value).minimum(value)
