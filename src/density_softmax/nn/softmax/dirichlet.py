"""Losses and entropies of a Dirichlet distribution over class probabilities, from its parameters α.

α > 0 has the shape (..., classes), and α_0 = Σ α_c. The formulas hold in float32 for parameters
from far below 1 to 1e30: differences of large numbers are taken on paper.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Above it the series below is exact to 1e-9, and the closed form loses digits.
LARGE = 16.0
LOG_2_PI_E = math.log(2 * math.pi * math.e)
# e^30 observations are certainty and e^−30 are none.
LARGEST_LOG_COUNT = 30.0


def pseudo_counts(log_counts: Tensor) -> Tensor:
    """exp, kept between e^−30 and e^30 (the limits of the original NatPN) and so in float32.

    As there, gradients pass the limits as if there were none (the straight-through estimator): a
    density that starts with no evidence at all can still learn to have some.

    Args:
        log_counts: of any shape.
    """
    finite = log_counts.clamp(torch.finfo(log_counts.dtype).min, torch.finfo(log_counts.dtype).max)
    kept = log_counts.detach().clamp(-LARGEST_LOG_COUNT, LARGEST_LOG_COUNT)
    return (kept + (finite - finite.detach())).exp()


def bayesian_loss(alpha: Tensor, y: Tensor, entropy_weight: float) -> Tensor:
    """E[−log p_y] − λ H(Dir(α)), (batch,).

    Args:
        alpha: (batch, classes).
        y: the true classes, (batch,).
        entropy_weight: λ.
    """
    return expected_cross_entropy(alpha, y) - entropy_weight * entropy(alpha)


def expected_cross_entropy(alpha: Tensor, y: Tensor) -> Tensor:
    """E[−log p_y] = ψ(α_0) − ψ(α_y) under p ~ Dir(α), (batch,).

    Args:
        alpha: (batch, classes).
        y: the true classes, (batch,).
    """
    return alpha.sum(-1).digamma() - _of_label(alpha, y).digamma()


def nll_of_mean(alpha: Tensor, y: Tensor) -> Tensor:
    """−log E[p_y] = log α_0 − log α_y, (batch,).

    Args:
        alpha: (batch, classes).
        y: the true classes, (batch,).
    """
    return alpha.sum(-1).log() - _of_label(alpha, y).log()


def entropy(alpha: Tensor) -> Tensor:
    """H(Dir(α)) = Σ log Γ(α_c) − log Γ(α_0) + (α_0 − K) ψ(α_0) − Σ (α_c − 1) ψ(α_c), in nats.

    A Dirichlet is a vector of Gamma variables divided by their sum, and with their entropies
    G the same reads Σ G(α_c) − G(α_0) − (K − 1) ψ(α_0): nothing here grows faster than log α.

    Args:
        alpha: (..., classes).
    """
    alpha_0, num_classes = alpha.sum(-1), alpha.shape[-1]
    spread = _gamma_entropy(alpha).sum(-1) - _gamma_entropy(alpha_0)
    return spread - (num_classes - 1) * alpha_0.digamma()


def entropy_of_mean(alpha: Tensor) -> Tensor:
    """H(E[p]) = −Σ m_c log m_c with m = α / α_0. It needs no special function and exports.

    Args:
        alpha: (..., classes).
    """
    log_mean = alpha.log() - alpha.sum(-1, keepdim=True).log()
    return -(log_mean.exp() * log_mean).sum(-1)


def _of_label(alpha: Tensor, y: Tensor) -> Tensor:
    return alpha.gather(-1, y[..., None]).squeeze(-1)


def _gamma_entropy(alpha: Tensor) -> Tensor:
    """G(α) = α + log Γ(α) + (1 − α) ψ(α), the entropy of a Gamma(α, 1); Stirling's for large α."""
    small, large = alpha.clamp_max(LARGE), alpha.clamp_min(LARGE)
    closed = small + small.lgamma() + (1 - small) * small.digamma()
    v = 1 / large
    tail = v * (1 / 3 + v * (1 / 12 + v * (1 / 90 - v * (1 / 120 + v / 210))))
    series = 0.5 * (large.log() + LOG_2_PI_E) - tail
    return closed.where(alpha < LARGE, series)
