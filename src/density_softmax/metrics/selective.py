"""Selective prediction: how wrong are the answers if the least certain ones are withheld?"""

from __future__ import annotations

import torch
from torch import Tensor

from density_softmax.metrics.scoring import _labelled, _ordered

__all__ = ["aurc", "risk_coverage"]


def risk_coverage(
    probs: Tensor, y: Tensor, uncertainty: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Error rate among the i most certain samples, for every i.

    With errors e sorted by uncertainty, coverage_i = i / n and risk_i = (1/i) Σ_{j ≤ i} e_j.
    Each error of a group with equal uncertainty counts as the mean error of the group: this is
    the expected risk if ties are broken at random, and does not depend on the samples' order.

    Args:
        probs: class probabilities, (samples, classes).
        y: class indices, (samples,).
        uncertainty: higher = withheld earlier, +inf allowed, (samples,); −max_k p_k if None.

    Returns:
        Coverage and risk, each (samples,), in order of growing coverage.
    """
    probs, y = _labelled(probs, y)
    confidence, predicted = probs.max(1)
    uncertainty = -confidence if uncertainty is None else _ordered("uncertainty", uncertainty)
    if len(uncertainty) != len(y):
        raise ValueError(
            f"uncertainty has {len(uncertainty)} values beside {len(y)} rows of probs: "
            f"pass one value per row"
        )
    _, group = torch.unique(uncertainty, return_inverse=True)
    group_risk = torch.bincount(group, weights=(predicted != y).double()) / torch.bincount(group)
    num_kept = torch.arange(1, len(y) + 1, dtype=torch.float64)
    return num_kept / len(y), group_risk[group.sort().values].cumsum(0) / num_kept


def aurc(probs: Tensor, y: Tensor, uncertainty: Tensor | None = None) -> float:
    """Area under the risk–coverage curve, (1/n) Σ_i risk_i; lower is better.

    After Geifman, Uziel and El-Yaniv, "Bias-reduced uncertainty estimation for deep neural
    classifiers", ICLR 2019.
    """
    _, risk = risk_coverage(probs, y, uncertainty)
    return float(risk.mean())
