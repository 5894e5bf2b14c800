"""What a service knows about its stream: monitor, decisions over time, latest unknown inputs.

Each process watches what it serves and keeps its state in files, which all of them read. A state
is written every second, and scores are added to a log before they are answered, so that killing a
process loses neither evidence nor the count of inputs.
"""

from __future__ import annotations

import io
import json
import math
import os
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from density_softmax.decide.monitor import Monitor
from density_softmax.decide.policy import Policy
from density_softmax.errors import UserError
from density_softmax.files import write_text
from density_softmax.serve.card import Card
from density_softmax.serve.gallery import original, thumbnail
from density_softmax.service.timeline import Timeline

MOST_VALUES = 32  # of a row that is kept
State = Mapping[str, Any]


class Unknown(NamedTuple):
    """An input that was called unknown.

    Attributes:
        time: in seconds since 1970.
        x: as the network read it, (*input shape).
        label: the likeliest class all the same.
        typicality: share of known inputs that are at least as unusual.
    """

    time: float
    x: NDArray[Any]
    label: str
    typicality: float


@final
class Watcher:
    """Watches the answers of one model in one process. Several threads may call it.

    Args:
        card: of the model.
        policy: whose calibration samples the stream is compared with; None counts only.
        false_alarms: of the monitor.
        state: the file of this process, such as model.0.json; those of the others are beside it.
            None keeps everything in memory.
        replica: the number of this process.
        replicas: as many as there may be: each has its share of the false alarms.
        recent: unknown inputs that are kept.
    """

    def __init__(
        self,
        card: Card,
        policy: Policy | None,
        false_alarms: float,
        state: Path | None = None,
        replica: int = 0,
        recent: int = 12,
        replicas: int = 1,
    ) -> None:
        self._card, self._state, self._replicas = card, state, replicas
        # The monitor takes a while to read scores; answers wait for the other lock alone. Whoever
        # needs both takes that of the monitor first.
        self._judging, self._lock = threading.RLock(), threading.RLock()
        self.monitor = None if policy is None else Monitor(policy, false_alarms, seed=replica)
        watched = {} if self.monitor is None else self.monitor.watches
        self._experts = {name: n for n, name in enumerate(card.experts) if name in watched}
        self._timeline, self._pending = Timeline(), list[NDArray[np.float64]]()
        self._recent, self._unknown = recent, deque[Unknown](maxlen=recent)
        self._shown: list[dict[str, Any]] = []
        self._log: io.FileIO | None = None
        self._alarmed: float | None = None
        self._acknowledged = 0.0  # when an alarm was last acknowledged, in seconds since 1970
        self._saved: dict[str, Any] = {}
        if state is not None:
            self._load(state)

    def record(self, x: NDArray[Any], columns: Mapping[str, NDArray[Any]]) -> None:
        """Count the answers to a batch, and note their scores.

        Args:
            x: the inputs, (rows, *input shape).
            columns: probs, epistemic and, with a policy, action and typicality, (rows, ...) each;
                contributions, if the model has experts.
        """
        experts = [columns["contributions"][:, number] for number in self._experts.values()]
        both = [columns["epistemic"], columns["probs"].max(axis=1)]
        scores = np.stack([*both, *experts]).astype(np.float64)
        actions = columns.get("action", np.full(len(x), ""))
        with self._lock:
            self._note(scores.T.tobytes())
            self._pending.append(scores)
            now = time()
            self._timeline.at(now).add(Counter(actions.tolist()))
            for row in (
                np.flatnonzero(actions == "unknown")[-self._recent :] if self._recent else ()
            ):
                label = self._card.class_names[int(columns["probs"][row].argmax())]
                typicality = float(columns["typicality"][row])
                self._unknown.append(Unknown(now, np.array(x[row]), label, typicality))

    def _note(self, data: bytes) -> None:
        """Add to the log; one that cannot be written is given up until the next state."""
        if self._log is None:
            return
        with suppress(OSError):
            if self._log.write(data) == len(data):
                return
        self._log.close()
        self._log = None

    def tend(self) -> None:
        """What is to be done every second: let the monitor read, keep the state."""
        self._judged(self._others())
        self.save()

    def settle(self) -> None:
        """Let the monitor read the scores that were noted."""
        with self._judging:
            self._follow()
            with self._lock:
                pending, self._pending = self._pending, []
            if self.monitor is None or not pending:
                return
            epistemic, confidence, *parts = np.concatenate(pending, axis=1)
            experts = dict(zip(self._experts, parts, strict=True))
            self.monitor.update_scores(epistemic, confidence, experts)
            with self._lock:
                interval = self._timeline.at(time())
                interval.evidence = self.monitor.evidence
                interval.accuracy = self.monitor.accuracy.value

    def acknowledge(self) -> None:
        """Begin again: somebody has seen the alarm. The other processes follow within a second."""
        with self._judging:
            now = max(time(), math.nextafter(self._acknowledged, math.inf))
            if self._state is not None:
                write_text(self._acknowledgement(), repr(now))
            self._begin_again(now)
            self.save()

    def _begin_again(self, moment: float) -> None:
        with self._lock:
            self._pending.clear()
        if self.monitor is not None:
            self.monitor.reset()
        self._alarmed, self._acknowledged = None, moment

    def _acknowledgement(self) -> Path:
        """The file in which a process tells the others when an alarm was acknowledged."""
        assert self._state is not None
        return self._state.with_name(f"{self._state.name.split('.')[0]}.acknowledged")

    def _follow(self) -> None:
        """Begin again if another process was told to."""
        if self._state is None:
            return
        with suppress(OSError, ValueError):  # nothing was acknowledged yet
            moment = float(self._acknowledgement().read_text(encoding="utf-8"))
            if moment > self._acknowledged:
                self._begin_again(moment)

    def view(self) -> dict[str, Any]:
        """What all processes together know, as JSON values."""
        others = self._others()
        monitor = self._judged(others)
        states = [self._kept(), *(state for state, _ in others)]
        lines = [Timeline.from_dict(state["timeline"]) for state in states]
        line = Timeline.merge(lines, self._replicas)
        unknown = [each for state in states for each in reversed(state["unknown"])]
        unknown.sort(key=lambda each: -each["time"])
        return {
            "replicas": len(states),
            "counts": dict(_totals(line)),
            "timeline": line.to_dict(),
            "unknown": unknown[: self._recent],
            "monitor": monitor,
        }

    def _judged(self, others: Sequence[tuple[State, Monitor | None]]) -> dict[str, Any] | None:
        """What the monitors of all processes say that know of the last acknowledgement."""
        with self._judging:
            self.settle()
            if self.monitor is None:
                return None
            since, monitors, known = self._acknowledged, [self.monitor], [self._alarmed]
            for state, monitor in others:
                if monitor is not None and state["acknowledged"] == since:
                    monitors.append(monitor)
                    known.append(state["alarmed"])
            found = described(monitors, self._replicas)
            alarms = [moment for moment in known if moment is not None]
            if alarms or found["alarm"]:
                self._alarmed = min([time(), *alarms])
            alarm = {"alarm": self._alarmed is not None, "alarmed": self._alarmed}
            return {**found, **alarm, "acknowledged": since or None}

    def to_dict(self) -> dict[str, Any]:
        """The state of this process as JSON values."""
        with self._judging:
            self.settle()
            monitor = None if self.monitor is None else self.monitor.to_dict()
            return {"monitor": monitor, **self._kept()}

    def _kept(self) -> dict[str, Any]:
        """The state but for the monitor."""
        with self._judging:
            with self._lock:
                found, timeline = list(self._unknown), self._timeline.to_dict()
                self._unknown.clear()
            self._shown += [_shown(each, self._card) for each in found]
            self._shown = self._shown[-self._recent :] if self._recent else []
            moments = {"alarmed": self._alarmed, "acknowledged": self._acknowledged}
            return {"timeline": timeline, "unknown": list(self._shown), **moments}

    def save(self) -> None:
        """Write the state, and begin a new log."""
        if self._state is None:
            return
        with self._judging:
            self.settle()  # while answers go on
            with self._lock:
                state = self.to_dict()
                if state == self._saved:
                    return
                write_text(self._state, json.dumps(state))
                self._saved = state
                if self.monitor is not None:
                    self._begin_log(self.monitor.inputs)

    def close(self) -> None:
        """Write the state a last time."""
        self.save()
        with self._lock:
            if self._log is not None:
                self._log.close()
                self._log = None

    def fits(self, policy: Policy | None) -> bool:
        """Whether the stream is compared with the samples of this policy.

        Args:
            policy: of a newer version of the model.
        """
        if self.monitor is None or policy is None:
            return self.monitor is None and policy is None
        return self.monitor.is_replica(Monitor(policy, self.monitor.false_alarms))

    def retire(self) -> None:
        """Write no more: the file belongs to the watcher of a newer version."""
        with self._judging:
            self.close()
            self._state = None

    def _load(self, state: Path) -> None:
        """Go on with a state of before, if it is of this policy, and with the log after it."""
        with suppress(OSError, ValueError, KeyError, TypeError):  # none yet, or of another policy
            self._read(json.loads(state.read_text(encoding="utf-8")))
            self._read_log()
        state.parent.mkdir(parents=True, exist_ok=True)
        self.save()

    def _read(self, values: State) -> None:
        if self.monitor is not None and values["monitor"] is not None:
            found = Monitor.from_dict(values["monitor"])
            if not found.is_replica(self.monitor):
                raise UserError("the state of another policy")
            self.monitor = found
        self._timeline, self._alarmed = Timeline.from_dict(values["timeline"]), values["alarmed"]
        self._shown, self._acknowledged = list(values["unknown"]), values["acknowledged"]

    def _read_log(self) -> None:
        if self.monitor is not None and (log := self._log_file(self.monitor.inputs)).is_file():
            data, width = log.read_bytes(), 2 + len(self._experts)
            rows = np.frombuffer(data[: len(data) // 8 // width * 8 * width]).reshape(-1, width)
            self._pending += [rows.T] * bool(len(rows))

    def _log_file(self, inputs: int) -> Path:
        """The log after the state with so many inputs: that of another state is never read."""
        assert self._state is not None
        return self._state.with_suffix(f".{inputs}.log")

    def _begin_log(self, inputs: int) -> None:
        assert self._state is not None
        if self._log is not None:
            self._log.close()
        file = self._log_file(inputs)
        for old in self._state.parent.glob(f"{self._state.stem}.*.log"):
            if old != file:
                old.unlink(missing_ok=True)
        self._log = io.FileIO(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w")

    def _others(self) -> list[tuple[State, Monitor | None]]:
        """States and monitors of the other processes, as far as they are of the same policy."""
        if self._state is None:
            return []
        found: list[tuple[State, Monitor | None]] = []
        for file in sorted(self._state.parent.glob(f"{self._state.name.split('.')[0]}.*.json")):
            if file == self._state:
                continue
            with suppress(OSError, ValueError, KeyError, TypeError):  # of another version, or gone
                state = json.loads(file.read_text(encoding="utf-8"))
                kept = state["monitor"]
                monitor = None if kept is None else Monitor.from_dict(kept)
                if "acknowledged" in state and self._is_replica(monitor):
                    found.append((state, monitor))
        return found

    def _is_replica(self, other: Monitor | None) -> bool:
        if self.monitor is None or other is None:
            return self.monitor is other
        return self.monitor.is_replica(other)


def described(monitors: Sequence[Monitor], replicas: int = 1) -> dict[str, Any]:
    """What the monitors of all processes together say, as JSON values.

    `Monitor.merge` divides the evidence by the number of monitors. If there may be more of them at
    another time, dividing by the largest number keeps the rate of false alarms.

    Args:
        monitors: of replicas.
        replicas: as many as there may be.
    """
    merged = monitors[0] if len(monitors) == 1 else Monitor.merge(monitors)
    absent = math.log(max(1.0, replicas / len(monitors)))
    evidence, threshold = merged.evidence - absent, -math.log(merged.false_alarms)
    alone = len(monitors) == 1 and replicas == 1
    return {
        "inputs": merged.inputs,
        "not_finite": merged.not_finite,
        "evidence": evidence,
        "threshold": threshold,
        "false_alarms": merged.false_alarms,
        "alarm": evidence >= threshold or (alone and monitors[0].alarm),
        "moved": merged.moved,
        "accuracy": merged.accuracy._asdict(),
        "accuracy_when_calibrated": merged.reliability.accuracy,
    }


def _totals(line: Timeline) -> Counter[str]:
    found: Counter[str] = Counter()
    for interval in line.intervals.values():
        found.update(interval.counts)
    return found


def _shown(unknown: Unknown, card: Card) -> dict[str, Any]:
    """An unknown input as a person can look at it."""
    found: dict[str, Any] = {
        "time": unknown.time,
        "label": unknown.label,
        "typicality": unknown.typicality,
    }
    if image := thumbnail(unknown.x, card):
        return {**found, "image": image}
    raw = original(unknown.x, card).reshape(-1)[:MOST_VALUES]
    values = [value if math.isfinite(value) else None for value in raw.tolist()]
    names = card.normalisation.columns if card.normalisation is not None else ()
    return {**found, "values": values, "columns": list(names[:MOST_VALUES])}
