"""Has the world changed? Evidence that accumulates over a stream, with few false alarms ever."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, final

import numpy as np

from density_softmax.decide.calibration import Scores, as_floats
from density_softmax.decide.conformal import Floats
from density_softmax.decide.martingale import Bag, Bets, Watch
from density_softmax.decide.policy import Policy
from density_softmax.decide.risk import Estimate, Reliability, lower_bound, upper_bound
from density_softmax.errors import UserError
from density_softmax.files.cards import Card, as_json

# What an alarm is raised by; experts only say where a change is.
ALARMING = ("epistemic", "confidence")
MOST_POINTS = 400  # of the history
BLOCKS = 20  # of the window


class Check(NamedTuple):
    """The accuracy of labelled inputs beside what their confidences promised.

    Attributes:
        accuracy: from the labels, with its exact interval.
        expected: from the confidences of the same inputs, with the interval for the share of
            labels that are right.
        holds: whether that interval holds the share.
    """

    accuracy: Estimate
    expected: Estimate
    holds: bool


class Point(NamedTuple):
    """A moment of the stream: inputs so far, evidence, and the accuracy of the latest inputs."""

    inputs: int
    evidence: float
    accuracy: float


@final
@dataclass(init=False, repr=False, eq=False)
class Monitor(Card):
    """Watches a stream of predictions and raises an alarm when it has changed.

    A test martingale bets against the epistemic scores and the confidences of the stream being
    exchangeable with those of the calibration samples. The probability that it ever raises an
    alarm while they are is at most `false_alarms`, however long the stream is and however often
    it is looked at.

    Args:
        source: a policy; or a model, with `calibration`.
        false_alarms: probability of an alarm, ever, while nothing has changed.
        calibration: labelled samples that fitted nothing, if source is a model.
        experts: further scores of the calibration samples by name, (n,) each, besides what the
            policy knows of the experts of the model: `moved` says which of them has changed.
        window: number of inputs that `accuracy` is about.
        seed: orders equal scores. Give replicas of a service seeds of their own.

    Attributes:
        inputs: how many were read; `not_finite` of them were not finite.
        alarmed_at: the number of the input that raised the alarm; None if there is none.
        history: some moments of the stream.
        position: what its owner wants to keep with it, such as how far a file was read: both
            are saved at once.
    """

    format = "density-softmax monitor, version 3"
    remedy = "delete it to begin again"

    false_alarms: float
    seed: int
    window: int
    reliability: Reliability
    watches: dict[str, Watch]
    inputs: int
    not_finite: int
    alarmed_at: int | None
    history: list[Point]
    blocks: list[Floats]  # the sums of the latest inputs
    right: int  # among the labels that have arrived
    labelled: Floats  # the sums of the inputs that these are of
    position: Any

    def __init__(
        self,
        source: Any,
        false_alarms: float = 0.01,
        *,
        calibration: Any = None,
        experts: Mapping[str, Any] | None = None,
        window: int = 1000,
        seed: int = 0,
    ) -> None:
        if not 0 < false_alarms < 1:
            raise UserError(f"false_alarms={false_alarms}: choose a share, such as 0.01")
        policy = _policy(source, calibration)
        self.false_alarms, self.seed, self.window = false_alarms, seed, window
        self.reliability = policy.reliability
        self.watches = {name: Watch.of(bag) for name, bag in policy.bags.items()}
        for name, scores in (experts or {}).items():
            if name in ALARMING:
                raise UserError(f"an expert called '{name}': choose another name")
            self.watches[name] = Watch.of(Bag.of(_scores(name, scores)))
        self.position = None
        self._begin()

    def _begin(self) -> None:
        self.inputs, self.not_finite, self.alarmed_at = 0, 0, None
        self.history, self.blocks = [], []
        self.right, self.labelled = 0, np.zeros(4)

    def update(self, prediction: Any, labels: Any = None, experts: Any = None) -> bool:
        """Read the next inputs of the stream.

        Args:
            prediction: what `predict` returned: probs (rows, classes), epistemic (rows,).
            labels: the true classes, (rows,), if they are known already; −1 if not.
            experts: scores by name, (rows,) each, of the experts that the monitor was given;
                those of the model are a part of the prediction.

        Returns:
            Whether there is an alarm.
        """
        scores = Scores.of(prediction)
        own = {name: scores.watched[name] for name in scores.experts if name in self.watches}
        self.update_scores(scores.epistemic, scores.confidence, {**own, **(experts or {})})
        if labels is not None:
            self.add_labels(prediction, labels)
        return self.alarm

    def update_scores(self, epistemic: Any, confidence: Any, experts: Any = None) -> bool:
        """Read the next inputs of a stream of which only two numbers each were kept.

        Args:
            epistemic: scores, (rows,).
            confidence: probabilities of the likeliest classes, (rows,).
            experts: scores by name, (rows,) each; those that are missing are not watched.

        Returns:
            Whether there is an alarm.
        """
        numbers = {"epistemic": epistemic, "confidence": confidence, **(experts or {})}
        columns = {name: _scores(name, values) for name, values in numbers.items()}
        self._check(columns)
        if not len(columns["epistemic"]):
            return self.alarm
        finite = np.isfinite(columns["epistemic"]) & np.isfinite(columns["confidence"])
        sure = columns["confidence"][finite]
        columns["epistemic"] = np.where(finite, columns["epistemic"], np.inf)
        columns["confidence"] = np.where(finite, 1 - columns["confidence"], np.inf)
        self._raise_alarm({k: self.watches[k].update(v, self._rng(k)) for k, v in columns.items()})
        self.inputs += len(finite)
        self.not_finite += int((~finite).sum())
        self._remember(sure)
        return self.alarm

    def _raise_alarm(self, paths: Mapping[str, Floats]) -> None:
        """By the evidence of each score after each input."""
        highest = np.max([paths[name] for name in ALARMING], axis=0) - math.log(len(ALARMING))
        found = np.flatnonzero(highest >= -math.log(self.false_alarms))
        if self.alarmed_at is None and len(found):
            self.alarmed_at = self.inputs + int(found[0]) + 1

    def add_labels(self, prediction: Any, labels: Any) -> None:
        """Labels that arrive after their inputs were read by `update`.

        Args:
            prediction: of these inputs, as for `update`.
            labels: the true classes, (rows,); −1 if unknown.
        """
        scores, y = Scores.of(prediction), as_floats(labels).reshape(-1)
        if len(y) != len(scores.finite):
            raise UserError(f"{len(y)} labels for {len(scores.finite)} rows: pass one for each")
        known = scores.finite & (y >= 0)
        self.right += int((scores.labels[known] == y[known]).sum())
        self.labelled = self.labelled + self.reliability.sums(scores.confidence[known])

    @property
    def alarm(self) -> bool:
        """Whether the stream has changed, by `update` so far; stays until `reset`."""
        return self.alarmed_at is not None

    @property
    def evidence(self) -> float:
        """Log of the capital won by betting that the stream has changed; alarm at log 1/rate."""
        most = max(self.watches[name].evidence for name in ALARMING)
        return most - math.log(len(ALARMING))

    @property
    def moved(self) -> dict[str, float]:
        """The evidence of each score and expert by itself, the largest first."""
        found = {name: watch.evidence for name, watch in self.watches.items()}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def accuracy(self) -> Estimate:
        """An estimate of the accuracy on the latest inputs, from their confidences.

        It holds as far as confidences fall with the accuracy. `check` says whether they do.
        """
        return self.reliability.estimate(np.sum([np.zeros(4), *self.blocks], axis=0))

    @property
    def check(self) -> Check | None:
        """How the labels that have arrived agree with the confidences; None without labels."""
        count = int(self.labelled[0])
        if not count:
            return None
        numbers = np.array([self.right]), np.array([count])
        low, high = (bound(*numbers, 0.975)[0] for bound in (lower_bound, upper_bound))
        expected = self.reliability.estimate(self.labelled)
        accuracy = Estimate(self.right / count, float(low), float(high))
        return Check(accuracy, expected, expected.low <= accuracy.value <= expected.high)

    def reset(self) -> None:
        """Begin again after a change was acknowledged, with the same calibration samples.

        If the change is there to stay, recalibrate instead: `Monitor(policy.refit(new_data))`.
        """
        for watch in self.watches.values():
            watch.bag, watch.bets = Bag(**vars(watch.start)), Bets.of()
        self.seed += 1
        self._begin()

    @classmethod
    def merge(cls, monitors: Sequence[Monitor]) -> Monitor:
        """The monitors of several replicas as one, which may go on.

        All of them read the same calibration samples, so their capitals are not independent, and
        no average of them is a martingale. The largest, divided by the number of replicas, keeps
        the rate of false alarms, however often replicas are merged.

        Args:
            monitors: of replicas with the same policy and settings.
        """
        if not monitors:
            raise UserError("no monitors to merge: pass those of the replicas")
        first = monitors[0]
        if any(not first.is_replica(other) for other in monitors):
            raise UserError("monitors of different policies or settings cannot be merged")
        merged = cls.from_dict(first.to_dict())
        merged.position = None
        for name in first.watches:
            merged.watches[name] = Watch.merged([each.watches[name] for each in monitors])
        merged._begin()
        merged.inputs = sum(each.inputs for each in monitors)
        merged.not_finite = sum(each.not_finite for each in monitors)
        merged.right = sum(each.right for each in monitors)
        merged.labelled = np.sum([each.labelled for each in monitors], axis=0)
        merged.blocks = [block for each in monitors for block in each.blocks]
        if merged.evidence >= -math.log(first.false_alarms):
            merged.alarmed_at = merged.inputs
        return merged

    def is_replica(self, other: Monitor) -> bool:
        """Whether another monitor has the same calibration samples and settings."""
        same = (self.false_alarms, list(self.watches)) == (other.false_alarms, list(other.watches))
        pairs = zip(self.watches.values(), other.watches.values(), strict=False)
        return same and all(as_json(a.start) == as_json(b.start) for a, b in pairs)

    def draw(self, target: str | Path | IO[str]) -> None:
        """Draw evidence and estimated accuracy over the stream, as SVG.

        Args:
            target: the file to write, such as stream.svg.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        inputs, evidence, accuracy = zip(*self.history or [Point(0, 0.0, math.nan)], strict=True)
        upper.plot(inputs, evidence, color="#0072b2")
        upper.axhline(-math.log(self.false_alarms), color="#d55e00", linestyle="--")
        upper.set_ylabel("evidence of a change")
        lower.plot(inputs, [100 * value for value in accuracy], color="#0072b2")
        lower.axhline(100 * self.reliability.accuracy, color="#8a929a", linestyle=":")
        lower.set(xlabel="inputs", ylabel="estimated accuracy, %")
        if self.alarmed_at is not None:
            upper.axvline(self.alarmed_at, color="#d55e00")
            lower.axvline(self.alarmed_at, color="#d55e00")
        figure.savefig(target, format="svg", metadata={"Date": None})

    def __repr__(self) -> str:
        state = f"alarm at input {self.alarmed_at}" if self.alarm else "no alarm"
        return f"Monitor({self.inputs} inputs, {state}, evidence {self.evidence:.2f})"

    def _rng(self, name: str) -> np.random.Generator:
        """Random numbers that depend on how far the stream is, so that no state is kept."""
        return np.random.default_rng([self.seed, self.inputs, *name.encode()])

    def _check(self, columns: Mapping[str, Floats]) -> None:
        if strange := sorted(set(columns) - set(self.watches)):
            known = ", ".join(sorted(set(self.watches) - set(ALARMING)))
            raise UserError(f"experts {', '.join(strange)}: this monitor has {known or 'none'}")
        lengths = {name: len(values) for name, values in columns.items()}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{length} of {name}" for name, length in lengths.items())
            raise UserError(f"{said}: pass a number of each per row")

    def _remember(self, sure: Floats) -> None:
        """Add to the window and to the history, and keep both short."""
        added = self.reliability.sums(sure)
        if self.blocks and self.blocks[-1][0] < self.window / BLOCKS:
            added = added + self.blocks.pop()
        self.blocks.append(added)
        while sum(block[0] for block in self.blocks[1:]) >= self.window:
            self.blocks.pop(0)
        value = self.accuracy.value
        self.history.append(Point(self.inputs, self.evidence, value))
        if len(self.history) > MOST_POINTS:
            self.history = self.history[1::2]


def _policy(source: Any, calibration: Any) -> Policy:
    if calibration is not None:
        return Policy.fit(source, calibration)
    found = source if isinstance(source, Policy) else getattr(source, "policy", None)
    if not isinstance(found, Policy):
        raise UserError(
            "a monitor compares with calibration samples: pass a policy, or a model and "
            "calibration=, labelled samples that fitted nothing"
        )
    return found


def _scores(name: str, values: Any) -> Floats:
    """What is no number is as unusual as can be."""
    found = as_floats(values)
    if found.ndim != 1:
        raise UserError(f"'{name}' of shape {found.shape}: pass a score per row")
    return np.where(np.isfinite(found), found, np.inf)
