"""Weather: snow, frost, fog and bright light between the camera and the scene."""

from __future__ import annotations

import torch
from torch import Tensor

from density_softmax.data.corruptions.filters import Draws, clipped_zoom, motion_filter, round_level

__all__ = ["brightness", "fog", "frost", "luma", "plasma", "snow"]

_LUMA = (0.299, 0.587, 0.114)


def luma(x: Tensor) -> Tensor:
    """Grey values of RGB images (ITU-R BT.601), (batch, 1, height, width); grey ones as they are.

    The weights sum to 1, so that one-channel images need no case of their own elsewhere.
    """
    if x.shape[1] == 1:
        return x
    return (x * torch.tensor(_LUMA, dtype=x.dtype)[:, None, None]).sum(1, keepdim=True)


def snow(
    x: Tensor,
    draws: Draws,
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
    flakes = clipped_zoom(mean + std * draws.normal(1, *x.shape[2:]), zoom)
    flakes = round_level(255 * flakes.masked_fill(flakes < threshold, 0).clamp(0, 1)) / 255
    flakes = motion_filter(flakes, draws.between(-135, -45), radius, sigma)
    whitened = torch.maximum(x, 1.5 * luma(x) + 0.5)
    return keep * x + (1 - keep) * whitened + flakes + flakes.rot90(2, (2, 3))


def fog(x: Tensor, draws: Draws, thickness: float, decay: float) -> Tensor:
    """x̃ = (x + thickness · p) · m / (m + thickness) with plasma p and m the maximum of x."""
    top = x.amax((1, 2, 3), keepdim=True)
    mist = plasma(draws, x.shape[2], x.shape[3], decay)[:, None]
    return (x + thickness * mist) * top / (top + thickness)


def plasma(draws: Draws, height: int, width: int, decay: float) -> Tensor:
    """A fractal height field in [0, 1] by diamond-square on a torus, (batch, height, width).

    Midpoints are the mean of four neighbours plus uniform noise of amplitude a; halving the
    grid divides a by decay². The field is made on the next power of two and cropped.

    Reference: Fournier, Fussell & Carpenter (1982), "Computer rendering of stochastic models".
    """
    size = 1 << (max(height, width) - 1).bit_length()
    field = draws.between(-1, 1, size, size)
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


def frost(x: Tensor, draws: Draws, keep: float, weight: float) -> Tensor:
    """x̃ = keep · x + weight · frost texture.

    The published sets overlay crops of photographs. Ours overlay generated textures with the
    photographs' mean tone, contrast and needle-like grain (`_frost_texture`).
    """
    return keep * x + weight * _frost_texture(x, draws)


# Tone range and tint of the five photographs the authors used; contrast within a crop.
_FROST_TONE = (0.45, 0.8)
_FROST_TINT = (0.89, 1.02, 1.09)
_FROST_CONTRAST = 0.1


def _frost_texture(x: Tensor, draws: Draws) -> Tensor:
    """Ice needles and a fractal relief on a tinted base."""
    channels, height, width = x.shape[1:]
    tone = draws.between(*_FROST_TONE, 1, 1, 1)
    grain = _needles(draws, height, width)
    relief = _standardised(grain) + 0.5 * _standardised(plasma(draws, height, width, 1.6)[:, None])
    tint = torch.tensor(_FROST_TINT, dtype=x.dtype)[:, None, None]
    texture = (tint * (tone + _FROST_CONTRAST * relief)).clamp(0, 1)
    return texture if channels == 3 else luma(texture)


def _needles(draws: Draws, height: int, width: int) -> Tensor:
    """Sparse noise smeared along three directions 60° apart, the symmetry of ice."""
    length = max(1, min(height, width) // 20)
    margin = 2 * length  # needles that enter from outside, rather than edges repeated
    turn = draws.between(0, 60)
    seeds = -draws.uniform(3, height + 2 * margin, width + 2 * margin).log()
    arms = [motion_filter(seeds[:, k : k + 1], turn + 60 * k, length, length) for k in range(3)]
    crossed = torch.cat(arms, 1).amax(1, keepdim=True)
    return crossed[..., margin:-margin, margin:-margin]


def _standardised(x: Tensor) -> Tensor:
    return (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True)


def brightness(x: Tensor, _: Draws, shift: float) -> Tensor:
    """Add `shift` to the value V = max(R, G, B) of the HSV colour; hue and saturation stay.

    These determine RGB / V, hence x̃ = x · V′ / V with V′ = min(V + shift, 1); black turns grey.
    """
    value = x.amax(1, keepdim=True)
    brighter = (value + shift).clamp(max=1)
    return torch.where(value > 0, x * brighter / value, brighter)
