"""What a policy reads of a prediction, and what it says of each row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from density_softmax.decide.conformal import Bools, Floats, Ints
from density_softmax.errors import UserError

NOT_FINITE = "the input or its prediction is not finite"
UNLIKE = "unlike the calibration data"
ACTIONS = ("answer", "abstain", "unknown")
ROWS_AT_ONCE = 256  # of inputs that are predicted here


class Scores(NamedTuple):
    """What is read of a prediction, in double precision.

    Attributes:
        probs: class probabilities, (rows, classes); uniform in rows that are not finite.
        epistemic: how little is known about the input, (rows,); infinite in such rows.
        finite: the other rows, (rows,).
    """

    probs: Floats
    epistemic: Floats
    finite: Bools

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
        return cls(probs, np.where(finite, epistemic, np.inf), finite)

    @classmethod
    def join(cls, parts: list[Scores]) -> Scores:
        """Those of several batches as one."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def rows(self, chosen: NDArray[Any]) -> Scores:
        """Some of the rows."""
        return Scores(*(column[chosen] for column in self))

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
        return {"epistemic": self.epistemic, "confidence": doubt}

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
    parts, labels = [], []
    for x, y in [_pair(data)] if model is None else _batches(data):
        parts.append(Scores.of(x if model is None else model.predict(x)))
        labels.append(as_floats(y).reshape(-1))
        if len(labels[-1]) != len(parts[-1].finite):
            rows = len(parts[-1].finite)
            raise UserError(f"{len(labels[-1])} labels for {rows} rows: pass a label for each")
    if not parts:
        raise UserError("no data: pass labelled samples that fitted nothing")
    scores = Scores.join(parts)
    return scores, _checked_labels(np.concatenate(labels), scores.probs.shape[1])


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
class Decision:
    """What to do with each row of a batch.

    Args:
        action: `answer`, `abstain` or `unknown`, (rows,).
        labels: the likeliest class, (rows,); −1 in rows that are not finite.
        sets: which labels are in the set, (rows, classes); None if the policy has no sets.
        p_value: share of calibration samples that are at least as unusual, (rows,).
        confidence: probability of the label, (rows,).
        reason: why a row is not answered, (rows,); empty if it is.
        class_names: of the columns of `sets`.
    """

    action: NDArray[np.str_]
    labels: Ints
    sets: Bools | None
    p_value: Floats
    confidence: Floats
    reason: NDArray[np.str_]
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.action)

    def __repr__(self) -> str:
        counts = Counter(self.action.tolist())
        said = [f"{counts[action]} {action}" for action in ACTIONS if counts[action]]
        if self.sets is not None and len(self):
            said.append(f"{self.sets.sum(1).mean():.2f} labels per set")
        return f"Decision({len(self)} rows: {', '.join(said) or 'none'})"

    @property
    def names(self) -> list[str]:
        """The name of each row's label; empty in rows that are not finite."""
        return ["" if label < 0 else self.class_names[label] for label in self.labels]

    @property
    def set_names(self) -> list[tuple[str, ...]]:
        """The names of the labels in each row's set."""
        if self.sets is None:
            raise UserError("this policy has no sets: fit it with coverage=, such as 0.95")
        return [tuple(self.class_names[i] for i in np.flatnonzero(row)) for row in self.sets]

    def to_pandas(self) -> Any:
        """A data frame with a line per row."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """For each row `action`, `label`, `confidence`, `p_value`, `set`, if any, and `reason`."""
        columns: dict[str, list[Any]] = {
            "action": self.action.tolist(),
            "label": self.names,
            "confidence": self.confidence.tolist(),
            "p_value": self.p_value.tolist(),
            **({} if self.sets is None else {"set": self.set_names}),
            "reason": self.reason.tolist(),
        }
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
