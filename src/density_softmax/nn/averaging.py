"""The prediction of several members or samples, and what they disagree about."""

from __future__ import annotations

import math

from torch import Tensor

from density_softmax.nn.head import entropy_of_logits
from density_softmax.types import Prediction

__all__ = ["average_members", "nll_of_average"]


def average_members(logits: Tensor) -> Prediction:
    """Mean probabilities, expected entropy and mutual information, from (members, batch, classes).

    p = 1/M Σ softmax(l_m); aleatoric = 1/M Σ H(softmax(l_m)); epistemic = H(p) − aleatoric, the
    mutual information of label and member, which is 0 where all agree.
    """
    logits = logits.float()
    log_probs = _log_mean(logits)
    aleatoric = entropy_of_logits(logits).mean(0)
    # Rounding may push a difference of equal entropies below zero.
    epistemic = (entropy_of_logits(log_probs) - aleatoric).clamp_min(0)
    return Prediction(log_probs.exp(), aleatoric, epistemic)


def nll_of_average(logits: Tensor, y: Tensor) -> Tensor:
    """−log of the mean probability of the true class, (batch,), from (members, batch, classes)."""
    return -_log_mean(logits.float()).gather(-1, y[:, None]).squeeze(-1)


def _log_mean(logits: Tensor) -> Tensor:
    """log 1/M Σ softmax(l_m), finite where a mean probability is."""
    return logits.log_softmax(-1).logsumexp(0) - math.log(len(logits))
