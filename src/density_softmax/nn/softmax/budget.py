"""What a loss of confidence costs in-domain, judged on samples that fitted nothing before."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from density_softmax.nn.softmax.head import fit_temperature, nll_of_samples
from density_softmax.training import folds

# In how many parts the held-out samples judge a decay, each by constants of the other parts.
FOLDS = 5
# By how many standard errors a cost must be below the budget, so that it is on fresh samples too.
STANDARD_ERRORS = 2.0


def all_rows(y: Tensor) -> Tensor:
    """The indices of all samples.

    Args:
        y: the classes, (samples,).
    """
    return torch.arange(len(y), device=y.device)


def cross_scaled(logits: Tensor, y: Tensor) -> Tensor:
    """The logits at temperatures that were each fitted to other samples, (samples, classes).

    Args:
        logits: at temperature 1, (samples, classes).
        y: the true classes, (samples,).
    """
    scaled = logits.double().clone()  # of float64 logits, double() is no copy
    for inside, outside in folds(len(y), FOLDS, device=y.device):
        scaled[outside] /= fit_temperature(logits[inside], y[inside])
    return scaled


def sharpest_decay(
    stretched: Tensor, scaled: Tensor, y: Tensor, budget: float, largest: float
) -> float:
    """The largest c for which the factor exp(−c t) is affordable.

    A scan finds the last affordable value, because the NLL may fall before it rises; bisection
    then refines it.

    Args:
        stretched: t, (samples,).
        scaled: the logits that the factors multiply, (samples, classes).
        y: the true classes, (samples,).
        budget: the share of the NLL at c = 0 that may be given up.
        largest: the largest c.
    """
    before = nll_of_samples(scaled, y)

    def affordable(decay: float) -> bool:
        factor = torch.exp(-decay * stretched)[:, None]
        cost = nll_of_samples(factor * scaled, y) - before
        error = cost.std(correction=0) / math.sqrt(len(cost))
        return bool(cost.mean() + STANDARD_ERRORS * error <= budget * before.mean())

    # Never 0: one far outlier in the data must not cost the limit far away.
    grid = [1e-12, *(largest * 10 ** (-exponent / 4) for exponent in range(16, -1, -1))]
    last = max((i for i, decay in enumerate(grid) if affordable(decay)), default=0)
    if last == len(grid) - 1:
        return grid[-1]
    low, high = grid[last], grid[last + 1]
    for _ in range(20):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if affordable(middle) else (low, middle)
    return low
