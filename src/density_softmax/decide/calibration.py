"""Calibration samples: what is read of their predictions, and what they guarantee."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

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
from density_softmax.decide.risk import Abstention
from density_softmax.errors import UserError

ROWS_AT_ONCE = 256  # of inputs that are predicted here
MOST_KNOWN = 0.05  # share of samples that the model was calibrated on


class Scores(NamedTuple):
    """What is read of a prediction, in double precision.

    Attributes:
        probs: class probabilities, (rows, classes); uniform in rows that are not finite.
        epistemic: how little is known about the input, (rows,); infinite in such rows.
        finite: the other rows, (rows,).
        contributions: of each expert to the epistemic score, (rows, experts).
        experts: their names; none if a prediction does not tell.
    """

    probs: Floats
    epistemic: Floats
    finite: Bools
    contributions: Floats
    experts: tuple[str, ...]

    @classmethod
    def of(cls, prediction: Any) -> Scores:
        """From a `Prediction` of tensors, or from anything with arrays of the same names.

        Args:
            prediction: has `probs`, (rows, classes), and `epistemic`, (rows,).
        """
        try:
            probs, epistemic = as_floats(prediction.probs), as_floats(prediction.epistemic)
        except AttributeError:
            raise UserError(
                f"a prediction has probs and epistemic, {type(prediction).__name__} has not: "
                "pass what predict returns"
            ) from None
        if probs.ndim != 2 or probs.shape[1] < 2 or epistemic.shape != probs.shape[:1]:
            raise UserError(
                f"probs of shape {probs.shape} and epistemic of shape {epistemic.shape}: "
                "(rows, classes) and (rows,) are needed"
            )
        finite = np.isfinite(probs).all(axis=1) & np.isfinite(epistemic)
        probs = np.where(finite[:, None], probs, 1 / probs.shape[1])
        if (probs < -1e-6).any() or (np.abs(probs.sum(axis=1) - 1) > 0.01).any():
            raise UserError("probs are no probabilities, whose rows sum to 1: pass a softmax")
        names, parts = getattr(prediction, "experts", ()), np.zeros((len(probs), 0))
        if names:
            parts = as_floats(prediction.contributions)
        parts = np.where(np.isfinite(parts) & finite[:, None], parts, np.inf)
        return cls(probs, np.where(finite, epistemic, np.inf), finite, parts, tuple(names))

    @classmethod
    def join(cls, parts: list[Scores]) -> Scores:
        """Those of several batches as one."""
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in cls._fields[:-1]
        }
        return parts[0]._replace(**columns)

    def rows(self, chosen: NDArray[Any]) -> Scores:
        """Some of the rows."""
        return self._replace(**{name: getattr(self, name)[chosen] for name in self._fields[:-1]})

    @property
    def labels(self) -> Ints:
        """The likeliest classes, (rows,)."""
        return self.probs.argmax(axis=1)

    @property
    def confidence(self) -> Floats:
        """Their probabilities, (rows,)."""
        return self.probs.max(axis=1)

    @property
    def watched(self) -> dict[str, Floats]:
        """The scores that a monitor watches, higher = more unusual; infinite if not finite."""
        doubt = np.where(self.finite, 1 - self.confidence, np.inf)
        experts = dict(zip(self.experts, self.contributions.T, strict=True))
        return {**experts, "epistemic": self.epistemic, "confidence": doubt}

    @property
    def features(self) -> Floats:
        """What a shift is measured by if nothing else is given: log odds and epistemic score."""
        sure = np.clip(self.confidence, 1e-12, 1 - 1e-12)
        return np.stack([np.log(sure / (1 - sure)), self.epistemic], axis=1)


def as_floats(values: Any) -> Floats:
    """A tensor of any device, or an array, as float64.

    Args:
        values: anything that numpy makes an array of.
    """
    if callable(detach := getattr(values, "detach", None)):
        values = detach().cpu()
    return np.asarray(values, np.float64)


def labelled(model: Any, data: Any) -> tuple[Scores, Ints]:
    """Predictions and labels of calibration data.

    Args:
        model: has `predict`; None if predictions are passed.
        data: a pair (inputs, labels) or batches of such pairs; (prediction, labels) without model.
    """
    parts, labels, digests = [], [], []
    known = getattr(model, "calibration", None)
    for x, y in [_pair(data)] if model is None else _batches(data):
        parts.append(Scores.of(x if model is None else model.predict(x)))
        digests += [] if known is None else [model.digests(x)]
        labels.append(as_floats(y).reshape(-1))
        if len(labels[-1]) != len(parts[-1].finite):
            rows = len(parts[-1].finite)
            raise UserError(f"{len(labels[-1])} labels for {rows} rows: pass a label for each")
    if not parts:
        raise UserError("no data: pass labelled samples that fitted nothing")
    if known is not None:
        _refuse_known(np.concatenate(digests), known)
    scores = Scores.join(parts)
    return scores, _checked_labels(np.concatenate(labels), scores.probs.shape[1])


def _refuse_known(digests: Ints, calibration: Any) -> None:
    """Refuse samples that set the temperature and scale of a model.

    Args:
        digests: of the samples, (n,).
        calibration: of the model; it knows all digests of its samples, or the smallest of them.
    """
    known = np.array(calibration.digests, np.int64)
    whole = len(known) == calibration.num_calibration
    looked = digests if whole or not len(known) else digests[digests <= known[-1]]
    if not len(looked) or not len(known):
        return
    _, counts = np.unique(digests, return_counts=True)
    repeated = counts[counts > 1].sum() / len(digests)  # which is no sign of a leak
    shared = np.isin(looked, known).mean()
    if shared - repeated > MOST_KNOWN:
        raise UserError(
            f"{shared:.0%} of the samples set temperature and scale of this model, too, which "
            "makes every promise too good: pass others, or attach(..., policy={'coverage': ...}), "
            "which divides the calibration data"
        )


def unlabelled(model: Any, data: Any) -> Scores:
    """Predictions of target data.

    Args:
        model: has `predict`; None if a prediction is passed.
        data: inputs; a prediction without model.
    """
    if model is None:
        return Scores.of(data)
    starts = range(0, len(data), ROWS_AT_ONCE)
    parts = [Scores.of(model.predict(data[start : start + ROWS_AT_ONCE])) for start in starts]
    if not parts:
        raise UserError("no target data: pass unlabelled inputs")
    return Scores.join(parts)


def _batches(data: Any) -> Iterator[tuple[Any, Any]]:
    """A pair in pieces that fit into memory, or the batches of a loader."""
    if not isinstance(data, tuple):
        yield from map(_pair, data)
        return
    x, y = _pair(data)
    for start in range(0, len(x), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        yield x[rows], y[rows]


def _pair(data: Any) -> tuple[Any, Any]:
    try:
        x, y = data
    except (TypeError, ValueError):
        raise UserError(
            "calibration data are a tuple (inputs, labels), batches of such tuples, or a tuple "
            "(prediction, labels) without a model"
        ) from None
    return x, y


def _checked_labels(labels: Floats, classes: int) -> Ints:
    wrong = (labels != np.floor(labels)) | (labels < 0) | (labels >= classes)
    if wrong.any():
        raise UserError(f"label {labels[wrong][0]:g}: labels are integers from 0 to {classes - 1}")
    return labels.astype(np.int64)


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

    @property
    def fixes_rate(self) -> bool:
        """Whether it is about inputs that are not unknown, and void at another rate of them."""
        sets = self.coverage is not None and self.sets_for == "answered"
        return sets or self.max_error is not None

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
