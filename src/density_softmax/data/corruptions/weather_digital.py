"""Weather and digital: what stands before the lens, and what processing does to an image.

Corruptions are functions as in `noise_blur`.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from torch import Tensor

from density_softmax.data.corruptions.noise_blur import (
    RandomStreams,
    clipped_zoom,
    gaussian_filter,
    motion_filter,
    round_level,
    to_pixels,
    to_tensor,
)

_LUMA = (0.299, 0.587, 0.114)


def _luma(x: Tensor) -> Tensor:
    """Grey values of RGB images (ITU-R BT.601), (batch, 1, height, width); grey ones as they are.

    The weights sum to 1, so that one-channel images need no case of their own elsewhere.
    """
    if x.shape[1] == 1:
        return x
    return (x * torch.tensor(_LUMA, dtype=x.dtype)[:, None, None]).sum(1, keepdim=True)


def snow(
    x: Tensor,
    random: RandomStreams,
    mean: float,
    std: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    keep: float,
) -> Tensor:
    """Falling snow over a whitened scene.

    x̃ = keep · x + (1 − keep) · max(x, 1.5 · luma(x) + 0.5) + flakes + flakes turned by 180°,
    where the flakes are normal noise, enlarged by `zoom`, set to zero below `threshold` and
    smeared along a steep line.
    """
    flakes = clipped_zoom(mean + std * random.normal(1, *x.shape[2:]), zoom)
    flakes = round_level(255 * flakes.masked_fill(flakes < threshold, 0).clamp(0, 1)) / 255
    flakes = motion_filter(flakes, random.between(-135, -45), radius, sigma)
    whitened = torch.maximum(x, 1.5 * _luma(x) + 0.5)
    return keep * x + (1 - keep) * whitened + flakes + flakes.rot90(2, (2, 3))


def fog(x: Tensor, random: RandomStreams, thickness: float, decay: float) -> Tensor:
    """x̃ = (x + thickness · p) · m / (m + thickness) with plasma p and m the maximum of x."""
    top = x.amax((1, 2, 3), keepdim=True)
    mist = _plasma(random, x.shape[2], x.shape[3], decay)[:, None]
    return (x + thickness * mist) * top / (top + thickness)


def _plasma(random: RandomStreams, height: int, width: int, decay: float) -> Tensor:
    """A fractal height field in [0, 1] by diamond-square on a torus, (batch, height, width).

    Midpoints are the mean of four neighbours plus uniform noise of amplitude a; halving the
    grid divides a by decay². The field is made on the next power of two and cropped.

    Reference: Fournier, Fussell & Carpenter (1982), "Computer rendering of stochastic models".
    """
    size = 1 << (max(height, width) - 1).bit_length()
    field = random.between(-1, 1, size, size)
    field[:, 0, 0] = 0
    step, amplitude = size, 1.0
    while step >= 2:
        _refine(field, step, amplitude)
        step, amplitude = step // 2, amplitude / decay**2
    low, high = field.amin((1, 2), keepdim=True), field.amax((1, 2), keepdim=True)
    return ((field - low) / (high - low))[:, :height, :width]


def _refine(field: Tensor, step: int, amplitude: float) -> None:
    """Turn the noise at the midpoints of a grid into heights, in place."""
    half = step // 2
    corners = field[:, ::step, ::step]
    centres = field[:, half::step, half::step]
    pairs = corners + corners.roll(-1, 1)
    centres.mul_(amplitude).add_((pairs + pairs.roll(-1, 2)) / 4)
    above = field[:, ::step, half::step]
    beside = field[:, half::step, ::step]
    around_above = centres + centres.roll(1, 1) + corners + corners.roll(-1, 2)
    around_beside = centres + centres.roll(1, 2) + corners + corners.roll(-1, 1)
    above.mul_(amplitude).add_(around_above / 4)
    beside.mul_(amplitude).add_(around_beside / 4)


def frost(x: Tensor, random: RandomStreams, keep: float, weight: float) -> Tensor:
    """x̃ = keep · x + weight · frost texture.

    The published sets overlay crops of five photographs. Ours overlay generated textures whose
    tone, contrast and grain vary from image to image as those of the photographs do
    (`_frost_texture`).
    """
    return keep * x + weight * _frost_texture(x, random)


# Tint and mean of the five photographs the authors used. Their tones have a standard deviation of
# 37 of 255 levels, those within a photograph 14 to 35. How much of the relief is needles was set so
# that a ResNet-20 is as often right as on the photographs, at severities 4 and 5.
_FROST_TINT = (0.89, 1.02, 1.09)
_FROST_TONE = (0.375, 0.875)
_FROST_CONTRAST = (14 / 255, 35 / 255)
_FROST_NEEDLES = (0.3, 1.0)


def _frost_texture(x: Tensor, random: RandomStreams) -> Tensor:
    """Ice needles and a fractal relief on a tinted base."""
    channels, height, width = x.shape[1:]
    ranges = (_FROST_TONE, _FROST_CONTRAST, _FROST_NEEDLES)
    tone, contrast, share = (random.between(*each, 1, 1, 1) for each in ranges)
    needles = _standardised(_needles(random, height, width))
    clouds = _standardised(_plasma(random, height, width, 1.6)[:, None])
    relief = _standardised(share * needles + (1 - share) * clouds)
    tint = torch.tensor(_FROST_TINT, dtype=x.dtype)[:, None, None]
    texture = (tint * (tone + contrast * relief)).clamp(0, 1)
    return texture if channels == 3 else _luma(texture)


def _needles(random: RandomStreams, height: int, width: int) -> Tensor:
    """Sparse noise smeared along three directions 60° apart, the symmetry of ice."""
    length = max(1, min(height, width) // 20)
    margin = 2 * length  # needles that enter from outside, rather than edges repeated
    turn = random.between(0, 60)
    seeds = -random.uniform(3, height + 2 * margin, width + 2 * margin).log()
    arms = [motion_filter(seeds[:, k : k + 1], turn + 60 * k, length, length) for k in range(3)]
    crossed = torch.cat(arms, 1).amax(1, keepdim=True)
    return crossed[..., margin:-margin, margin:-margin]


def _standardised(x: Tensor) -> Tensor:
    return (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True)


def brightness(x: Tensor, _: RandomStreams, shift: float) -> Tensor:
    """Add `shift` to the value V = max(R, G, B) of the HSV colour; hue and saturation stay.

    These determine RGB / V, hence x̃ = x · V′ / V with V′ = min(V + shift, 1); black turns grey.
    """
    value = x.amax(1, keepdim=True)
    brighter = (value + shift).clamp(max=1)
    return torch.where(value > 0, x * brighter / value, brighter)


Plane = NDArray[Any]

_WATER = (175 / 255, 238 / 255, 238 / 255)  # pale turquoise
_MUD = (63 / 255, 42 / 255, 20 / 255)
_EMBOSS = np.array([[[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]])
_SOBEL = np.array([[[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]])
_CANNY_LOW, _CANNY_HIGH = 50, 150
_REACH = 20


def spatter(
    x: Tensor,
    random: RandomStreams,
    mean: float,
    std: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: float,
) -> Tensor:
    """Water adds light, x̃ = x + m · colour; mud covers, x̃ = (1 − m) · x + m · colour.

    The liquid is where smoothed noise N(mean, std²) exceeds `threshold`. For water, `strength`
    scales a map m of the drops' shaded rims; for mud, it is the smoothing of the splash's edge.
    """
    liquid = gaussian_filter(mean + std * random.normal(1, *x.shape[2:]), sigma)
    if mud:
        mask = gaussian_filter((liquid > threshold).to(x.dtype), strength)
        mask = mask.masked_fill(mask < 0.8, 0)
        return (1 - mask) * x + mask * _colour(_MUD, x)
    wet = liquid.masked_fill(liquid < threshold, 0).clamp(0, 1)
    shade = _shaded_rims(torch.floor(255 * wet).squeeze(1).numpy().astype(np.int64))
    return x + strength * torch.from_numpy(shade).unsqueeze(1) * _colour(_WATER, x)


def _colour(rgb: tuple[float, ...], x: Tensor) -> Tensor:
    colour = torch.tensor(rgb, dtype=x.dtype).reshape(1, 3, 1, 1)
    return colour if x.shape[1] == 3 else _luma(colour)


def _shaded_rims(liquid: Plane) -> Plane:
    """How much light the drops add, scaled to at most 1 per image; dry images stay at 0."""
    distance = np.minimum(_distance(_canny(liquid)), _REACH)
    relief = _equalise(np.floor(_mean_3x3(distance) + 1e-6).astype(np.int64))
    relief = ndimage.correlate(relief, _EMBOSS, mode="mirror").clip(0, 255)
    shade = liquid * np.rint(_mean_3x3(relief))
    top = shade.max((1, 2), keepdims=True)
    return np.asarray(shade / np.where(top > 0, top, 1))


def _mean_3x3(planes: Plane) -> Plane:
    kernel = np.full((1, 3, 3), 1 / 9)
    return np.asarray(ndimage.correlate(planes.astype(np.float64), kernel, mode="mirror"))


def _canny(planes: Plane) -> NDArray[np.bool_]:
    """Edges of integer images (batch, height, width): Canny's detector with L1 gradients.

    Reference: Canny (1986), "A computational approach to edge detection".
    """
    dx = ndimage.correlate(planes, _SOBEL, mode="nearest")
    dy = ndimage.correlate(planes, _SOBEL.transpose(0, 2, 1), mode="nearest")
    size = np.abs(dx) + np.abs(dy)
    weak = (size > _CANNY_LOW) & _is_ridge(size, dx, dy)
    return _connected(weak, weak & (size > _CANNY_HIGH))


def _is_ridge(size: Plane, dx: Plane, dy: Plane) -> NDArray[np.bool_]:
    """Whether the gradient's size peaks along the nearest of its four directions."""

    def neighbour(row: int, col: int) -> Plane:
        height, width = size.shape[1:]
        return padded[:, 1 + row : 1 + row + height, 1 + col : 1 + col + width]

    padded = np.pad(size, ((0, 0), (1, 1), (1, 1)))
    tangent = np.tan(np.pi / 8)
    across = (size > neighbour(0, -1)) & (size >= neighbour(0, 1))
    down = (size > neighbour(-1, 0)) & (size >= neighbour(1, 0))
    falling = (size > neighbour(-1, -1)) & (size > neighbour(1, 1))
    rising = (size > neighbour(-1, 1)) & (size > neighbour(1, -1))
    diagonal = np.where(np.sign(dx) * np.sign(dy) < 0, rising, falling)
    steep = np.where(np.abs(dy) * tangent > np.abs(dx), down, diagonal)
    return np.where(np.abs(dy) < np.abs(dx) * tangent, across, steep)


