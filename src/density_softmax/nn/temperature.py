"""Temperature scaling: one number fitted on held-out logits (Guo et al. 2017)."""

from __future__ import annotations

import math

from scipy.optimize import minimize_scalar
from torch import Tensor

__all__ = ["fit_temperature", "nll_of_logits"]

# Far outside of any temperature a trained network has needed.
LOG_BOUNDS = (math.log(1e-2), math.log(1e2))


def nll_of_logits(logits: Tensor, y: Tensor, smoothing: float = 0.0) -> float:
    """Mean of −log softmax(logits)_y; smoothing moves that share of the target to all classes."""
    log_probs = logits.double().log_softmax(-1)
    correct = log_probs.gather(-1, y[:, None]).mean()
    return -((1 - smoothing) * correct + smoothing * log_probs.mean()).item()


def fit_temperature(logits: Tensor, y: Tensor) -> float:
    """The T that minimises the NLL of softmax(logits / T).

    On n held-out samples without a single error plain NLL sends T to 0, and with it the
    believed error rate. One pseudo-sample spread over all classes (Perks' prior, the idea of
    Platt 1999) keeps T finite; its weight vanishes as 1/n.
    """
    smoothing = 1 / (len(logits) + 1)
    best = minimize_scalar(
        lambda log_t: nll_of_logits(logits / math.exp(log_t), y, smoothing),
        bounds=LOG_BOUNDS,
        method="bounded",
        options={"xatol": 1e-6},
    )
    return math.exp(best.x)
