"""What calibration samples guarantee: the parts of a policy, and which samples each may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import numpy as np

from density_softmax.decide.conformal import (
    Bools,
    ConformalSets,
    Floats,
    Ints,
    LabelScore,
    Quantiles,
    Ranks,
    WeightedQuantile,
)
from density_softmax.decide.decision import Scores
from density_softmax.decide.risk import Abstention
from density_softmax.errors import UserError


@final
@dataclass(frozen=True)
class Settings:
    """What a policy is asked to guarantee; the arguments of `Policy.fit` of the same names."""

    coverage: float | None = None
    max_error: float | None = None
    confidence: float = 0.95
    false_alarms: float | None = None
    score: Literal["lac", "aps", "raps"] = "lac"
    classwise: bool = False
    randomised: bool = True
    sets_for: Literal["all", "answered"] = "all"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("coverage", "max_error", "confidence", "false_alarms"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise UserError(f"{name}={value}: choose a share between 0 and 1, such as 0.05")
        if self.sets_for not in ("all", "answered"):
            raise UserError(f"sets_for='{self.sets_for}': choose all or answered")

    def check_shift(self) -> None:
        """Refuse what would not hold for weighted samples."""
        if self.coverage is None:
            raise UserError("target data weight the samples of the sets: pass coverage= as well")
        void = {
            "max_error": self.max_error is not None,
            "classwise": self.classwise,
            "sets_for='answered'": self.sets_for == "answered",
        }
        for name in (name for name, wanted in void.items() if wanted):
            raise UserError(
                f"{name} with target data: only sets for all inputs are weighted, this would not "
                "hold under the shift; fit it with labelled target data instead"
            )


class Reliability(NamedTuple):
    """How confidences compare with accuracy on the calibration samples.

    Attributes:
        accuracy: the share of labels that are right.
        gap: mean confidence − accuracy.
        error: the standard error of the gap.
    """

    accuracy: float
    gap: float
    error: float

    @classmethod
    def of(cls, scores: Scores, labels: Ints) -> Reliability:
        """Of calibration samples."""
        right = scores.labels == labels
        gaps = scores.confidence - right
        error = gaps.std(ddof=1) / len(gaps) ** 0.5
        return cls(float(right.mean()), float(gaps.mean()), float(error))


class Parts(NamedTuple):
    """The fitted parts of a policy, and how many samples each had."""

    typical: Ranks
    sets: ConformalSets | None
    abstention: Abstention | None
    samples: dict[str, int]

    @classmethod
    def of(cls, settings: Settings, scores: Scores, labels: Ints) -> Parts:
        """Of finite calibration samples.

        Every guarantee is about one new input, so all parts may use the same samples. Sets for
        answered inputs are the exception: what is answered was chosen by labels, so that the
        samples that they are fitted on must be others.

        Args:
            settings: what to guarantee.
            scores: of the samples.
            labels: their true classes, (n,).
        """
        typical = Ranks.of(scores.epistemic)
        known, samples = _known(settings, scores, typical), {}
        if settings.false_alarms is not None:
            samples["false_alarms"] = len(labels)
        tested, covered = known, np.arange(len(labels))
        if settings.sets_for == "answered":
            known = np.random.default_rng(settings.seed).permutation(known)
            tested, covered = known[::2], known[1::2]
        abstention = None
        if settings.max_error is not None:
            unknown = round((len(labels) - len(known)) * len(tested) / max(len(known), 1))
            abstention = _abstention(settings, scores.rows(tested), labels[tested], unknown)
            samples["max_error"] = len(tested)
            if settings.sets_for == "answered":
                covered = covered[scores.confidence[covered] >= abstention.threshold]
        sets = fitted_sets(settings, scores.rows(covered), labels[covered])
        if sets is not None:
            samples["coverage"] = len(covered)
        return cls(typical, sets, abstention, samples)


def _known(settings: Settings, scores: Scores, typical: Ranks) -> Ints:
    """The samples that are not unknown, without the most unusual of them.

    That one is the limit. Given the limit, the samples below it are independent samples of known
    inputs: they may be tested on as if the limit had been there before.
    """
    count = len(scores.epistemic)
    if settings.false_alarms is None:
        return np.arange(count)
    typical.check_rate(settings.false_alarms)
    flagged = is_unknown(typical.p_values(scores.epistemic), settings.false_alarms)
    known = np.flatnonzero(~flagged)
    return np.delete(known, scores.epistemic[known].argmax())


def _abstention(settings: Settings, scores: Scores, labels: Ints, unknown: int) -> Abstention:
    assert settings.max_error is not None
    return Abstention.of(
        scores.confidence,
        scores.labels != labels,
        settings.max_error,
        settings.confidence,
        unknown=unknown,
        seed=settings.seed,
    )


def fitted_sets(
    settings: Settings, scores: Scores, labels: Ints, weights: Floats | None = None
) -> ConformalSets | None:
    """Sets that cover the labels of such inputs; None if no coverage was asked for.

    Args:
        settings: what to guarantee.
        scores: of the calibration samples.
        labels: their true classes, (n,).
        weights: of the samples under a shift, (n,).
    """
    if settings.coverage is None:
        return None
    score = LabelScore(settings.score, settings.randomised)
    true = np.take_along_axis(score(scores.probs), labels[:, None], axis=1)[:, 0]
    if weights is not None:
        quantile = WeightedQuantile.of(true, weights, settings.coverage)
        return ConformalSets(score, settings.coverage, quantile)
    groups = labels if settings.classwise else None
    quantiles = Quantiles.of(true, settings.coverage, groups, scores.probs.shape[1])
    return ConformalSets(score, settings.coverage, quantiles)


def is_unknown(p_values: Floats, false_alarms: float | None) -> Bools:
    """Which p-values are at most the rate of false alarms, but for the rounding of floats.

    Args:
        p_values: (rows,).
        false_alarms: None flags nothing.
    """
    limit = -1.0 if false_alarms is None else false_alarms * (1 + 1e-9)
    return p_values <= limit
