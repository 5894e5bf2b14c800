"""Out-of-distribution (OOD) detection by a score; OOD is positive, higher = less known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from density_softmax.metrics.scoring import _distributions, _ordered, entropy
from density_softmax.types import Prediction

__all__ = ["aupr", "auroc", "detection_scores", "fpr95"]


def detection_scores(prediction: Prediction) -> dict[str, Tensor]:
    """The scores by which a prediction can flag its samples, each higher = less known.

    Returns:
        `confidence`: −max_k p_k; `entropy`: of p in nats; `epistemic`: as the method gives it.
    """
    return {
        "confidence": -_distributions(prediction.probs).amax(1),
        "entropy": entropy(prediction.probs),
        "epistemic": _ordered("prediction.epistemic", prediction.epistemic),
    }


def auroc(scores_in: Tensor, scores_out: Tensor) -> float:
    """Area under the ROC curve, P(s_out > s_in) + ½ P(s_out = s_in)."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(*_positives_and_ranks(scores_in, scores_out)))


def aupr(scores_in: Tensor, scores_out: Tensor) -> float:
    """Average precision Σ_t (recall_t − recall_{t−1}) precision_t, with OOD as positive.

    A score without information gets n_out / (n_in + n_out): compare values of equal ratios only.
    """
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(*_positives_and_ranks(scores_in, scores_out)))


def fpr95(scores_in: Tensor, scores_out: Tensor) -> float:
    """Share of in-domain samples flagged by the highest threshold that flags 95 % of OOD.

    P(s_in ≥ t) with t = max {t : P(s_out ≥ t) ≥ 0.95}.
    """
    # Keep every point: scikit-learn drops those on a slope, where the threshold may lie.
    from sklearn.metrics import roc_curve

    fpr, tpr, _ = roc_curve(*_positives_and_ranks(scores_in, scores_out), drop_intermediate=False)
    return float(fpr[tpr >= 0.95][0])


def _positives_and_ranks(
    scores_in: Tensor, scores_out: Tensor
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Which samples are OOD, and the rank of each score; tied scores share one rank.

    Only the order counts, so that log densities of −900 and scores of +inf are as good as any.
    """
    scores_in = _ordered("scores_in", scores_in)
    scores_out = _ordered("scores_out", scores_out)
    _, ranks = torch.unique(torch.cat([scores_in, scores_out]), return_inverse=True)
    positives = torch.arange(len(ranks)) >= len(scores_in)
    return positives.numpy(), ranks.numpy()
