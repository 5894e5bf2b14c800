"""What the splits of a run are for, and which of them figures show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from density_softmax.types import Row

__all__ = [
    "Shifts",
    "SplitRole",
    "Splits",
    "find_detected",
    "find_shifts",
    "find_splits",
    "role_of_split",
    "shift_name",
]

SplitRole = Literal["iid", "shift", "ood", "each shift", "cost"]

# The corruption of which the paper shows reliability diagrams.
SHOWN_KIND, SHOWN_SEVERITY = "glass_blur", 3


class Shifts(NamedTuple):
    """The splits `<set>/<type>/<severity>` of a shifted set.

    Attributes:
        shared: what all runs have that have any; means over other splits cannot be compared.
        partial: the others.
    """

    shared: tuple[str, ...]
    partial: tuple[str, ...]


@dataclass(frozen=True)
class Splits:
    """The splits of runs on the same data.

    Attributes:
        corrupted: of sets with types and severities, the splits of each severity that all runs
            have.
        shifted: sets of the same classes under other conditions, each one split.
        ood: sets of something else.
    """

    corrupted: Mapping[str, Mapping[int, Sequence[str]]]
    shifted: tuple[str, ...]
    ood: tuple[str, ...]

    def shown_shifts(self) -> list[str]:
        """One split of each shifted set: those without severities first."""
        return [*self.shifted, *(_shown(levels) for levels in self.corrupted.values())]


def find_detected(keys: Iterable[tuple[str, str]]) -> set[str]:
    """The splits on which detection is measured, from pairs of split and metric."""
    return {split for split, metric in keys if metric.startswith(("auroc:", "aupr:", "fpr95:"))}


def role_of_split(split: str, detected: set[str]) -> SplitRole:
    """What a split of rows is for."""
    if split == "iid":
        return "iid"
    if split == "cost":
        return "cost"
    if split in detected:
        return "ood"
    return "each shift" if "/" in split else "shift"


def find_shifts(rows: Sequence[Row]) -> dict[str, Shifts]:
    """By shifted set, which splits the runs on the same data have of it."""
    sets: dict[str, dict[tuple[object, ...], dict[str, None]]] = {}
    for row in rows:
        data, slash, _ = row.split.partition("/")
        if slash and row.metric == "nll":
            sets.setdefault(data, {}).setdefault(row[:4], {})[row.split] = None
    found = {}
    for data, runs in sets.items():
        splits = dict.fromkeys(split for each in runs.values() for split in each)
        shared = tuple(split for split in splits if all(split in each for each in runs.values()))
        found[data] = Shifts(shared, tuple(split for split in splits if split not in shared))
    return found


def find_splits(rows: Sequence[Row]) -> Splits:
    """The splits of these rows, in their order; means over shifts are no splits."""
    detected = find_detected((row.split, row.metric) for row in rows)
    measured = dict.fromkeys(row.split for row in rows if row.metric in ("nll", "confidence"))
    roles = {split: role_of_split(split, detected) for split in measured}
    corrupted: dict[str, dict[int, list[str]]] = {}
    partial = {split for shifts in find_shifts(rows).values() for split in shifts.partial}
    for split in (s for s, role in roles.items() if role == "each shift" and s not in partial):
        data, severity = split.split("/")[0], split.rsplit("/")[-1]
        if severity.isdecimal():
            corrupted.setdefault(data, {}).setdefault(int(severity), []).append(split)
    return Splits(
        {data: dict(sorted(levels.items())) for data, levels in corrupted.items()},
        tuple(split for split, role in roles.items() if role == "shift"),
        tuple(split for split, role in roles.items() if role == "ood"),
    )


def shift_name(split: str) -> str:
    """A split where people read it: `cifar10-c/glass_blur/3` is `cifar10-c, glass blur 3`."""
    data, _, rest = split.partition("/")
    return f"{data}, {rest.replace('_', ' ').replace('/', ' ')}" if rest else data


def _shown(levels: Mapping[int, Sequence[str]]) -> str:
    """The split that the paper shows, otherwise the first type at the middle severity."""
    severities = list(levels)
    middle = levels[severities[(len(severities) - 1) // 2]]
    shown = [s for s in levels.get(SHOWN_SEVERITY, ()) if s.split("/")[-2] == SHOWN_KIND]
    return (shown or list(middle))[0]