def _connected(weak: NDArray[np.bool_], strong: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The weak pixels joined to a strong one through neighbours in the same image."""
    within_image = np.zeros((3, 3, 3), dtype=bool)
    within_image[1] = True
    labels, count = ndimage.label(weak, within_image)
    kept = np.zeros(count + 1, dtype=bool)
    kept[labels[strong]] = True
    return np.asarray(kept[labels])


def _distance(edges: NDArray[np.bool_]) -> Plane:
    """Euclidean distance to the nearest edge of the same image; beyond reach where none is."""
    distance = np.full(edges.shape, float(_REACH))
    for i in np.flatnonzero(edges.any((1, 2))):
        distance[i] = ndimage.distance_transform_edt(~edges[i])
    return distance


def _equalise(levels: Plane) -> Plane:
    """Histogram equalisation of small integers to 0 … 255, image by image.

    The lowest occurring level maps to 0, the highest to 255; a constant image stays as it is.
    """
    batch, pixels = len(levels), levels[0].size
    offsets = np.arange(batch)[:, None] * (_REACH + 1)
    flat = levels.reshape(batch, -1) + offsets
    counts = np.bincount(flat.ravel(), minlength=batch * (_REACH + 1)).reshape(batch, -1)
    below = counts.cumsum(1)
    lowest = np.take_along_axis(counts, (counts > 0).argmax(1)[:, None], 1)
    lut = np.rint((below - lowest) * 255 / np.maximum(pixels - lowest, 1)).clip(0)
    spread = lut.ravel()[flat].reshape(levels.shape)
    return np.asarray(np.where((lowest == pixels)[..., None], levels, spread))


def contrast(x: Tensor, _: RandomStreams, factor: float) -> Tensor:
    """x̃ = mean + factor · (x − mean), the mean being that of each image and channel."""
    mean = x.mean((2, 3), keepdim=True)
    return mean + factor * (x - mean)


def elastic_transform(
    x: Tensor, random: RandomStreams, alpha: float, sigma: float, affine: float
) -> Tensor:
    """A random affine map, then a random smooth displacement of every pixel.

    The affine map moves three points around the centre by up to `affine`; the displacement is
    α · G_σ * u with u uniform in (−1, 1). Strengths are in multiples of the shorter side.

    Reference: Simard, Steinkraus & Platt (2003), "Best practices for convolutional neural
    networks applied to visual document analysis".
    """
    height, width = x.shape[2:]
    side = min(height, width)
    jitter = random.between(-1, 1, 3, 2)
    noise = random.between(-1, 1, 2, height, width)
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


def pixelate(x: Tensor, _: RandomStreams, scale: float) -> Tensor:
    """Shrink to `scale` times the size and enlarge again, both with Pillow's box filter."""

    def shrink_and_enlarge(image: Image.Image) -> Image.Image:
        width, height = image.size
        small = image.resize((int(width * scale), int(height * scale)), Image.Resampling.BOX)
        return small.resize((width, height), Image.Resampling.BOX)

    return _map_images(shrink_and_enlarge, x)


def jpeg_compression(x: Tensor, _: RandomStreams, quality: float) -> Tensor:
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


def saturate(x: Tensor, _: RandomStreams, factor: float, shift: float) -> Tensor:
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
