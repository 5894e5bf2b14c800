"""How often labels are wrong: a bound that decides what is answered, and an estimate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from density_softmax.decide.conformal import Bools, Floats, GuaranteeError, Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The share of samples that chooses the thresholds to test and is not tested on.
ORDERING = 0.1
MOST_THRESHOLDS = 100
# The most cautious threshold answers so many that this many errors among them still pass, if
# that is at most half of the samples; else as many as pass without an error, and some more.
STARTING_ERRORS, SOME_MORE = 4, 1.15


@final
@dataclass(frozen=True)
class Curve:
    """Risk against coverage: how often answers are wrong if only confident inputs are answered.

    Args:
        thresholds: of the confidence, from the most cautious to the least.
        answered: how many samples have at least that confidence.
        errors: how many of these are labelled wrongly.
        total: how many samples there are, those that are unknown included.
        confidence: of each bound, taken by itself.
    """

    thresholds: Floats
    answered: Ints
    errors: Ints
    total: int
    confidence: float

    @classmethod
    def of(
        cls, thresholds: Floats, scores: Floats, wrong: Bools, total: int, confidence: float
    ) -> Curve:
        """Of labelled samples.

        Args:
            thresholds: descending.
            scores: the confidence of each sample that may be answered, (n,).
            wrong: whether its likeliest label is wrong, (n,).
            total: n, and those that may not be answered.
            confidence: of each bound.
        """
        order = np.argsort(-scores, kind="stable")
        answered = np.searchsorted(-scores[order], -thresholds, side="right")
        errors = np.append(0, np.cumsum(wrong[order]))[answered]
        return cls(thresholds, answered.astype(np.int64), errors, total, confidence)

    @property
    def coverage(self) -> Floats:
        """The share of samples that is answered."""
        return self.answered / max(self.total, 1)

    @property
    def risk(self) -> Floats:
        """The share of errors among the answered; NaN where nothing is."""
        return np.where(self.answered, self.errors / np.maximum(self.answered, 1), np.nan)

    @property
    def lower(self) -> Floats:
        """The lower bound of the risk."""
        return lower_bound(self.errors, self.answered, self.confidence)

    @property
    def upper(self) -> Floats:
        """The upper bound of the risk."""
        return upper_bound(self.errors, self.answered, self.confidence)

    def draw(self, target: str | Path | Axes) -> None:
        """Draw risk and bounds against coverage.

        Args:
            target: a file to write, such as curve.svg, or axes of matplotlib.
        """
        if not isinstance(target, (str, Path)):
            return self._draw(target)
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.2, 2.8), layout="constrained")
        self._draw(figure.add_subplot())
        figure.savefig(target)
        return None

    def _draw(self, axes: Axes) -> None:
        x = 100 * self.coverage
        axes.fill_between(x, 100 * self.lower, 100 * self.upper, color="#c9dcea", linewidth=0)
        axes.plot(x, 100 * self.risk, color="#0072b2")
        axes.set(xlabel="answered, % of all inputs", ylabel="wrong, % of answers", xlim=(0, 100))
        axes.set_ylim(bottom=0)


@final
@dataclass(frozen=True)
class Abstention:
    """Answer where the confidence reaches a threshold.

    Args:
        threshold: of the confidence.
        max_error: the bound on P(wrong | answered).
        confidence: the probability, over calibration samples, that the bound holds.
        curve: of the samples that were tested on.
        chosen: the index of the threshold in the curve.
    """

    threshold: float
    max_error: float
    confidence: float
    curve: Curve
    chosen: int

    @classmethod
    def of(
        cls,
        scores: Floats,
        wrong: Bools,
        max_error: float,
        confidence: float,
        *,
        unknown: int = 0,
        seed: int = 0,
    ) -> Abstention:
        """The threshold that answers most among those whose error is shown to be small.

        Learn then test (Angelopoulos et al. 2021) with a fixed sequence: thresholds are tested
        from the most to the least cautious, each at the full level, until one fails. Given how
        many samples a threshold answers, the number of errors among them is binomial, so that
        the test is exact. A part of the samples fixes the sequence and is not tested on.

        Args:
            scores: the confidence of each sample that may be answered, (n,).
            wrong: whether its likeliest label is wrong, (n,).
            max_error: the bound on P(wrong | answered).
            confidence: the probability with which it is to hold.
            unknown: samples that may not be answered, besides the n; they count for coverage.
            seed: decides which samples fix the sequence.
        """
        if len(scores) < 2:
            raise GuaranteeError(f"max_error={max_error:g}: nearly all samples are unknown")
        samples = scores, wrong, unknown, seed
        curve, passed = _tested(*samples, max_error, confidence)
        if passed == 0:
            raise GuaranteeError(_what_would_do(*samples, max_error, confidence))
        threshold = float(curve.thresholds[passed - 1])
        return cls(threshold, max_error, confidence, curve, passed - 1)

    @property
    def coverage(self) -> float:
        """The share of calibration samples that is answered."""
        return float(self.curve.coverage[self.chosen])


class Estimate(NamedTuple):
    """A number and the interval that holds the true one with probability 0.95."""

    value: float
    low: float
    high: float


@final
@dataclass(frozen=True)
class Reliability:
    """How confidences tell the accuracy, from labelled calibration samples.

    Two estimates are made of the accuracy on other inputs: the mean of their confidences, and the
    share of them that reach a threshold, which as many calibration samples reach as are right
    (average thresholded confidence, Garg et al., ICLR 2022). On inputs drawn like the samples both
    are exact but for noise. Under a shift the first is mostly too high, and the second too low if
    confidences fall with the density; the estimate is their mean, and its interval holds both.

    Args:
        accuracy: the share of the samples' labels that are right.
        threshold: of the confidence.
        mean_gap: mean confidence of the samples − accuracy.
        share_gap: share of them that reach the threshold − accuracy; 0 unless confidences are tied.
        error: the standard error of the mean of both gaps.
    """

    accuracy: float
    threshold: float
    mean_gap: float
    share_gap: float
    error: float

    @classmethod
    def of(cls, confidence: Floats, right: Bools) -> Reliability:
        """Of calibration samples.

        Args:
            confidence: probabilities of the likeliest classes, (n,).
            right: whether these are the true ones, (n,).
        """
        # If none is right, no confidence reaches the threshold.
        threshold = float(np.append(2.0, np.sort(confidence)[::-1])[right.sum()])
        gaps = np.stack([confidence, confidence >= threshold]) - right
        error = gaps.mean(0).std(ddof=1) / len(right) ** 0.5
        return cls(float(right.mean()), threshold, *map(float, (*gaps.mean(1), error)))

    def sums(self, confidence: Floats) -> Floats:
        """What is kept of inputs: their number, Σ c, how many reach the threshold, Σ c (1 − c).

        Args:
            confidence: c, (rows,).
        """
        reached = float((confidence >= self.threshold).sum())
        variance = (confidence * (1 - confidence)).sum()
        return np.array([len(confidence), confidence.sum(), reached, variance], np.float64)

    def estimates(self, sums: Floats) -> tuple[float, float]:
        """By the mean of confidences, and by the share of them that reach the threshold.

        Args:
            sums: of `sums`, of at least one input.
        """
        count, sure, reached, _ = sums.tolist()
        return sure / count - self.mean_gap, reached / count - self.share_gap

    def estimate(self, sums: Floats) -> Estimate:
        """The accuracy of inputs.

        Args:
            sums: of `sums`, added up over any number of inputs.
        """
        count, _, _, variance = sums.tolist()
        if not count:
            return Estimate(self.accuracy, 0.0, 1.0)
        mean, share = self.estimates(sums)
        noise = NormalDist().inv_cdf(0.975) * math.hypot(math.sqrt(variance) / count, self.error)
        value, width = (mean + share) / 2, abs(mean - share) / 2 + noise
        return Estimate(*(min(max(x, 0.0), 1.0) for x in (value, value - width, value + width)))


def upper_bound(errors: Ints, answered: Ints, confidence: float) -> Floats:
    """Clopper and Pearson's upper bound of a share, which holds with `confidence`; 1 of none.

    Args:
        errors: how many are wrong.
        answered: of how many.
        confidence: between 0 and 1.
    """
    from scipy.special import betaincinv

    right = np.asarray(answered - errors, np.float64)
    found = betaincinv(np.asarray(errors) + 1.0, np.maximum(right, 0.5), confidence)
    return np.where(right > 0, found, 1.0)


def lower_bound(errors: Ints, answered: Ints, confidence: float) -> Floats:
    """Clopper and Pearson's lower bound of a share, which holds with `confidence`; 0 of none.

    Args:
        errors: how many are wrong.
        answered: of how many.
        confidence: between 0 and 1.
    """
    return 1.0 - upper_bound(answered - errors, answered, confidence)


def samples_for(errors: float, max_error: float, confidence: float) -> int:
    """How many answers pass the test with so many errors among them.

    Args:
        errors: the number of errors.
        max_error: the bound to show.
        confidence: with which to show it.
    """
    from scipy.special import gammaincinv

    # The bound by Poisson's distribution is close, and larger.
    return math.ceil(gammaincinv(errors + 1.0, confidence) / max_error)


def _tested(
    scores: Floats, wrong: Bools, unknown: int, seed: int, max_error: float, confidence: float
) -> tuple[Curve, int]:
    """The curve of the samples that are tested on, and how many of its thresholds pass."""
    order = np.random.default_rng(seed).permutation(len(scores))
    cut = math.ceil(ORDERING * len(scores))
    tested = order[cut:]
    fewest = SOME_MORE * samples_for(0, max_error, confidence)
    start = min(samples_for(STARTING_ERRORS, max_error, confidence), max(fewest, len(tested) / 2))
    levels = np.linspace(max(1 - start / max(len(tested), 1), 0.0), 0.0, MOST_THRESHOLDS)
    thresholds = np.quantile(scores[order[:cut]], levels) if cut else np.zeros(0)
    thresholds = np.unique(np.append(thresholds, 0.0))[::-1]
    total = len(tested) + round(unknown * len(tested) / max(len(scores), 1))
    curve = Curve.of(thresholds, scores[tested], wrong[tested], total, confidence)
    return curve, int(np.argmax(np.append(curve.upper > max_error, True)))


def _what_would_do(
    scores: Floats, wrong: Bools, unknown: int, seed: int, max_error: float, confidence: float
) -> str:
    """What the samples do support, and how many more would support what was asked for."""
    total = len(scores) + unknown
    said = f"max_error={max_error:g} cannot be guaranteed at confidence={confidence:g} with {total}"
    low, high = max_error, 1.0
    for _ in range(12):
        middle = math.sqrt(low * high)
        passes = _tested(scores, wrong, unknown, seed, middle, confidence)[1] > 0
        low, high = (low, middle) if passes else (middle, high)
    said = f"{said} samples, which support max_error={math.ceil(1e4 * high) / 1e4:g}"
    needed = _needed(scores, wrong, max_error, confidence)
    if needed is None:
        return f"{said}; more of them will hardly help, a better model would"
    # A part of them chooses thresholds, and there were too few.
    needed = max(math.ceil(needed * total / len(scores) / (1 - ORDERING)), math.ceil(1.2 * total))
    return f"{said}; at least {needed} would be needed"


def _needed(scores: Floats, wrong: Bools, max_error: float, confidence: float) -> int | None:
    """How many samples pass at the best threshold if errors stay as rare; None if none do."""
    order = np.argsort(-scores, kind="stable")
    found = []
    for share in np.linspace(0.1, 1.0, 19):
        answered = math.ceil(share * len(order))
        rate = wrong[order[:answered]].mean()
        answers = samples_for(0, max_error, confidence)
        while (
            rate < 0.9 * max_error and samples_for(answers * rate, max_error, confidence) > answers
        ):
            answers = math.ceil(1.1 * answers)
        found += [math.ceil(answers / share)] * bool(rate < 0.9 * max_error)
    return min(found, default=None)
