"""Scores of predicted distributions, and the input checks that all metrics share."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["accuracy", "brier", "confidence", "entropy", "nll"]

_TINY = torch.finfo(torch.float32).tiny
# A row of bfloat16 probabilities, each off by at most 2⁻⁹ of itself, still passes.
_SUM_TOLERANCE = 0.01


def nll(probs: Tensor, y: Tensor) -> float:
    """Negative log-likelihood in nats, mean of −log p_y.

    Probabilities below the smallest normal float32, 1.2e-38, count as that float: a label that
    was given probability 0 costs 87.3 nats rather than infinity.
    """
    probs, y = _labelled(probs, y)
    p_y = probs.gather(1, y[:, None])
    return float(-p_y.clamp_min(_TINY).log().mean())


def accuracy(probs: Tensor, y: Tensor) -> float:
    """Fraction of samples, in [0, 1], with argmax p = y. Ties go to the lowest class."""
    probs, y = _labelled(probs, y)
    return float((probs.argmax(1) == y).double().mean())


def brier(probs: Tensor, y: Tensor) -> float:
    """Brier score in [0, 2], mean over samples of Σ_k (p_k − [y = k])²."""
    probs, y = _labelled(probs, y)
    one_hot = F.one_hot(y, probs.shape[1])
    return float((probs - one_hot).square().sum(1).mean())


def confidence(probs: Tensor) -> float:
    """Mean over samples of the largest probability, max_k p_k."""
    return float(_distributions(probs).amax(1).mean())


def entropy(probs: Tensor, *, base: float = math.e) -> Tensor:
    """Entropy of each row, −Σ_k p_k log p_k with 0 log 0 = 0, as float64 on the CPU.

    Args:
        probs: class probabilities, (samples, classes).
        base: of the logarithm: e for nats, 2 for bits.
    """
    if base <= 1:
        raise ValueError(f"base is {base}: pass a base above 1, e.g. 2 for bits")
    nats: Tensor = torch.special.entr(_distributions(probs)).sum(1)
    return nats / math.log(base)


def _distributions(probs: Tensor) -> Tensor:
    """`probs` in float64 on the CPU, checked to hold one distribution per row."""
    if probs.ndim != 2 or probs.numel() == 0:
        raise ValueError(
            f"probs has shape {tuple(probs.shape)}: pass (samples, classes), at least one of each"
        )
    probs = _float64(probs)
    smallest, total = probs.amin(1), probs.sum(1)
    valid = (smallest >= 0) & ((total - 1).abs() < _SUM_TOLERANCE)
    if not valid.all():
        row = int(valid.logical_not().nonzero()[0])
        raise ValueError(
            f"row {row} of probs is not a distribution (smallest entry {smallest[row]:.4g}, "
            f"sum {total[row]:.4g}): pass probabilities, e.g. the softmax of logits"
        )
    return probs


def _labelled(probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """`probs` and `y` on the CPU, checked to hold one class index for each distribution."""
    probs = _distributions(probs)
    num_samples, num_classes = probs.shape
    if y.shape != (num_samples,) or y.is_floating_point():
        raise ValueError(
            f"y is {y.dtype} of shape {tuple(y.shape)} beside probs of shape "
            f"{tuple(probs.shape)}: pass one integer class index per row, ({num_samples},)"
        )
    y = y.detach().cpu().long()
    outside = y[(y < 0) | (y >= num_classes)]
    if outside.numel() > 0:
        raise ValueError(
            f"{len(outside)} of the labels in y are no class of probs, the first is "
            f"{int(outside[0])}: number the {num_classes} classes from 0 to {num_classes - 1}"
        )
    return probs, y


def _ordered(name: str, scores: Tensor) -> Tensor:
    """`scores` in float64 on the CPU, checked to be rankable: a vector without NaN."""
    if scores.ndim != 1 or scores.numel() == 0:
        raise ValueError(
            f"{name} has shape {tuple(scores.shape)}: pass one score per sample, at least one"
        )
    scores = _float64(scores)
    num_nan = int(scores.isnan().sum())
    if num_nan > 0:
        raise ValueError(
            f"{num_nan} of {len(scores)} values in {name} are NaN and have no rank: "
            f"give samples about which nothing is known the score +inf"
        )
    return scores


def _float64(values: Tensor) -> Tensor:
    return values.detach().cpu().double()  # on the CPU first: some devices have no float64
