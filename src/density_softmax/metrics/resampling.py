"""Paired bootstrap over samples: all methods are judged by the same resamples of a set."""

from __future__ import annotations

import torch
from torch import Tensor

from density_softmax.metrics.scoring import reliability_bins

__all__ = [
    "interval",
    "resample_weights",
    "resampled_auroc",
    "resampled_ece",
    "resampled_means",
]


def resample_weights(num_samples: int, num_resamples: int, seed: int = 0) -> Tensor:
    """How often each sample is drawn, over the number of samples, (resamples, samples).

    The same arguments give the same weights: sets that are versions of the same images are
    resampled together.

    Args:
        num_samples: of the set.
        num_resamples: how many sets are drawn from it, with replacement.
        seed: decides the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(num_samples, (num_resamples, num_samples), generator=generator)
    counts = torch.zeros(num_resamples, num_samples)
    return counts.scatter_add_(1, draws, torch.ones(1).expand_as(draws)) / num_samples


def resampled_means(values: Tensor, weights: Tensor) -> Tensor:
    """The mean of every resample, (resamples, ...).

    Args:
        values: of each sample, (samples, ...).
        weights: as `resample_weights` gives them.
    """
    return weights.double() @ values.double()


def resampled_ece(probs: Tensor, y: Tensor, weights: Tensor, num_bins: int = 15) -> Tensor:
    """The expected calibration error of every resample, (resamples,).

    Args:
        probs: class probabilities, (samples, classes).
        y: class indices, (samples,).
        weights: as `resample_weights` gives them.
        num_bins: between 0 and 1.
    """
    confidence, predicted = probs.max(1)
    edges = reliability_bins(probs[:1], y[:1], num_bins).edges[1:-1].float()
    member = torch.nn.functional.one_hot(torch.bucketize(confidence.float(), edges), num_bins)
    gaps = member * ((predicted == y).float() - confidence.float())[:, None]
    return (weights @ gaps).abs().sum(1).double()


def resampled_auroc(
    scores_in: Tensor, scores_out: Tensor, weights_in: Tensor, weights_out: Tensor
) -> Tensor:
    """The AUROC of every resample of both sets, to first order, (resamples,).

    A + Σ_i w_i (a_i − A) + Σ_j v_j (b_j − A), where a_i is the share of OOD scores above that of
    the in-domain sample i and b_j the share of in-domain scores below that of the OOD sample j
    (DeLong et al. 1988): what is left out falls as one over the number of samples.

    Args:
        scores_in: of in-domain samples, (samples,).
        scores_out: of OOD samples, (samples,).
        weights_in: of the in-domain samples, as `resample_weights` gives them.
        weights_out: of the OOD samples.
    """
    of_in, of_out = _placements(scores_in, scores_out), _placements(scores_out, scores_in)
    first = resampled_means(1 - of_in, weights_in)
    return first + resampled_means(of_out, weights_out) - of_out.mean()


def _placements(scores: Tensor, others: Tensor) -> Tensor:
    """The share of other scores below each score, ties counting half, in float64."""
    ordered = others.double().sort().values
    values = scores.double().contiguous()
    below = torch.searchsorted(ordered, values, right=False)
    not_above = torch.searchsorted(ordered, values, right=True)
    return (below + not_above).double() / (2 * len(others))


def interval(values: Tensor, level: float = 0.95) -> tuple[float, float]:
    """The quantiles between which the middle share of the resamples lies.

    Args:
        values: one per resample, (resamples,).
        level: that share.
    """
    bounds = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = values.double().quantile(bounds).tolist()
    return low, high
