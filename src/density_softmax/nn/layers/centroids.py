"""Radial basis functions around moving class centroids, and the penalty on their gradient."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.nn.execution import full_precision
from density_softmax.nn.lipschitz.linearization import Linearization
from density_softmax.nn.lipschitz.penalty import JacobianPenalty, sample_norm
from density_softmax.training import Values

# Spread of the centroids before the first step, as in the authors' code.
INITIAL_SPREAD = 0.05


@final
class CentroidKernels(nn.Module):
    """K_c(z) = exp(−‖W_c z − e_c‖² / (2 n σ²)) with a matrix W_c (n × features) for every class c.

    The centroids e_c are estimated, not trained: they are means of W_c z over the samples of
    class c, in which a batch counts γ times less with every step after it,

        N_c ← γ N_c + (1 − γ) n_c,    m_c ← γ m_c + (1 − γ) Σ W_c z,    e_c = m_c / N_c.

    All W_c z are one product (batch, features) · (features, classes · n): nothing larger than
    (batch, classes, n) is ever held.

    Args:
        num_features: the width of z.
        num_classes: how many kernels there are.
        size: n, the width of a centroid.
        length_scale: σ.
        momentum: γ.
        count: N_c before the first step.
    """

    centroids: Tensor
    counts: Tensor

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        size: int,
        length_scale: float,
        momentum: float,
        count: float,
    ) -> None:
        super().__init__()
        self.length_scale, self.momentum = length_scale, momentum
        # The authors draw a tensor (n, classes, features) from N(0, 2 / fan-in), where torch
        # takes classes · features for the fan-in: narrower, the more classes there are.
        std = math.sqrt(2 / (num_classes * num_features))
        self.weight = nn.Parameter(std * torch.randn(num_classes, size, num_features))
        self.register_buffer("centroids", INITIAL_SPREAD * torch.randn(num_classes, size))
        self.register_buffer("counts", torch.full((num_classes,), count))

    def forward(self, z: Tensor) -> Tensor:
        """log K_c = −‖W_c z − e_c‖² / (2 n σ²), (batch, classes), in float32."""
        squares = (self.embed(z) - self.centroids).square()
        return -squares.mean(-1) / (2 * self.length_scale**2)

    def embed(self, z: Tensor) -> Tensor:
        """W_c z for every class, (batch, classes, n)."""
        with full_precision(z):
            return F.linear(z.float(), self.weight.flatten(0, 1)).view(-1, *self.centroids.shape)

    def sums(self, z: Tensor, y: Tensor) -> Values:
        """n_c and Σ W_c z over the samples of each class."""
        classes = F.one_hot(y, len(self.counts)).float()
        return {"n": classes.sum(0), "sum": torch.einsum("bc,bcn->cn", classes, self.embed(z))}

    def move(self, total: Values) -> None:
        """The moving average, written so that the centroid of a class without samples stays put.

        m_c / N_c is the old e_c + (1 − γ) (Σ W_c z − n_c e_c) / N_c with the new N_c.
        """
        n, gamma = total["n"], self.momentum
        self.counts.mul_(gamma).add_((1 - gamma) * n)
        change = (1 - gamma) * (total["sum"] - n[:, None] * self.centroids)
        tiny = torch.finfo(torch.float32).tiny
        self.centroids.add_(change / self.counts.clamp_min(tiny)[:, None])


@final
class KernelPenalty(JacobianPenalty):
    """‖∇ₓ Σ_c K_c‖ of a network x ↦ log K_c, whose Jacobian is J: ∇ₓ Σ_c K_c = Jᵀ K.

    Through the logarithm, because the loss needs log K_c where K_c itself is rounded to 0.
    """

    def norm(self, f: Linearization) -> Tensor:
        """‖Jᵀ K‖."""
        return sample_norm(f.pull(f.z.exp(), create_graph=True))
