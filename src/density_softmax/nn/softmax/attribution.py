"""Divides what the experts of a typicality contribute among the channels that they read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from density_softmax.decide.explain import Part
from density_softmax.nn.densities.base import channel_turn
from density_softmax.nn.densities.gaussian import GaussianDensity
from density_softmax.nn.execution import Derived
from density_softmax.nn.softmax.typicality import Typicality, in_columns

# The layer and the name of each column of the features.
Channels = Sequence[tuple[str, str]]


@final
class LayerDivision:
    """Divides what the density of the layers contributes among them, as `divide` does.

    It takes some small operations, so it is done only where `active` is set.

    Args:
        typicality: its first density is that of the layers, if there are any.
        widths: how many columns of the features each layer has, by its name.
    """

    def __init__(self, typicality: Typicality, widths: Mapping[str, int]) -> None:
        self.active, self._experts, self._layers = False, typicality.names, tuple(widths)
        _, self._density, self._columns = next(typicality.readers())
        gaussian = typicality.class_aware and isinstance(self._density, GaussianDensity)
        self._possible = gaussian and bool(widths)
        blocks = [torch.ones(width, 1) for width in widths.values()]
        self._member = torch.block_diag(*blocks)  # the layer of each channel
        self._turned = Derived(_turned)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns: `layers/NAME` for each layer in place of the first expert."""
        if not (self.active and self._possible):
            return self._experts
        first, *others = self._experts
        return (*(f"{first}/{layer}" for layer in self._layers), *others)

    def __call__(self, features: Tensor, contributions: Tensor) -> Tensor:
        """The contributions, (batch, len(names)).

        Args:
            features: (batch, width).
            contributions: of the experts, (batch, experts).
        """
        if not (self.active and self._possible):
            return contributions
        density = self._density
        assert isinstance(density, GaussianDensity)
        residuals = in_columns(features, self._columns) - density.center
        squares = F.linear(residuals, self._turned(density.whitening)).square()
        amounts = squares @ self._member.to(squares)
        shares = amounts / amounts.sum(-1, keepdim=True).clamp_min(torch.finfo(amounts.dtype).tiny)
        return torch.cat([contributions[:, :1] * shares, contributions[:, 1:]], dim=1)


def _turned(whitening: Tensor) -> Tensor:
    W = whitening.double()
    return (channel_turn(W) @ W).to(whitening)


@torch.no_grad()
def divide(
    typicality: Typicality, features: Tensor, contributions: Tensor, channels: Channels
) -> tuple[Tensor, tuple[Part, ...]]:
    """The contributions of the experts, divided among channels, (batch, parts) in float64.

    The distance of a Gaussian is a sum of squares, one for each channel (`Density.amounts`). Where
    the contribution is linear in the distance, a channel gets its square times the same factor,
    and what is constant is divided evenly. Where it is not (softplus), channels share the
    contribution in proportion to their squares; of a difference of distances, to what is positive
    of theirs. An expert without channels, as the energy or a flow is, is one part.

    Args:
        typicality: a fitted one.
        features: (batch, width).
        contributions: of the experts, (batch, experts).
        channels: the names of the columns of the features.
    """
    contributions = contributions.double()
    factors = [None] * len(typicality.names) if typicality.class_aware else typicality.weight
    parts, names = [], []
    for number, (amounts, own) in enumerate(_experts(typicality, features, channels)):
        contribution, expert = contributions[:, number, None], typicality.names[number]
        if amounts is None:
            parts.append(contribution)
            names.append(Part(expert, own[0][0] if len(own) == 1 else "features", ""))
            continue
        parts.append(_divided(contribution, amounts, factors[number]))
        names += [Part(expert, *channel) for channel in own]
    return torch.cat(parts, dim=1), tuple(names)


def _experts(
    typicality: Typicality, features: Tensor, channels: Channels
) -> Iterator[tuple[Tensor | None, Channels]]:
    """Of each expert: the amounts of its channels, (batch, channels), and their names."""
    for _, density, columns in typicality.readers():
        found = density.amounts(in_columns(features, columns).double())
        for number in range(len(density.expert_names)):
            yield (None if found is None else found[number]), channels[columns]
    if typicality.energy:
        yield None, [("logits", "")]


def _divided(contribution: Tensor, amounts: Tensor, factor: Tensor | None) -> Tensor:
    """A contribution, (batch, 1), as a sum over channels, (batch, channels)."""
    even = contribution / amounts.shape[1]
    if factor is not None:
        return even + factor.double() * (amounts - amounts.mean(-1, keepdim=True))
    positive = amounts.clamp_min(0)
    total = positive.sum(-1, keepdim=True)
    return torch.where(total > 0, contribution * positive / total.clamp_min(1e-300), even)
