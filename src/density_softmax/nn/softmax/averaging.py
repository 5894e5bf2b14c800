"""The mean prediction of several members or samples, and how much they disagree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from density_softmax.nn.softmax.head import entropy_of_logits
from density_softmax.types import Prediction


def average_members(logits: Tensor | Iterable[Tensor]) -> Prediction:
    """Mean probabilities, expected entropy and mutual information.

    p = 1/M Σ softmax(l_m); aleatoric = 1/M Σ H(softmax(l_m)); epistemic = H(p) − aleatoric, the
    mutual information of label and member, which is 0 where all agree.

    Args:
        logits: (members, batch, classes), or chunks of it with some of the members each, which
            need not fit into memory together.
    """
    log_sums, entropies, num_members = [], [], 0
    for chunk in [logits] if isinstance(logits, Tensor) else logits:
        log_probs = _log_probs(chunk)
        log_sums.append(log_probs.logsumexp(1))
        entropies.append(-(log_probs.exp() * log_probs).sum(0).sum(0))
        num_members += len(chunk)
    log_probs = torch.stack(log_sums, -1).logsumexp(-1).T - math.log(num_members)
    aleatoric = torch.stack(entropies).sum(0) / num_members
    epistemic = _disagreement(entropy_of_logits(log_probs), aleatoric, num_members)
    return Prediction(log_probs.exp(), aleatoric, epistemic)


def average_probs(probs: Tensor) -> Prediction:
    """`average_members` of probabilities: p = 1/M Σ p_m, 1/M Σ H(p_m) and H(p) − 1/M Σ H(p_m).

    Args:
        probs: (members, batch, classes).
    """
    probs = probs.float()
    mean, aleatoric = probs.mean(0), _entropy(probs).mean(0)
    return Prediction(mean, aleatoric, _disagreement(_entropy(mean), aleatoric, len(probs)))


def nll_of_average(logits: Tensor, y: Tensor) -> Tensor:
    """−log of the mean probability of the true class, (batch,).

    Args:
        logits: (members, batch, classes).
        y: the true classes, (batch,).
    """
    truth = _log_probs(logits).gather(0, y.expand(1, len(logits), -1)).squeeze(0)
    return math.log(len(logits)) - truth.logsumexp(0)


def nll_of_chunks(nlls: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """`nll_of_average` of all members, from those of chunks of them.

    Args:
        nlls: of each chunk, (batch,).
        sizes: how many members each chunk has.
    """
    log_sums = [math.log(size) - nll for nll, size in zip(nlls, sizes, strict=True)]
    return math.log(sum(sizes)) - torch.stack(log_sums).logsumexp(0)


def tile(x: Tensor, num_copies: int) -> Tensor:
    """Copies of a batch, one whole copy after the other, (copies · batch, ...).

    Args:
        x: (batch, ...).
        num_copies: how many.
    """
    return torch.cat([x] * num_copies)


def in_chunks(sample: Callable[[int], Tensor], num_samples: int, chunk: int) -> Tensor:
    """Samples along the first axis, drawn some at a time to save memory.

    Args:
        sample: draws a given number of samples.
        num_samples: how many to draw in all.
        chunk: how many at once; 0 draws all of them at once.
    """
    size = chunk or num_samples
    sizes = [min(size, num_samples - start) for start in range(0, num_samples, size)]
    return torch.cat([sample(number) for number in sizes])


def _disagreement(entropy: Tensor, aleatoric: Tensor, num_members: int) -> Tensor:
    """H(p) − 1/M Σ H(p_m)."""
    if num_members == 1:  # not what rounding leaves, by which inputs would be ranked
        return torch.zeros_like(aleatoric)
    # Rounding may push a difference of equal entropies below zero.
    return (entropy - aleatoric).clamp_min(0)


def _entropy(probs: Tensor) -> Tensor:
    """−Σ p log p, where 0 log 0 = 0."""
    return -(probs * probs.clamp_min(torch.finfo(torch.float32).tiny).log()).sum(-1)


def _log_probs(logits: Tensor) -> Tensor:
    """log softmax(l_m), (classes, members, batch).

    With few classes, first in memory, a CPU takes a tenth of the time.
    """
    return logits.float().movedim(-1, 0).log_softmax(0)
