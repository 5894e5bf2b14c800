"""Scores of predictions: likelihood, calibration, selective prediction, OOD detection; a t-test.

Probabilities are (samples, classes) and labels (samples,). In OOD detection, OOD is the positive
class, and a higher score means less known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from density_softmax.types import Prediction

__all__ = [
    "ReliabilityBins",
    "accuracy",
    "aupr",
    "aurc",
    "auroc",
    "brier",
    "confidence",
    "detection_scores",
    "ece",
    "entropy",
    "fpr95",
    "mece",
    "nll",
    "paired_t_test",
    "reliability_bins",
    "risk_coverage",
]

_TINY = torch.finfo(torch.float32).tiny
# A row of bfloat16 probabilities, each off by at most 2⁻⁹ of itself, still passes.
_SUM_TOLERANCE = 0.01
# Differences that vary by less than this share of themselves vary by rounding alone.
_ROUNDING = 1e-9


def nll(probs: Tensor, y: Tensor) -> float:
    """Negative log-likelihood in nats, mean of −log p_y.

    Probabilities below the smallest normal float32, 1.2e-38, count as that float: a label of
    probability 0 costs 87.3 nats rather than infinity.

    Args:
        probs: class probabilities, (samples, classes).
        y: class indices, (samples,).
    """
    probs, y = _labelled(probs, y)
    p_y = probs.gather(1, y[:, None])
    return float(-p_y.clamp_min(_TINY).log().mean())


def accuracy(probs: Tensor, y: Tensor) -> float:
    """Fraction of samples, in [0, 1], with argmax p = y. Ties go to the lowest class.

    Args:
        probs: class probabilities, (samples, classes).
        y: class indices, (samples,).
    """
    probs, y = _labelled(probs, y)
    return float((probs.argmax(1) == y).double().mean())


def brier(probs: Tensor, y: Tensor) -> float:
    """Brier score in [0, 2], mean over samples of Σ_k (p_k − [y = k])².

    Args:
        probs: class probabilities, (samples, classes).
        y: class indices, (samples,).
    """
    probs, y = _labelled(probs, y)
    one_hot = F.one_hot(y, probs.shape[1])
    return float((probs - one_hot).square().sum(1).mean())


def confidence(probs: Tensor) -> float:
    """Mean over samples of the largest probability, max_k p_k.

    Args:
        probs: class probabilities, (samples, classes).
    """
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

    Args:
        probs: class probabilities, (samples, classes).
        y: class indices, (samples,).
        num_bins: between 0 and 1.
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

    Args:
        probs: class probabilities, (samples, classes).
        y: class indices, (samples,).
        num_bins: between 0 and 1.
    """
    bins = reliability_bins(probs, y, num_bins)
    gaps = (bins.accuracy - bins.confidence).abs()
    return float((bins.counts * gaps).nansum() / bins.counts.sum())  # empty bins are the NaN


def mece(probs: Tensor, y: Tensor) -> float:
    """Expected calibration error over the misclassified samples only; 0 if there are none.

    Their accuracy is 0 in every bin, so that Σ_b (n_b / n) |0 − confidence_b| is their mean
    confidence, whatever the bins.

    Args:
        probs: class probabilities, (samples, classes).
        y: class indices, (samples,).
    """
    probs, y = _labelled(probs, y)
    confidence, predicted = probs.max(1)
    wrong = predicted != y
    return float(confidence[wrong].mean()) if wrong.any() else 0.0


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

    Args:
        probs: class probabilities, (samples, classes).
        y: class indices, (samples,).
        uncertainty: as in `risk_coverage`, (samples,).
    """
    _, risk = risk_coverage(probs, y, uncertainty)
    return float(risk.mean())


def detection_scores(prediction: Prediction) -> dict[str, Tensor]:
    """Return the scores that can flag a sample as OOD, each (samples,), higher = less known.

    Args:
        prediction: of a batch or of a whole set.

    Returns:
        `confidence`: −max_k p_k; `entropy`: of p in nats; `epistemic`: as the method gives it.
    """
    return {
        "confidence": -_distributions(prediction.probs).amax(1),
        "entropy": entropy(prediction.probs),
        "epistemic": _ordered("prediction.epistemic", prediction.epistemic),
    }


def auroc(scores_in: Tensor, scores_out: Tensor) -> float:
    """Area under the ROC curve, P(s_out > s_in) + ½ P(s_out = s_in).

    Args:
        scores_in: of in-domain samples, (samples,).
        scores_out: of OOD samples, (samples,).
    """
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(*_positives_and_ranks(scores_in, scores_out)))


def aupr(scores_in: Tensor, scores_out: Tensor) -> float:
    """Average precision Σ_t (recall_t − recall_{t−1}) precision_t, with OOD as positive.

    A score without information gets n_out / (n_in + n_out): compare values of equal ratios only.

    Args:
        scores_in: of in-domain samples, (samples,).
        scores_out: of OOD samples, (samples,).
    """
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(*_positives_and_ranks(scores_in, scores_out)))


def fpr95(scores_in: Tensor, scores_out: Tensor) -> float:
    """Share of in-domain samples flagged by the highest threshold that flags 95 % of OOD.

    P(s_in ≥ t) with t = max {t : P(s_out ≥ t) ≥ 0.95}.

    Args:
        scores_in: of in-domain samples, (samples,).
        scores_out: of OOD samples, (samples,).
    """
    from sklearn.metrics import roc_curve

    # Keep every point: scikit-learn drops those on a slope, where the threshold may lie.
    fpr, tpr, _ = roc_curve(*_positives_and_ranks(scores_in, scores_out), drop_intermediate=False)
    return float(fpr[tpr >= 0.95][0])


def _positives_and_ranks(
    scores_in: Tensor, scores_out: Tensor
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Return which samples are OOD, and the rank of each score; tied scores share one rank.

    Only the order matters, so log densities of −900 and scores of +inf are as good as any.
    """
    scores_in = _ordered("scores_in", scores_in)
    scores_out = _ordered("scores_out", scores_out)
    _, ranks = torch.unique(torch.cat([scores_in, scores_out]), return_inverse=True)
    positives = torch.arange(len(ranks)) >= len(scores_in)
    return positives.numpy(), ranks.numpy()


def paired_t_test(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the two-sided p-value of Student's paired t-test that a and b have the same mean.

    With differences d of mean m and sample variance s², t = m / √(s² / n) is compared with the
    t-distribution of n − 1 degrees of freedom. If all differences are the same, p is 0, or 1 if
    they are 0.

    Args:
        a: values of one method, at least two.
        b: values of the other, of the same seeds in the same order.
    """
    from scipy.special import stdtr

    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if left.shape != right.shape or left.ndim != 1 or len(left) < 2:
        raise ValueError(
            f"values of shapes {left.shape} and {right.shape} are no pairs: "
            "pass two sequences of the same length, at least 2"
        )
    if not np.isfinite([left, right]).all():
        raise ValueError("there are infinite values or NaN: leave out what has no finite mean")
    d = left - right
    if np.allclose(left, right, rtol=_ROUNDING, atol=1e-12):
        return 1.0
    if np.allclose(d, d.mean(), rtol=_ROUNDING, atol=0):
        return 0.0
    t = d.mean() / math.sqrt(d.var(ddof=1) / len(d))
    return float(2 * stdtr(len(d) - 1, -abs(t)))


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
