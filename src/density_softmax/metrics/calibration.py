"""Calibration: does a confidence of 0.8 come true 8 times in 10?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from density_softmax.metrics.scoring import _labelled

__all__ = ["ReliabilityBins", "ece", "mece", "reliability_bins"]


class ReliabilityBins(NamedTuple):
    """A reliability diagram: samples grouped by confidence, max_k p_k.

    Attributes:
        counts: samples in each bin, (bins,).
        accuracy: fraction of them that are right, NaN in an empty bin, (bins,).
        confidence: their mean confidence, NaN in an empty bin, (bins,).
        edges: bin b holds confidences in (edges[b], edges[b + 1]], (bins + 1,).
    """

    counts: Tensor
    accuracy: Tensor
    confidence: Tensor
    edges: Tensor


def reliability_bins(probs: Tensor, y: Tensor, num_bins: int = 15) -> ReliabilityBins:
    """Group samples by confidence into right-closed bins of equal width.

    A confidence is compared with the edges in float32. One that was stored in float32 as k/15 is
    not the float64 k/15, and would otherwise fall to either side of its edge by rounding alone.
    """
    if num_bins < 1:
        raise ValueError(f"num_bins is {num_bins}: pass at least 1")
    probs, y = _labelled(probs, y)
    confidence, predicted = probs.max(1)
    edges = torch.arange(num_bins + 1, dtype=torch.float64) / num_bins
    # Only the inner edges, so that 0 and 1 (and 1 + rounding) belong to the outer bins.
    index = torch.bucketize(confidence.float(), edges[1:-1].float())
    counts = torch.bincount(index, minlength=num_bins)

    def mean(values: Tensor) -> Tensor:
        return torch.bincount(index, weights=values, minlength=num_bins) / counts

    return ReliabilityBins(counts, mean((predicted == y).double()), mean(confidence), edges)


def ece(probs: Tensor, y: Tensor, num_bins: int = 15) -> float:
    """Expected calibration error, Σ_b (n_b / n) |accuracy_b − confidence_b|.

    Bins are those of `reliability_bins`. After Guo et al., "On calibration of modern neural
    networks", ICML 2017.
    """
    bins = reliability_bins(probs, y, num_bins)
    gaps = (bins.accuracy - bins.confidence).abs()
    return float((bins.counts * gaps).nansum() / bins.counts.sum())  # empty bins are the NaN


def mece(probs: Tensor, y: Tensor) -> float:
    """Expected calibration error over the misclassified samples only; 0 if there are none.

    Their accuracy is 0 in every bin, so that Σ_b (n_b / n) |0 − confidence_b| is their mean
    confidence, whatever the bins.
    """
    probs, y = _labelled(probs, y)
    confidence, predicted = probs.max(1)
    wrong = predicted != y
    return float(confidence[wrong].mean()) if wrong.any() else 0.0
