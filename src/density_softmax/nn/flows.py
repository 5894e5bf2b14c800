"""Invertible maps with tractable log-determinants."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["AffineCoupling", "RadialFlow", "RadialLayer", "RealNVP"]


@final
class Constant(nn.Module):
    """A learned vector, whatever the input: what a network without inputs can say."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(num_outputs))

    def forward(self, kept: Tensor) -> Tensor:
        """The vector, once per sample."""
        return self.value.expand(kept.shape[0], -1)


def conditioner(num_inputs: int, num_outputs: int, hidden: Sequence[int]) -> nn.Module:
    """A ReLU network from the half that is kept to the parameters of the half that moves."""
    if num_inputs == 0:
        return Constant(num_outputs)
    widths = [num_inputs, *hidden]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs))


@final
class AffineCoupling(nn.Module):
    """b ↦ exp(s(a)) ⊙ b + t(a), with s = tanh(network) and t a network (Dinh et al. 2017).

    The conditioners see only the half a that they use: the same functions as a masked full-width
    input gives, with half the weights. log|det| = Σ s(a).
    """

    def __init__(self, num_kept: int, num_moved: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.scale = conditioner(num_kept, num_moved, hidden)
        self.shift = conditioner(num_kept, num_moved, hidden)

    def forward(self, kept: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        """The moved half and the log-determinant."""
        s = torch.tanh(self.scale(kept))
        return s.exp() * moved + self.shift(kept), s.sum(-1)

    def inverse(self, kept: Tensor, image: Tensor) -> Tensor:
        """The half that `forward` would move to `image`."""
        s = torch.tanh(self.scale(kept))
        return (image - self.shift(kept)) * (-s).exp()


@final
class RealNVP(nn.Module):
    """Affine couplings that move the two halves of a vector in turn.

    An odd dimension gives halves that differ by one. One dimension has no halves: the only
    coupling then moves the whole vector by constants.
    """

    def __init__(self, num_features: int, num_couplings: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.halves = (num_features // 2, num_features - num_features // 2)
        first, second = self.halves
        sizes = [(first, second), (second, first)]
        if num_features == 1:
            num_couplings = min(num_couplings, 1)
        self.couplings = nn.ModuleList(
            AffineCoupling(*sizes[i % 2], hidden) for i in range(num_couplings)
        )

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """t = s_α(z) and log|det ∂t/∂z|."""
        kept, moved = z.split(self.halves, dim=-1)
        log_det = z.new_zeros(z.shape[0])
        for coupling in self.couplings:
            moved, step = coupling(kept, moved)
            kept, moved, log_det = moved, kept, log_det + step
        return self._join(kept, moved), log_det

    def inverse(self, t: Tensor) -> Tensor:
        """The z with s_α(z) = t."""
        kept, moved = self._split_image(t)
        for coupling in reversed(self.couplings):
            kept, moved = moved, kept
            moved = cast(AffineCoupling, coupling).inverse(kept, moved)
        return torch.cat([kept, moved], dim=-1)

    def _join(self, kept: Tensor, moved: Tensor) -> Tensor:
        swapped = len(self.couplings) % 2 == 1
        return torch.cat([moved, kept] if swapped else [kept, moved], dim=-1)

    def _split_image(self, t: Tensor) -> tuple[Tensor, Tensor]:
        first, second = t.split(self.halves, dim=-1)
        return (second, first) if len(self.couplings) % 2 == 1 else (first, second)


@final
class RadialLayer(nn.Module):
    """z ↦ z + β (z − c) / (α + r) with r = ‖z − c‖ (Rezende & Mohamed 2015, Eq. 14).

    It is invertible for α > 0 and β > −α, so γ = α + β > 0 is learned in place of β. With
    q = α / (α + r) and g = γ / (α + r) lengths grow by 1 − q + g across the radius and by
    1 − q² + q g along it, sums of positive terms: |det| = (1 − q + g)^(d−1) (1 − q² + q g).
    α and γ are in units of √d, the distance of typical points, and begin as the identity, β = 0.
    `num_flows` layers stand side by side in one: points (batch, 1 or flows, d) give images
    (batch, flows, d).
    """

    def __init__(self, num_features: int, num_flows: int | None = None) -> None:
        super().__init__()
        flows = () if num_flows is None else (num_flows,)
        self.center = nn.Parameter(torch.randn(*flows, num_features))
        self.raw_alpha = nn.Parameter(torch.zeros(flows))
        self.raw_gamma = nn.Parameter(torch.zeros(flows))

    def reach(self) -> tuple[Tensor, Tensor]:
        """α and γ."""
        unit = self.center.shape[-1] ** 0.5
        return unit * F.softplus(self.raw_alpha), unit * F.softplus(self.raw_gamma)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The moved points and the log-determinant."""
        alpha, gamma = self.reach()
        arm = z - self.center
        r = torch.linalg.vector_norm(arm, dim=-1)
        q, g = alpha / (alpha + r), gamma / (alpha + r)
        across, along = (1 - q) + g, (1 - q) * (1 + q) + q * g
        log_det = (z.shape[-1] - 1) * across.log() + along.log()
        return self.center + across[..., None] * arm, log_det

    def inverse(self, t: Tensor) -> Tensor:
        """The z that `forward` moves to t: r (r + γ) = ‖t − c‖ (r + α), solved for r."""
        alpha, gamma = self.reach()
        arm = t - self.center
        image = torch.linalg.vector_norm(arm, dim=-1)
        half = (image - gamma) / 2
        r = half + (half.square() + alpha * image).sqrt()
        return self.center + ((alpha + r) / (gamma + r))[..., None] * arm


@final
class RadialFlow(nn.Module):
    """Radial layers one after another, each around a centre of its own.

    Together they move no point by more than Σ|β|: far away the flow is nearly the identity.
    With `num_flows` they are so many flows, computed at once on points (batch, 1 or flows, d).
    """

    def __init__(self, num_features: int, num_layers: int, num_flows: int | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(RadialLayer(num_features, num_flows) for _ in range(num_layers))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """t = s_α(z) and log|det ∂t/∂z|."""
        log_det = z.new_zeros(z.shape[:-1])
        for layer in self.layers:
            z, step = layer(z)
            log_det = log_det + step
        return z, log_det

    def inverse(self, t: Tensor) -> Tensor:
        """The z with s_α(z) = t."""
        for layer in reversed(self.layers):
            t = cast(RadialLayer, layer).inverse(t)
        return t
