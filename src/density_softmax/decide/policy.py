"""A policy: from a prediction to an answer, an abstention or the statement that it is unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from density_softmax.decide.calibration import (
    Parts,
    Scores,
    Settings,
    as_floats,
    fitted_sets,
    is_unknown,
    labelled,
    unlabelled,
)
from density_softmax.decide.conformal import (
    Bools,
    ConformalSets,
    Floats,
    Ints,
    Ranks,
    WeightedQuantile,
)
from density_softmax.decide.martingale import Bag
from density_softmax.decide.risk import Abstention, Curve, Reliability
from density_softmax.decide.shift import DensityRatio, checked_weights
from density_softmax.errors import UserError
from density_softmax.files.cards import Card

NOT_FINITE = "the input or its prediction is not finite"
UNLIKE = "unlike the calibration data"
ACTIONS = ("answer", "abstain", "unknown")


@final
@dataclass(frozen=True)
class Decision:
    """What to do with each row of a batch.

    Args:
        action: `answer`, `abstain` or `unknown`, (rows,).
        labels: the likeliest class, (rows,); −1 in rows that are not finite.
        sets: which labels are in the set, (rows, classes); None if the policy has no sets.
        typicality: share of calibration samples that are at least as unusual, (rows,); a
            conformal p-value.
        confidence: probability of the label, (rows,).
        reason: why a row is not answered, (rows,); empty if it is.
        class_names: of the columns of `sets`.
    """

    action: NDArray[np.str_]
    labels: Ints
    sets: Bools | None
    typicality: Floats
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
        """For each row action, label, confidence, typicality, set (if any) and reason."""
        columns: dict[str, list[Any]] = {
            "action": self.action.tolist(),
            "label": self.names,
            "confidence": self.confidence.tolist(),
            "typicality": self.typicality.tolist(),
            **({} if self.sets is None else {"set": self.set_names}),
            "reason": self.reason.tolist(),
        }
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@final
@dataclass(frozen=True, repr=False)
class Policy(Card):
    """Decides what to do with each prediction. Make one with `Policy.fit`.

    One rule of precedence: a row is `unknown` if it is not finite or its typicality is at most
    `false_alarms`; else `abstain` if its confidence is below the threshold of `max_error`; else
    `answer`. Only the parts that were asked for take part.

    Args:
        settings: what is guaranteed.
        class_names: of the columns of `probs`.
        typical: the epistemic scores of the calibration samples.
        bags: epistemic scores, 1 − confidence and the experts' contributions of the calibration
            samples, for a monitor.
        reliability: how their confidences tell the accuracy.
        samples: how many each part was fitted on, and how many were not finite.
        sets: if `coverage` was asked for.
        abstention: if `max_error` was asked for.
        shift: the weights of inputs, if target data were passed.
    """

    format = "density-softmax policy, version 3"
    remedy = "fit and save it again"

    settings: Settings
    class_names: tuple[str, ...]
    typical: Ranks
    bags: Mapping[str, Bag]
    reliability: Reliability
    samples: Mapping[str, int] = field(default_factory=dict)
    sets: ConformalSets | None = None
    abstention: Abstention | None = None
    shift: DensityRatio | None = None

    @classmethod
    def fit(
        cls,
        model: Any,
        data: Any,
        *,
        coverage: float | None = None,
        max_error: float | None = None,
        confidence: float = 0.95,
        false_alarms: float | None = None,
        score: Literal["lac", "aps", "raps"] = "lac",
        classwise: bool = False,
        randomised: bool = True,
        sets_for: Literal["all", "answered"] = "all",
        target: Any = None,
        weights: Literal["classifier", "density"] | Callable[[Any], Any] | Any = "classifier",
        features: Any = None,
        class_names: Sequence[str] | None = None,
        seed: int = 0,
    ) -> Policy:
        """Calibrate a policy on labelled samples that fitted nothing.

        Samples that trained the model, or set its temperature or scale, make a policy optimistic.
        Each guarantee is for new inputs that are exchangeable with the samples, and each holds by
        itself, which lets all of them use the same samples.

        Args:
            model: anything with `predict`, such as a method or a `Predictor`; None if data are
                predictions.
            data: a pair (inputs, labels), or batches of such pairs; without model, a pair
                (prediction, labels).
            coverage: probability that a set of labels holds the true one.
            max_error: largest share of wrong labels among answered inputs.
            confidence: probability, over samples, that `max_error` holds.
            false_alarms: share of inputs drawn like the calibration data that may be called
                unknown.
            score: of labels in sets: `lac` makes the smallest, `aps` and `raps` adapt their size.
            classwise: cover every class with probability `coverage`, not only all together.
            randomised: of aps and raps: smaller sets with exact coverage. The same probabilities
                get the same set. Without it, sets of a confident model hold most labels.
            sets_for: `all` covers inputs on average, whatever is done with them; `answered`
                covers the answered ones, and uses one half of the samples for that and the other
                for `max_error`.
            target: unlabelled data of a shifted world, for whose inputs sets are to cover: inputs,
                predictions without model, or features (m, d) if `features` are passed.
            weights: how calibration samples are weighted then: by a `classifier` that tells them
                from the target data, by the ratio of a `density` of each, by a function of
                features, or by numbers (n,), in which case decisions need weights, too.
            features: of the calibration samples, (n, d); by default confidence and epistemic score.
            class_names: by default those of the model, or numbers.
            seed: decides which samples go where.
        """
        limits = coverage, max_error, confidence, false_alarms
        settings = Settings(*limits, score, classwise, randomised, sets_for, seed)
        scores, labels = labelled(model, data)
        names = class_names or getattr(model, "class_names", None) or range(scores.probs.shape[1])
        policy = cls._fitted(settings, tuple(map(str, names)), scores, labels)
        if target is None and isinstance(weights, str):
            return policy
        settings.check_shift()
        return policy._weighted(scores, labels, model, target, weights, features)

    @classmethod
    def _fitted(
        cls, settings: Settings, class_names: tuple[str, ...], scores: Scores, labels: Ints
    ) -> Policy:
        """The parts that were asked for, without weights."""
        if len(class_names) != scores.probs.shape[1]:
            raise UserError(
                f"{len(class_names)} class names for {scores.probs.shape[1]} classes: pass as many"
            )
        finite, bags = scores.finite, {k: Bag.of(v) for k, v in scores.watched.items()}
        samples = {"samples": len(finite), "not finite": int((~finite).sum())}
        scores, labels = scores.rows(finite), labels[finite]
        if len(labels) < 2:
            raise UserError(f"{len(labels)} finite calibration samples: pass some hundreds")
        parts = Parts.of(settings, scores, labels)
        return cls(
            settings,
            class_names,
            typical=parts.typical,
            bags=bags,
            reliability=Reliability.of(scores.confidence, scores.labels == labels),
            samples={**samples, **parts.samples},
            sets=parts.sets,
            abstention=parts.abstention,
        )

    def _weighted(
        self, scores: Scores, labels: Ints, model: Any, target: Any, weights: Any, features: Any
    ) -> Policy:
        """The same policy with sets for the target data."""
        finite, coverage = scores.finite, self.settings.coverage
        assert coverage is not None
        source = scores.features if features is None else as_floats(features)
        ratio, numbers = None, weights
        if isinstance(weights, str):
            if weights not in ("classifier", "density"):
                raise UserError(f"weights='{weights}': choose classifier or density")
            goal = unlabelled(model, target) if features is None else None
            aim = as_floats(target) if goal is None else goal.features[goal.finite]
            ratio = DensityRatio.of(source[finite], aim, weights)  # type: ignore[arg-type]
            numbers = ratio
        given = numbers(source[finite]) if callable(numbers) else as_floats(numbers)
        if not callable(numbers) and len(given) == len(finite):
            given = given[finite]
        used = checked_weights(as_floats(given), int(finite.sum()), coverage)
        sets = fitted_sets(self.settings, scores.rows(finite), labels[finite], used)
        return replace(self, sets=sets, shift=ratio)

    def __call__(self, prediction: Any, *, weights: Any = None, features: Any = None) -> Decision:
        """Decide about each row of a prediction.

        Args:
            prediction: what `predict` returned: probs (rows, classes), epistemic (rows,).
            weights: of the rows, (rows,), if the policy was fitted with weights of its own.
            features: of the rows, (rows, d), if the policy was fitted with features.
        """
        scores = Scores.of(prediction)
        if scores.probs.shape[1] != len(self.class_names):
            raise UserError(
                f"{scores.probs.shape[1]} classes: the policy is for {len(self.class_names)}"
            )
        typicality = self.typical.p_values(scores.epistemic)
        rare = is_unknown(typicality, self.settings.false_alarms)
        unknown = rare | ~scores.finite
        limit = 0.0 if self.abstention is None else self.abstention.threshold
        unsure = ~unknown & (scores.confidence < limit)
        return Decision(
            action=np.select([unknown, unsure], ["unknown", "abstain"], "answer"),
            labels=np.where(scores.finite, scores.labels, -1),
            sets=self._sets(scores, unknown, unsure, weights, features),
            typicality=typicality,
            confidence=scores.confidence,
            reason=np.select(
                [~scores.finite, rare, unsure],
                [NOT_FINITE, UNLIKE, f"confidence below {limit:.4g}"],
                "",
            ),
            class_names=self.class_names,
        )

    def _sets(
        self, scores: Scores, unknown: Bools, unsure: Bools, weights: Any, features: Any
    ) -> Bools | None:
        """All labels of unknown rows; also of those that no coverage was promised for."""
        if self.sets is None:
            return None
        if weights is None and self.shift is not None:
            known = scores.features if features is None else as_floats(features)
            readable = scores.finite & np.isfinite(known).all(axis=1)
            found = self.shift(np.where(readable[:, None], known, self.shift.center))
            weights = np.where(readable, found, np.inf)  # infinite: a set of all labels
        numbers = None if weights is None else as_floats(weights)
        sets = self.sets.helpful(scores.probs, numbers)
        sets[unknown] = True
        if self.settings.sets_for == "answered":
            sets[unsure] = True
        return sets

    def at(self, false_alarms: float | None) -> Policy:
        """The same policy with another rate of false alarms.

        Args:
            false_alarms: share of inputs drawn like the calibration data that may be called
                unknown; None takes that of the policy.
        """
        own = self.settings.false_alarms
        if false_alarms is None or false_alarms == own:
            return self
        self.typical.check_rate(false_alarms)
        if self.settings.fixes_rate:
            raise UserError(
                f"false_alarms={false_alarms:g}: the promises of this policy are for inputs that "
                f"are not unknown at {own or 0:g}, not for others; fit it with another rate"
            )
        return replace(self, settings=replace(self.settings, false_alarms=false_alarms))

    def named(self, class_names: Sequence[str]) -> Policy:
        """The same policy with names of the classes, if it has none of its own.

        Args:
            class_names: of the columns of `probs`.
        """
        own, names = self.class_names, tuple(map(str, class_names))
        if len(own) != len(names):
            raise UserError(f"a policy for {len(own)} classes, but the model has {len(names)}")
        if own not in (names, tuple(map(str, range(len(own))))):
            raise UserError(
                f"a policy for the classes {', '.join(own[:5])}, but the model has "
                f"{', '.join(names[:5])}: fit it with this model"
            )
        return replace(self, class_names=names)

    def unknown(self, prediction: Any, false_alarms: float) -> Bools:
        """Which rows are unlike the calibration samples, (rows,).

        Args:
            prediction: what `predict` returned.
            false_alarms: share of inputs drawn like the calibration data that may be.
        """
        self.typical.check_rate(false_alarms)
        return is_unknown(self.typicality(prediction), false_alarms)

    def typicality(self, prediction: Any) -> Floats:
        """The share of calibration samples that are at least as unusual as each row, (rows,).

        Args:
            prediction: what `predict` returned.
        """
        return self.typical.p_values(Scores.of(prediction).epistemic)

    def curve(self) -> Curve:
        """Risk against coverage on the calibration samples, with bounds; `.draw(file)` draws it."""
        if self.abstention is None:
            raise UserError("this policy has no curve: fit it with max_error=, such as 0.02")
        return self.abstention.curve

    def refit(self, data: Any, model: Any = None) -> Policy:
        """The same policy, calibrated again on new labelled data.

        Args:
            data: as for `fit`.
            model: as for `fit`; None if data are (prediction, labels).
        """
        if isinstance(self.sets and self.sets.quantiles, WeightedQuantile):
            raise UserError("a policy with weights is fitted again with Policy.fit and target=")
        return self._fitted(self.settings, self.class_names, *labelled(model, data))

    def __repr__(self) -> str:
        return f"Policy({'; '.join(self.promises) or 'typicality'})"

    def summary(self) -> str:
        """What is guaranteed, and with how many samples."""
        counts = ", ".join(f"{name} {count}" for name, count in self.samples.items())
        lines = [f"policy for {len(self.class_names)} classes", *self.promises]
        return "\n  ".join([*lines, f"fitted on: {counts}"])

    @property
    def promises(self) -> list[str]:
        """What is guaranteed, in words; empty if nothing is."""
        said = []
        if self.sets is not None:
            where = "inputs" if self.settings.sets_for == "all" else "answered inputs"
            said.append(f"sets hold the true label of {self.sets.coverage:.4g} of the {where}")
            said += [self.sets.note] * bool(self.sets.note)
        if self.abstention is not None:
            bound = f"at most {self.abstention.max_error:.4g} of the answers are wrong"
            share = f"answers {self.abstention.coverage:.1%} of the inputs"
            said.append(f"{bound} with confidence {self.abstention.confidence:.4g}, {share}")
        if self.settings.false_alarms is not None:
            rate = f"{self.settings.false_alarms:.4g}"
            said.append(
                f"at most {rate} of inputs drawn like the calibration data are called unknown"
            )
        return said
