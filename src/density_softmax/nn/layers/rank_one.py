"""Ensembles of layers that share a kernel and differ by rank-1 factors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from density_softmax.nn.layers.decay import Undecayed
from density_softmax.nn.layers.surgery import KernelLayer, num_channels, over_channels
from density_softmax.nn.layers.variational import Variational

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def _per_row(values: Tensor, num_rows: int) -> Tensor:
    """The value of its member for each row of a tiled batch, (rows, ...) from (members, ...)."""
    num_members = values.shape[0]
    return values[:, None].expand(-1, num_rows // num_members, -1).flatten(0, 1)


def random_signs(num_members: int, width: int, positive: float = 0.5) -> Tensor:
    """Vectors of +1 and −1, (members, width).

    Args:
        num_members: how many vectors.
        width: of each.
        positive: the probability of +1.
    """
    return torch.where(torch.rand(num_members, width) < positive, 1.0, -1.0)


class Vectors(nn.Module, ABC):
    """A vector per member of an ensemble."""

    @abstractmethod
    def forward(self, num_rows: int) -> Tensor:
        """One for each row of a tiled batch, (rows, width)."""


@final
class PointVectors(Vectors):
    """Learned vectors.

    Args:
        values: where they start, (members, width).
        gradient: what their gradient is multiplied with.
    """

    def __init__(self, values: Tensor, gradient: float = 1.0) -> None:
        super().__init__()
        self.value = nn.Parameter(values)
        self.gradient = gradient

    def forward(self, num_rows: int) -> Tensor:
        """The vector of each row's member."""
        fixed = self.value.detach()
        return _per_row(fixed + self.gradient * (self.value - fixed), num_rows)


@final
class GaussianVectors(Vectors, Variational):
    """v ~ N(μ_m, softplus(ρ_m)²), drawn anew for each row, with prior N(prior_mean, prior_std²).

    The divergence is the sum over members, as in uncertainty-baselines.

    Args:
        mean: where μ starts, (members, width).
        std: where the standard deviation starts.
        prior_mean: the prior's mean, the same for all entries.
        prior_std: the prior's standard deviation.
    """

    def __init__(self, mean: Tensor, std: float, prior_mean: float, prior_std: float) -> None:
        super().__init__()
        self.mean = nn.Parameter(mean)
        self.start(mean, std, prior_std)
        self.prior_mean = prior_mean

    def forward(self, num_rows: int) -> Tensor:
        """A draw from the posterior of each row's member."""
        mean, std = _per_row(self.mean, num_rows), _per_row(self.std, num_rows)
        return mean + std * torch.randn_like(mean)

    def offset(self) -> Tensor:
        """μ_m − m₀."""
        return self.mean - self.prior_mean


@final
class RankOne(Undecayed):
    """y = (W (x ∘ r_m)) ∘ s_m + b_m, which is the layer of member m with kernel W ∘ s_m r_mᵀ.

    The kernel W is shared; the batch holds the rows of member 1, then those of member 2, ...
    (Wen et al. 2020; Dusenberry et al. 2020).

    Args:
        layer: the convolution or dense layer whose kernel is shared; its bias becomes b_m of all m.
        num_members: how many members there are.
        vectors: makes r and s, given their width.
        bias_gradient: what the gradient of b is multiplied with.
    """

    def __init__(
        self,
        layer: KernelLayer,
        num_members: int,
        vectors: Callable[[int], Vectors],
        bias_gradient: float = 1.0,
    ) -> None:
        super().__init__()
        num_inputs, num_outputs = num_channels(layer)
        self.r, self.s = vectors(num_inputs), vectors(num_outputs)
        self.bias: PointVectors | None = None
        if layer.bias is not None:
            biases = layer.bias.detach().repeat(num_members, 1)
            self.bias = PointVectors(biases, bias_gradient)
            layer.bias = None
        self.shared = layer

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of all members for a tiled batch."""
        y: Tensor = self.shared(x * self._vectors(self.r, x))
        y = y * self._vectors(self.s, y)
        return y if self.bias is None else y + self._vectors(self.bias, y)

    def _vectors(self, vectors: Vectors, x: Tensor) -> Tensor:
        return over_channels(self.shared, vectors(x.shape[0]), x)

    def undecayed(self) -> tuple[Tensor, ...]:
        """The fast weights: what is learned of r and s."""
        return *self.r.parameters(), *self.s.parameters()


@final
class MemberBatchNorm(nn.Module):
    """A batch norm per member: a tiled batch is normalised by the statistics of each member's rows.

    Computed as one batch norm of members × channels.

    Args:
        norm: the batch norm that every member starts from.
        num_members: how many members there are.
    """

    def __init__(self, norm: BatchNorm, num_members: int) -> None:
        super().__init__()
        self.num_members, self.num_channels = num_members, norm.num_features
        settings = (norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        self.norm = type(norm)(num_members * norm.num_features, *settings)
        state = norm.state_dict()
        self.norm.load_state_dict(
            {name: v.repeat(num_members) if v.ndim else v for name, v in state.items()}
        )

    def forward(self, x: Tensor) -> Tensor:
        """The normalised rows, in their order."""
        num_rows, rest = x.shape[0] // self.num_members, x.shape[2:]
        members = x.reshape(self.num_members, num_rows, self.num_channels, *rest)
        y = self.norm(members.transpose(0, 1).flatten(1, 2))
        y = y.reshape(num_rows, self.num_members, self.num_channels, *rest)
        return y.transpose(0, 1).flatten(0, 1)
