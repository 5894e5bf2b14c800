"""What a service knows about its stream: monitor, decisions over time, latest unknown inputs.

Each process watches what it serves and keeps its state in files, which all of them read. A state
is written every second, and scores are added to a log before they are answered, so that killing a
process loses neither evidence nor the count of inputs.
"""

from __future__ import annotations

import base64
import io
import json
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
from density_softmax.service.timeline import Timeline

THUMBNAIL = 96  # pixels
MOST_VALUES = 32  # of a row that is kept


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
    ) -> None:
        self._card, self._state, self._lock = card, state, threading.RLock()
        self.monitor = None if policy is None else Monitor(policy, false_alarms, seed=replica)
        watched = {} if self.monitor is None else self.monitor.watches
        self._experts = {name: n for n, name in enumerate(card.experts) if name in watched}
        self._timeline, self._pending = Timeline(), list[NDArray[np.float64]]()
        self._recent, self._unknown = recent, deque[Unknown](maxlen=recent)
        self._shown: list[dict[str, Any]] = []
        self._log: io.FileIO | None = None
        self._alarmed: float | None = None
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

    def settle(self) -> None:
        """Let the monitor read the scores that were noted."""
        with self._lock:
            pending, self._pending = self._pending, []
            if self.monitor is None or not pending:
                return
            epistemic, confidence, *parts = np.concatenate(pending, axis=1)
            experts = dict(zip(self._experts, parts, strict=True))
            self.monitor.update_scores(epistemic, confidence, experts)
            interval = self._timeline.at(time())
            interval.evidence = self.monitor.evidence
            interval.accuracy = self.monitor.accuracy.value

    def view(self) -> dict[str, Any]:
        """What all processes together know, as JSON values."""
        own = self.to_dict()
        states = [own, *self._others()]
        line = Timeline.merge([Timeline.from_dict(state["timeline"]) for state in states])
        unknown = [each for state in states for each in reversed(state["unknown"])]
        unknown.sort(key=lambda each: -each["time"])
        found: dict[str, Any] = {
            "replicas": len(states),
            "counts": dict(_totals(line)),
            "timeline": line.to_dict(),
            "unknown": unknown[: self._recent],
            "monitor": None,
        }
        if own["monitor"] is not None:
            monitors = [Monitor.from_dict(state["monitor"]) for state in states]
            known = [state["alarmed"] for state in states if state["alarmed"] is not None]
            merged = described(monitors)
            if known or merged["alarm"]:
                self._alarmed = min([time(), *known])
            found["monitor"] = {**merged, "alarm": self._alarmed is not None}
            found["monitor"]["alarmed"] = self._alarmed
        return found

    def to_dict(self) -> dict[str, Any]:
        """The state of this process as JSON values."""
        with self._lock:
            self.settle()
            while self._unknown:
                self._shown.append(_shown(self._unknown.popleft(), self._card))
            self._shown = self._shown[-self._recent :] if self._recent else []
            return {
                "monitor": None if self.monitor is None else self.monitor.to_dict(),
                "timeline": self._timeline.to_dict(),
                "unknown": list(self._shown),
                "alarmed": self._alarmed,
            }

    def save(self) -> None:
        """Write the state, and begin a new log."""
        with self._lock:
            state = self.to_dict()
            if self._state is None or state == self._saved:
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
        with self._lock:
            self.close()
            self._state = None

    def _load(self, state: Path) -> None:
        """Go on with a state of before, if it is of this policy, and with the log after it."""
        with suppress(OSError, ValueError, KeyError, TypeError):  # none yet, or of another policy
            self._read(json.loads(state.read_text(encoding="utf-8")))
            self._read_log()
        state.parent.mkdir(parents=True, exist_ok=True)
        self.save()

    def _read(self, values: Mapping[str, Any]) -> None:
        if self.monitor is not None and values["monitor"] is not None:
            found = Monitor.from_dict(values["monitor"])
            if not found.is_replica(self.monitor):
                raise UserError("the state of another policy")
            self.monitor = found
        self._timeline, self._alarmed = Timeline.from_dict(values["timeline"]), values["alarmed"]
        self._shown = list(values["unknown"])

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

    def _others(self) -> list[dict[str, Any]]:
        """The states of the other processes, as far as they are of the same policy."""
        if self._state is None:
            return []
        found = []
        for file in sorted(self._state.parent.glob(f"{self._state.name.split('.')[0]}.*.json")):
            if file == self._state:
                continue
            try:
                state = json.loads(file.read_text(encoding="utf-8"))
                if self._is_replica(state):
                    found.append(state)
            except (OSError, ValueError, KeyError):
                continue
        return found

    def _is_replica(self, state: Mapping[str, Any]) -> bool:
        if self.monitor is None or state["monitor"] is None:
            return self.monitor is None and state["monitor"] is None
        return self.monitor.is_replica(Monitor.from_dict(state["monitor"]))


def described(monitors: Sequence[Monitor]) -> dict[str, Any]:
    """What the monitors of all processes together say, as JSON values.

    Args:
        monitors: of replicas.
    """
    merged = Monitor.merge(monitors)
    return {
        "inputs": merged.inputs,
        "not_finite": merged.not_finite,
        "evidence": merged.evidence,
        "threshold": float(-np.log(merged.false_alarms)),
        "false_alarms": merged.false_alarms,
        "alarm": merged.alarm or (len(monitors) == 1 and monitors[0].alarm),
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
    raw = np.asarray(unknown.x, np.float64)
    normalisation = card.normalisation
    if normalisation is not None:
        shape = (-1, 1, 1) if normalisation.kind == "images" else (-1,)
        mean, std = (np.reshape(v, shape) for v in (normalisation.mean, normalisation.std))
        raw = raw * std + mean
        if normalisation.kind == "images":
            return {**found, "image": thumbnail(raw)}
    values = [float(v) if np.isfinite(v) else None for v in raw.reshape(-1)[:MOST_VALUES]]
    names = normalisation.columns if normalisation is not None else ()
    return {**found, "values": values, "columns": list(names[:MOST_VALUES])}


def thumbnail(image: NDArray[Any]) -> str:
    """A small PNG as a data URI.

    Args:
        image: (channels, height, width) between 0 and 1.
    """
    from PIL import Image

    with np.errstate(invalid="ignore"):
        pixels = np.nan_to_num(np.clip(image, 0, 1) * 255).round().astype(np.uint8)
    picture = Image.fromarray(np.moveaxis(pixels, 0, -1) if len(pixels) == 3 else pixels[0])
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
