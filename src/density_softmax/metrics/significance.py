"""Is a difference between two methods more than chance? A test over seeds that both have."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

__all__ = ["paired_t_test"]

# Differences that vary by less than this share of themselves vary by rounding alone.
_ROUNDING = 1e-9


def paired_t_test(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p-value of Student's paired t-test that a and b have the same mean.

    With differences d of mean m and sample variance s², t = m / √(s² / n) is compared with the
    t-distribution of n − 1 degrees of freedom. In the limit of differences that are all the same,
    p is 0, or 1 where they are 0.

    Args:
        a: values of one method, at least two.
        b: values of the other, of the same seeds in the same order.
    """
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
    from scipy.special import stdtr

    return float(2 * stdtr(len(d) - 1, -abs(t)))
