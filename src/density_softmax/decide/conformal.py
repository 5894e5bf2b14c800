"""Conformal prediction: label scores, quantiles and p-values that are exact for finite samples.

Everything here is split conformal: it compares a new input with n calibration samples that fitted
nothing else, and holds if the new input and the samples are exchangeable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from density_softmax.errors import UserError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

# Up to so many calibration scores are kept as they are; of more, as many quantiles.
MOST_KNOTS = 2000
# Rates of false alarms for which texts show thresholds.
RATES = (0.01, 0.05, 0.1)


class GuaranteeError(UserError):
    """What was asked for cannot be guaranteed with these data; the message says what can."""


@final
@dataclass(frozen=True)
class LabelScore:
    """How badly a label fits an input, from its probabilities: higher = worse.

    - `lac`: 1 − p(y), the smallest sets on average (Sadinle et al. 2019).
    - `aps`: the probability of all labels at least as likely as y, larger sets where an input is
      hard (Romano et al. 2020).
    - `raps`: aps + penalty · max(0, rank(y) − free_ranks), which avoids very large sets
      (Angelopoulos et al. 2021).

    Args:
        kind: one of these.
        randomised: count only a random share of p(y) itself in aps and raps. Sets become smaller
            and their coverage exact. The share is a hash of the probabilities, so that the same
            ones get the same set every time. Without it, a confident model's scores are nearly
            all 1, and its sets hold most labels.
        penalty: of raps, per rank.
        free_ranks: of raps, labels without a penalty.
    """

    kind: Literal["lac", "aps", "raps"] = "lac"
    randomised: bool = False
    penalty: float = 0.01
    free_ranks: int = 5

    def __post_init__(self) -> None:
        if self.kind not in ("lac", "aps", "raps"):
            raise UserError(f"score '{self.kind}': choose lac, aps or raps")

    def __call__(self, probs: Floats, shares: Floats | None = None) -> Floats:
        """The score of every label, (rows, classes).

        Args:
            probs: class probabilities, (rows, classes).
            shares: of p(y) that is counted by a randomised score, (rows,); a hash if None.
        """
        if self.kind == "lac":
            return 1.0 - probs
        order = np.argsort(-probs, axis=1, kind="stable")
        ranked = np.take_along_axis(probs, order, axis=1)
        scores = np.cumsum(ranked, axis=1)
        if self.randomised:
            shares = hashed_uniforms(probs) if shares is None else shares
            scores -= (1.0 - shares)[:, None] * ranked
        if self.kind == "raps":
            excess = np.arange(1, probs.shape[1] + 1) - self.free_ranks
            scores += self.penalty * np.maximum(excess, 0)
        found = np.empty_like(scores)
        np.put_along_axis(found, order, scores, axis=1)
        return found


def hashed_uniforms(rows: Floats) -> Floats:
    """A number in [0, 1) for each row that depends on its values alone, (rows,).

    Args:
        rows: any numbers, (rows, columns).
    """
    found = np.full(len(rows), 0x9E3779B97F4A7C15, np.uint64)
    bits = np.ascontiguousarray(rows, np.float64).view(np.uint64)
    for column in range(rows.shape[1]):  # the finaliser of splitmix64, once per column
        found ^= bits[:, column]
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found ^= found >> np.uint64(31)
    return (found >> np.uint64(11)).astype(np.float64) / 2.0**53


def conformal_quantile(scores: Floats, coverage: float) -> float:
    """The ⌈(n + 1) · coverage⌉-th smallest score, which a new one exceeds with 1 − coverage.

    Args:
        scores: of the calibration samples, (n,).
        coverage: between 0 and 1.

    Returns:
        Infinity if that rank exceeds n: then only everything covers so often.
    """
    rank = _ceil((len(scores) + 1) * coverage)
    return math.inf if rank > len(scores) else float(np.partition(scores, rank - 1)[rank - 1])


def smallest_sample(rate: float) -> int:
    """How many calibration samples a rate of errors or alarms needs: 1/(n + 1) ≤ rate.

    Args:
        rate: between 0 and 1.
    """
    return _ceil(1 / rate) - 1


@final
@dataclass(frozen=True)
class Quantiles:
    """The thresholds of label scores: one for all classes, or one for each.

    Args:
        values: (1,) or (classes,).
        counts: of calibration samples behind each.
    """

    values: Floats
    counts: Ints

    @classmethod
    def of(cls, scores: Floats, coverage: float, labels: Ints | None, classes: int) -> Quantiles:
        """Of calibration scores.

        Args:
            scores: of the true labels, (n,).
            coverage: share of true labels to cover.
            labels: for thresholds of each class, (n,); None for one threshold.
            classes: how many there are.
        """
        groups = [scores] if labels is None else [scores[labels == c] for c in range(classes)]
        values = [conformal_quantile(group, coverage) for group in groups]
        return cls(np.array(values), np.array([len(group) for group in groups]))

    def thresholds(self, weights: Floats | None) -> Floats:
        """The largest score that is in a set, (1, 1) or (1, classes)."""
        return self.values[None]


@final
@dataclass(frozen=True)
class WeightedQuantile:
    """The threshold of label scores under a known shift of the inputs (Tibshirani et al. 2019).

    Of the distribution Σ wᵢ δ(sᵢ) + w(x) δ(∞), divided by its mass, the quantile of `coverage`.

    Args:
        coverage: share of true labels to cover.
        scores: ascending, at most `MOST_KNOTS` of them.
        cumulative: weight of all calibration samples up to each of them.
        total: weight of all calibration samples.
        count: how many there were.
        effective: (Σ w)² / Σ w², as many equally weighted samples would tell as much.
    """

    coverage: float
    scores: Floats
    cumulative: Floats
    total: float
    count: int
    effective: float

    @classmethod
    def of(cls, scores: Floats, weights: Floats, coverage: float) -> WeightedQuantile:
        """Of calibration scores.

        Args:
            scores: of the true labels, (n,).
            weights: density of the target inputs over that of the calibration inputs, (n,).
            coverage: share of true labels to cover.
        """
        order = np.argsort(scores, kind="stable")
        cumulative = np.cumsum(weights[order])
        # Of the knots the first that reaches a level is at or behind the one of all scores.
        kept = _even(len(order), MOST_KNOTS)
        effective = float(weights.sum() ** 2 / np.square(weights).sum())
        found = scores[order][kept], cumulative[kept], float(cumulative[-1])
        return cls(coverage, *found, len(scores), effective)

    def thresholds(self, weights: Floats | None) -> Floats:
        """The largest score that is in a set, (rows, 1).

        Args:
            weights: of the new inputs, (rows,).
        """
        if weights is None:
            raise UserError("this policy is for shifted inputs: pass weights= or features=")
        levels = self.coverage * (self.total + weights)
        index = np.searchsorted(self.cumulative, levels * (1 - 1e-12))
        return np.append(self.scores, math.inf)[index][:, None]


@final
@dataclass(frozen=True)
class ConformalSets:
    """Sets of labels that hold the true one with a given probability.

    Args:
        score: of a label.
        coverage: probability that the true label is in the set.
        quantiles: the thresholds of the score.
    """

    score: LabelScore
    coverage: float
    quantiles: Quantiles | WeightedQuantile

    def __call__(self, probs: Floats, weights: Floats | None = None) -> Bools:
        """The labels whose score is within the threshold, (rows, classes).

        Args:
            probs: class probabilities, (rows, classes).
            weights: of the rows, (rows,), if the calibration samples were weighted.
        """
        return np.asarray(self.score(probs) <= self.quantiles.thresholds(weights))

    def helpful(self, probs: Floats, weights: Floats | None = None) -> Bools:
        """The sets, in which an empty one is replaced by one that says how little is known.

        No label of such an input is as likely as true labels are. It gets the likeliest labels
        that together have a probability of `coverage`, which are nearly all if the probabilities
        are uniform. Sets only grow by this.
        """
        sets = self(probs, weights)
        empty = ~sets.any(axis=1)
        ranked = -np.sort(-probs[empty], axis=1)
        needed = np.cumsum(ranked, axis=1) - ranked < self.coverage - 1e-9
        least = np.where(needed, ranked, 2.0).min(axis=1, keepdims=True)
        sets[empty] = probs[empty] >= least  # equal probabilities are treated alike
        return sets

    @property
    def note(self) -> str:
        """What to know about the thresholds; empty if nothing."""
        if isinstance(self.quantiles, WeightedQuantile):
            found = self.quantiles
            return f"{found.count} weighted samples count as {found.effective:.0f}"
        few = ~np.isfinite(self.quantiles.values)
        if not few.any():
            return ""
        needed = smallest_sample(1 - self.coverage)
        if len(few) == 1:
            return f"every set holds all labels: this coverage needs {needed} samples"
        return f"{few.sum()} classes are in every set: each needs {needed} samples of its own"


@final
@dataclass(frozen=True)
class Ranks:
    """How scores rank among those of n calibration samples.

    Args:
        count: n.
        values: distinct calibration scores, ascending: all of them, or `MOST_KNOTS`.
        above: how many calibration scores are larger than each.
    """

    count: int
    values: Floats
    above: Ints

    @classmethod
    def of(cls, scores: Floats, most: int = MOST_KNOTS) -> Ranks:
        """Of calibration scores.

        Args:
            scores: (n,), without NaN.
            most: how many distinct ones to keep.
        """
        values, equal = np.unique(scores, return_counts=True)
        above = len(scores) - np.cumsum(equal)
        # The largest scores decide about rare alarms: half of the knots are theirs.
        tail = max(len(values) - most // 2, 0)
        kept = np.append(_even(tail, most - most // 2), np.arange(tail, len(values)))
        return cls(len(scores), values[kept], above[kept])

    def p_values(self, scores: Floats) -> Floats:
        """(1 + #{calibration ≥ score}) / (n + 1), (rows,).

        At most a share ε of exchangeable inputs has a p-value of at most ε. Where only some
        scores were kept, p-values are rounded up, which keeps that.

        Args:
            scores: (rows,); infinite ones are larger than all finite ones.
        """
        index = np.searchsorted(self.values, scores, side="left")
        at_least = np.append(self.count, self.above)[index]
        return (1.0 + at_least) / (self.count + 1.0)

    def threshold(self, rate: float) -> float:
        """The score that just those exceed whose p-value is at most `rate`; infinite if none can.

        Args:
            rate: between 0 and 1.
        """
        rare = self.above + 1 <= rate * (self.count + 1) * (1 + 1e-9)
        return float(self.values[rare][0]) if rare.any() else math.inf

    @property
    def thresholds(self) -> dict[float, float]:
        """For some rates."""
        return {rate: self.threshold(rate) for rate in RATES}

    def check_rate(self, rate: float) -> None:
        """Refuse a rate of false alarms that so few samples cannot tell from none."""
        if not 0 < rate < 1:
            raise UserError(f"false_alarms={rate:g}: choose a share between 0 and 1, such as 0.05")
        if self.count < (needed := smallest_sample(rate)):
            raise GuaranteeError(
                f"false_alarms={rate:g} needs {needed} calibration samples, there are "
                f"{self.count}: pass more, or a rate of at least {1 / (self.count + 1):.4g}"
            )


def _ceil(value: float) -> int:
    """Rounded up, unless it is an integer but for the rounding of floats: 20 · .95 is 19."""
    return math.ceil(value - 1e-9 * max(1.0, value))


def _even(count: int, most: int) -> Ints:
    """At most so many of the indices below a count, evenly spread, with the last."""
    return np.unique(np.linspace(count - 1, 0, min(count, most)).round().astype(np.int64))
