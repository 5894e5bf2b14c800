"""A policy: from a prediction to an answer, an abstention or the statement that it is unknown."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from density_softmax import __version__
from density_softmax.decide.calibration import Parts, Reliability, Settings, fitted_sets, is_unknown
from density_softmax.decide.conformal import (
    Bools,
    ConformalSets,
    Floats,
    Ints,
    Ranks,
    WeightedQuantile,
)
from density_softmax.decide.decision import (
    NOT_FINITE,
    UNLIKE,
    Decision,
    Scores,
    as_floats,
    labelled,
    unlabelled,
)
from density_softmax.decide.martingale import Bag
from density_softmax.decide.risk import Abstention, Curve
from density_softmax.decide.shift import DensityRatio, checked_weights
from density_softmax.errors import UserError
from density_softmax.files import write_text

FORMAT = "density-softmax policy 1"


@final
@dataclass(frozen=True, repr=False)
class Policy:
    """Decides what to do with each prediction. Make one with `Policy.fit`.

    One rule of precedence: a row is `unknown` if it is not finite or its p-value is at most
    `false_alarms`; else `abstain` if its confidence is below the threshold of `max_error`; else
    `answer`. Only the parts that were asked for take part.

    Args:
        settings: what is guaranteed.
        class_names: of the columns of `probs`.
        typical: the epistemic scores of the calibration samples.
        bags: the epistemic scores and 1 − confidence of the calibration samples, for a monitor.
        reliability: of their confidences.
        samples: how many each part was fitted on, and how many were not finite.
        sets: if `coverage` was asked for.
        abstention: if `max_error` was asked for.
        shift: the weights of inputs, if target data were passed.
    """

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
            false_alarms: share of inputs like the samples that may be called unknown.
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
        settings = Settings(
            coverage=coverage,
            max_error=max_error,
            confidence=confidence,
            false_alarms=false_alarms,
            score=score,
            classwise=classwise,
            randomised=randomised,
            sets_for=sets_for,
            seed=seed,
        )
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
            reliability=Reliability.of(scores, labels),
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
        p_value = self.typical.p_values(scores.epistemic)
        rare = is_unknown(p_value, self.settings.false_alarms)
        unknown = rare | ~scores.finite
        limit = 0.0 if self.abstention is None else self.abstention.threshold
        unsure = ~unknown & (scores.confidence < limit)
        return Decision(
            action=np.select([unknown, unsure], ["unknown", "abstain"], "answer"),
            labels=np.where(scores.finite, scores.labels, -1),
            sets=self._sets(scores, unknown, unsure, weights, features),
            p_value=p_value,
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
            false_alarms: share of inputs like the samples that may be called unknown. None takes
                that of the policy.
        """
        own = self.settings.false_alarms
        if false_alarms is None or false_alarms == own:
            return self
        self.typical.check_rate(false_alarms)
        if self.settings.max_error is not None:
            raise UserError(
                f"false_alarms={false_alarms:g}: this policy bounds errors among inputs that are "
                f"not unknown at {own or 0:g}, and would not among others; fit it with another rate"
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
            false_alarms: share of inputs like the samples that may be called so.
        """
        self.typical.check_rate(false_alarms)
        return is_unknown(self.typicality(prediction), false_alarms)

    def typicality(self, prediction: Any) -> Floats:
        """The p-value of each row: how many calibration samples are at least as unusual, (rows,).

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
        return f"Policy({'; '.join(self._promises()) or 'p-values'})"

    def summary(self) -> str:
        """What is guaranteed, and with how many samples."""
        counts = ", ".join(f"{name} {count}" for name, count in self.samples.items())
        lines = [f"policy for {len(self.class_names)} classes", *self._promises()]
        return "\n  ".join([*lines, f"fitted on: {counts}"])

    def _promises(self) -> list[str]:
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
            said.append(f"at most {rate} of inputs like the samples are called unknown")
        return said

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        fitted = {name: getattr(self, name) for name in ("sets", "abstention", "shift")}
        return {
            "format": FORMAT,
            "package": __version__,
            "settings": asdict(self.settings),
            "class_names": list(self.class_names),
            "typical": self.typical.to_dict(),
            "bags": {name: bag.to_dict() for name, bag in self.bags.items()},
            "reliability": self.reliability._asdict(),
            "samples": dict(self.samples),
            **{name: part.to_dict() for name, part in fitted.items() if part is not None},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "the policy") -> Policy:
        """What `to_dict` made.

        Args:
            values: by name.
            where: the file, for error messages.
        """
        kinds: dict[str, Any] = {
            "sets": ConformalSets,
            "abstention": Abstention,
            "shift": DensityRatio,
        }
        try:
            if values["format"] != FORMAT:
                raise ValueError(f"its format is '{values['format']}'")
            parts = {k: kind.from_dict(values[k]) for k, kind in kinds.items() if k in values}
            return cls(
                settings=Settings(**values["settings"]),
                class_names=tuple(values["class_names"]),
                typical=Ranks.from_dict(values["typical"]),
                bags={k: Bag.from_dict(bag) for k, bag in values["bags"].items()},
                reliability=Reliability(**values["reliability"]),
                samples=dict(values["samples"]),
                **parts,
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"{where}: not a policy of this version ({error!r}); fit and save it again"
            ) from None

    def save(self, path: str | Path) -> None:
        """Write the policy to a JSON file, atomically."""
        write_text(Path(path), json.dumps(self.to_dict(), allow_nan=False))

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """The policy that `save` wrote."""
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read as a policy ({error})") from None
        return cls.from_dict(values, str(path))
