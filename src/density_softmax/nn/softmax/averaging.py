"""The prediction of several members or samples, and what they disagree about."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from density_softmax.nn.softmax.head import entropy_of_logits
from density_softmax.types import Prediction

__all__ = [
    "average_members",
    "average_parts",
    "average_probs",
    "in_chunks",
    "nll_of_average",
    "nll_of_parts",
    "tile",
]


def average_members(logits: Tensor) -> Prediction:
    """Mean probabilities, expected entropy and mutual information, from (members, batch, classes).

    p = 1/M Σ softmax(l_m); aleatoric = 1/M Σ H(softmax(l_m)); epistemic = H(p) − aleatoric, the
    mutual information of label and member, which is 0 where all agree.
    """
    return average_parts([logits])


def average_parts(parts: Iterable[Tensor]) -> Prediction:
    """`average_members` of logits that come in parts, some members at a time.

    Parts that are generated one by one need not fit into memory together.
    """
    log_sums, entropies, num_members = [], [], 0
    for logits in parts:
        log_probs = _log_probs(logits)
        log_sums.append(log_probs.logsumexp(1))
        entropies.append(-(log_probs.exp() * log_probs).sum(0).sum(0))
        num_members += len(logits)
    log_probs = torch.stack(log_sums, -1).logsumexp(-1).T - math.log(num_members)
    aleatoric = torch.stack(entropies).sum(0) / num_members
    epistemic = _disagreement(entropy_of_logits(log_probs), aleatoric, num_members)
    return Prediction(log_probs.exp(), aleatoric, epistemic)


def average_probs(probs: Tensor) -> Prediction:
    """`average_members` of probabilities: p = 1/M Σ p_m, 1/M Σ H(p_m) and H(p) − 1/M Σ H(p_m)."""
    probs = probs.float()
    mean, aleatoric = probs.mean(0), _entropy(probs).mean(0)
    return Prediction(mean, aleatoric, _disagreement(_entropy(mean), aleatoric, len(probs)))


def nll_of_average(logits: Tensor, y: Tensor) -> Tensor:
    """−log of the mean probability of the true class, (batch,), from (members, batch, classes)."""
    truth = _log_probs(logits).gather(0, y.expand(1, len(logits), -1)).squeeze(0)
    return math.log(len(logits)) - truth.logsumexp(0)


def nll_of_parts(nlls: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """`nll_of_average` of all members, from those of parts of them with so many members each."""
    log_sums = [math.log(size) - nll for nll, size in zip(nlls, sizes, strict=True)]
    return math.log(sum(sizes)) - torch.stack(log_sums).logsumexp(0)


def _disagreement(entropy: Tensor, aleatoric: Tensor, num_members: int) -> Tensor:
    """H(p) − 1/M Σ H(p_m)."""
    if num_members == 1:  # what rounding leaves would order inputs
        return torch.zeros_like(aleatoric)
    # Rounding may push a difference of equal entropies below zero.
    return (entropy - aleatoric).clamp_min(0)


def _entropy(probs: Tensor) -> Tensor:
    """−Σ p log p, where 0 log 0 = 0."""
    return -(probs * probs.clamp_min(torch.finfo(torch.float32).tiny).log()).sum(-1)


def _log_probs(logits: Tensor) -> Tensor:
    """log softmax(l_m), (classes, members, batch).

    Over few classes that stand first in memory it takes a CPU a tenth of the time.
    """
    return logits.float().movedim(-1, 0).log_softmax(0)


def tile(x: Tensor, num_copies: int) -> Tensor:
    """The batch so many times, one whole copy after the other."""
    return torch.cat([x] * num_copies)


def in_chunks(sample: Callable[[int], Tensor], num_samples: int, chunk: int) -> Tensor:
    """`num_samples` samples along the first axis, drawn by `sample(how_many)`.

    At most `chunk` at a time, to save memory; 0 draws all of them at once.
    """
    size = chunk or num_samples
    sizes = [min(size, num_samples - start) for start in range(0, num_samples, size)]
    return torch.cat([sample(number) for number in sizes])
