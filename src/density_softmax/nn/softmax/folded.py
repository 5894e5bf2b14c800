"""All experts of a typicality, and the scale, in as few operations as possible.

At batch 1 a small operation takes as long as the arithmetic of a layer, so the affine maps of
densities, typicality and scale are multiplied out once. To rounding the numbers are the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional as F

from density_softmax.nn.densities.gaussian import (
    SMALLEST_NORM,
    ClassAwareDensity,
    GaussianDensity,
    WhitenedDensity,
    whitened_center,
)
from density_softmax.nn.execution import Derived
from density_softmax.nn.softmax.head import energy_of_logits
from density_softmax.nn.softmax.scale import QuantileScale, Scale
from density_softmax.nn.softmax.typicality import Typicality, in_columns

# Up to so many numbers all products are one, although most of its matrix is 0.
SMALL = 2**17
# The most that a constant may be: what float32 rounds of it stays below a thousandth.
LARGEST = 2.0**13

# Buffers that the constants are made of.
READ = {
    *("center", "whitening", "log_height", "location", "intercept", "gather", "height"),
    *("weight", "onset", "width", "threshold", "spread", "farthest", "decay"),
}
# Columns of the features, W and b.
Product = tuple[slice, Tensor, Tensor]


class Constants(NamedTuple):
    """What is left of the buffers once they are multiplied out.

    Attributes:
        products: side by side, W z + b are the whitened features of each Gaussian and, with b = 0,
            those of the class-aware density, whose `width` is that of the last features.
        last: the columns that the class-aware density reads.
        offset: what is added to its W z / ‖z‖, (width,).
        location: of the classes where their means differ, (classes, differing).
        padded: the same with zeros in the other coordinates, (classes, width).
        intercept: of the classes, (classes,).
        gather: what squares add up to, (roots, 2 + experts): 1 + u and 1 + v of the scale, and
            what contributions are the softplus of.
        height: what is added, (2 + experts,).
        start, slope: how the energy becomes such a contribution, (1,); empty without an energy.
        decays: of what the scale takes the fourth root of, (2, 1).
    """

    products: tuple[Product, ...]
    last: slice
    offset: Tensor
    location: Tensor
    padded: Tensor
    intercept: Tensor
    gather: Tensor
    height: Tensor
    start: Tensor
    slope: Tensor
    decays: Tensor


@final
class FoldedEvidence:
    """What a typicality and a scale say of features, folded where they are of kinds that allow it.

    These are Gaussians and, behind them, a class-aware density, with a `QuantileScale` of the
    stretched shape. Under autocast, where gradients are asked for, and in code that is compiled
    nothing is folded.

    Args:
        typicality: the experts.
        scale: of log densities.
    """

    def __init__(self, typicality: Typicality, scale: Scale) -> None:
        self._typicality, self._scale = typicality, scale
        modules = (*typicality.densities.values(), typicality, scale)
        found = [(module._buffers, name) for module in modules for name in module._buffers]
        self._read = [(buffers, name) for buffers, name in found if name in READ]
        *gaussians, aware = typicality.densities.values()
        stretched = isinstance(scale, QuantileScale) and scale.tail == "stretched"
        known = all(isinstance(density, GaussianDensity) for density in gaussians)
        self._foldable = stretched and known and isinstance(aware, ClassAwareDensity)
        self._constants = Derived(self._multiplied_out)

    def __call__(self, features: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Factors on the logits, (batch, 1), surprises, (batch,), and contributions of experts.

        Args:
            features: (batch, width).
            logits: at temperature 1, (batch, classes).
        """
        constants = self._constants_for(features)
        if constants is not None:
            return _evidence(features, logits, constants)
        log_prob, surprise, contributions = self._typicality(features, logits)
        return self._scale(log_prob).unsqueeze(-1), surprise, contributions

    def _constants_for(self, features: Tensor) -> Constants | None:
        if not self._foldable or torch.is_grad_enabled():
            return None
        buffers: list[Any] = [of_module[name] for of_module, name in self._read]
        if features.dtype != buffers[0].dtype or torch.is_autocast_enabled(features.device.type):
            return None
        return self._constants(*buffers)

    def _multiplied_out(self, *buffers: Tensor) -> Constants | None:
        """The constants; None where float32 would lose digits."""
        if torch.compiler.is_compiling():  # no graph can decide by values
            return None
        typicality, scale = self._typicality, self._scale
        *_, (_, aware, last) = typicality.readers()
        assert isinstance(scale, QuantileScale)
        assert isinstance(aware, ClassAwareDensity)
        offset, products = whitened_center(aware.center, aware.whitening), _products(typicality)
        gather, height, start, slope = _sums(typicality, scale)
        # The constant of v belongs to inputs far away, and may be as low as it likes.
        others = torch.cat([height[:1], height[2:], start]).abs()
        if offset is None or products is None or max(others.max(), height[1]) > LARGEST:
            return None
        padded = F.pad(aware.location, (0, len(offset) - aware.num_turned))
        decays = -4 * torch.stack([scale.decay, torch.full_like(scale.decay, scale.far)])[:, None]
        constants = (each.to(offset.dtype) for each in (gather, height, start, slope, decays))
        classes = (aware.location, padded, aware.intercept)
        return Constants(products, last, offset, *classes, *constants)


