"""Decisions and evidence over time, in a bounded number of intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, final

FINEST, MOST = 5, 180  # seconds of an interval, and intervals


@dataclass
class Interval:
    """What happened between two moments.

    Attributes:
        counts: inputs by action.
        evidence: of the monitor, at the end; None without a monitor.
        accuracy: as the monitor estimates it, at the end.
    """

    counts: dict[str, int] = field(default_factory=dict)
    evidence: float | None = None
    accuracy: float | None = None

    def add(self, counts: Mapping[str, int]) -> None:
        """Count some more inputs."""
        for action, count in counts.items():
            self.counts[action] = self.counts.get(action, 0) + count


@final
class Timeline:
    """Intervals of equal length from the first input on.

    They begin at multiples of their length. When there are more than `MOST`, their length doubles.
    """

    def __init__(self) -> None:
        self.seconds, self.intervals = FINEST, dict[int, Interval]()

    def at(self, time: float) -> Interval:
        """The interval of a moment.

        Args:
            time: in seconds since 1970.
        """
        start = self._start(time)
        if start not in self.intervals:
            self.intervals[start] = Interval()
            while self._span() > MOST:
                self.coarsen()
        return self.intervals[self._start(time)]

    def coarsen(self) -> None:
        """Double the length of the intervals."""
        self.seconds *= 2
        older, self.intervals = self.intervals, {}
        for start, interval in sorted(older.items()):
            into = self.intervals.setdefault(self._start(start), Interval())
            into.add(interval.counts)
            into.evidence, into.accuracy = interval.evidence, interval.accuracy

    def _start(self, time: float) -> int:
        return int(time // self.seconds) * self.seconds

    def _span(self) -> int:
        return (max(self.intervals) - min(self.intervals)) // self.seconds + 1

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        points = [[start, asdict(each)] for start, each in sorted(self.intervals.items())]
        return {"seconds": self.seconds, "intervals": points}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Timeline:
        """What `to_dict` made."""
        found = cls()
        found.seconds = int(values["seconds"])
        found.intervals = {int(start): Interval(**each) for start, each in values["intervals"]}
        return found

    @classmethod
    def merge(cls, lines: Sequence[Timeline], replicas: int = 1) -> Timeline:
        """Those of several replicas as one.

        The evidence is that of merged monitors: the largest, less the log of the number that there
        may be. An
        interval without an input of a replica has its last evidence.

        Args:
            lines: of the replicas, which are made as coarse as the coarsest.
            replicas: as many as there may be.
        """
        merged, lines = cls(), [cls.from_dict(line.to_dict()) for line in lines]
        merged.seconds = max([FINEST, *(line.seconds for line in lines)])
        for line in lines:
            while line.seconds < merged.seconds:
                line.coarsen()
        last, number = dict[int, Interval](), max(replicas, len(lines))
        for start in sorted({start for line in lines for start in line.intervals}):
            into = merged.intervals[start] = Interval()
            for each, line in enumerate(lines):
                if start in line.intervals:
                    into.add(line.intervals[start].counts)
                    last[each] = line.intervals[start]
            into.evidence = _largest((each.evidence for each in last.values()), number)
            into.accuracy = _mean(each.accuracy for each in last.values())
        return merged


def _largest(evidence: Iterable[float | None], replicas: int) -> float | None:
    found = [value for value in evidence if value is not None]
    return max(found) - math.log(replicas) if found else None


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None