def _evidence(features: Tensor, logits: Tensor, c: Constants) -> tuple[Tensor, Tensor, Tensor]:
    found = [F.linear(in_columns(features, columns), W, b) for columns, W, b in c.products]
    whitened = found[0] if len(found) == 1 else torch.cat(found, dim=-1)
    norm = torch.linalg.vector_norm(in_columns(features, c.last), dim=-1, keepdim=True)
    y = torch.addcdiv(c.offset, whitened[:, -len(c.offset) :], norm.clamp_min(SMALLEST_NORM))
    turned = y[:, : c.location.shape[1]]
    nearest = F.linear(turned, c.location, c.intercept).argmax(-1)
    roots = torch.cat([whitened, y - torch.embedding(c.padded, nearest), turned], dim=-1)
    sums = torch.addmm(c.height, roots.square(), c.gather)
    if len(c.start):
        energy = torch.addcmul(c.start, energy_of_logits(logits), c.slope)
        sums = torch.cat([sums, energy], dim=-1)
    floats = torch.finfo(torch.float32)
    stretched = sums[:, :2].clamp(1.0, floats.max) ** 0.25 - 1
    contributions = F.softplus(sums[:, 2:])
    factor = (stretched @ c.decays).exp().clamp_min(floats.tiny)
    return factor, contributions.sum(-1), contributions


def _products(typicality: Typicality) -> tuple[Product, ...] | None:
    """One for each density or, if it is small, one for all of them."""
    found = list[Product]()
    for _, density, columns in typicality.readers():
        assert isinstance(density, WhitenedDensity)
        b = whitened_center(density.center, density.whitening)
        if b is None:
            return None
        found.append((columns, density.whitening, b * (not density.class_aware)))
    width = max(columns.stop for columns, _, _ in found)
    if width * sum(len(b) for _, _, b in found) > SMALL:
        return tuple(found)
    whole = [F.pad(W, (columns.start, width - columns.stop)) for columns, W, _ in found]
    return ((slice(0, width), torch.cat(whole), torch.cat([b for _, _, b in found])),)


def _sums(typicality: Typicality, scale: QuantileScale) -> tuple[Tensor, ...]:
    """`gather`, `height`, `start` and `slope`, in float64."""
    gathers, heights = list[Tensor](), list[Tensor]()
    for _, density, _ in typicality.readers():
        assert isinstance(density, WhitenedDensity)
        gather, height = density.weights()
        if density.class_aware:  # its W z counts once it is divided by the norm
            gathers.append(gather.new_zeros(len(density.whitening), 0))
        gathers.append(gather)
        heights.append(height.view(-1))
    gather, height = torch.block_diag(*gathers).double(), torch.cat(heights).double()
    names = ("center", "weight", "onset", "width")
    center, weight, onset, width = (getattr(typicality, name).double() for name in names)
    n, spread = len(height), scale.spread.double()
    level = (height - center[:n]) @ weight[:n]
    begin = torch.stack([scale.threshold, scale.farthest]).double()
    lower = -(gather @ weight[:n] / spread)[:, None].expand(-1, 2)
    sums = torch.cat([lower, -gather / width[:n]], dim=1)
    added = torch.cat([1 + (begin - level) / spread, (onset[:n] - height) / width[:n]])
    return sums, added, onset[n:] / width[n:], -1 / width[n:]
