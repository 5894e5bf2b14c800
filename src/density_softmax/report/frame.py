"""Runs as one data frame: what is compared with what, and its means over seeds and shifts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from density_softmax.config import to_dict
from density_softmax.report.names import (
    Label,
    method_name,
    metric_order,
    readable,
    setting_name,
)
from density_softmax.runs.run import Run, variant_text
from density_softmax.types import Row

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[str, str]  # split and metric
SplitRole = Literal["iid", "shift", "ood", "each shift", "cost"]

GROUPS = ("run", "setting", "line")
HEAD = "method.head"
# The corruption of which the paper shows reliability diagrams.
SHOWN_KIND, SHOWN_SEVERITY = "glass_blur", 3


class Line(NamedTuple):
    """What runs on the same data have in common if only their seeds differ.

    Attributes:
        kind: the registry key of the method.
        changes: how it deviates from its recipe, each a printed `path=value`.
    """

    kind: str
    changes: tuple[str, ...]

    @property
    def label(self) -> Label:
        """As tables and figures call it."""
        return Label(method_name(self.kind), [readable(change) for change in self.changes])

    @property
    def words(self) -> tuple[str, ...]:
        """For the name of a file."""
        return (self.kind, ", ".join(self.changes)) if self.changes else (self.kind,)


class Penalty(NamedTuple):
    """How strongly a run was held to a Lipschitz constant of 1, and whether Eq. 6 was trained.

    Attributes:
        weight: λ; 0 where there is no penalty.
        head: whether the head was trained again, on scaled logits (Eq. 6).
    """

    weight: float
    head: bool

    @property
    def name(self) -> str:
        """As the paper's table has it."""
        return f"λ = {self.weight:g}" + ("" if self.head else ", without Eq. 6")


class Spread(NamedTuple):
    """A mean over seeds and their sample standard deviation; None for a single or infinite one."""

    mean: float
    std: float | None


class Shifts(NamedTuple):
    """The splits `<set>/<type>/<severity>` of a shifted set.

    Attributes:
        shared: those that all runs have that have any; means over other splits do not compare.
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
        return [*self.shifted, *map(_shown, self.corrupted.values())]


@dataclass(frozen=True)
class Setting:
    """Runs of one recipe on the same data, computed in the same way: what a figure compares.

    Attributes:
        name: the recipe and how its data and its engine deviate.
        runs: in the order of their lines.
    """

    name: str
    runs: tuple[Run, ...]

    @property
    def recipe(self) -> str:
        """The name of the recipe whose data these are; empty if the data were changed."""
        run = self.runs[0]
        return "" if any(_of_data(path) for path in run.variant) else run.recipe.name

    @cached_property
    def frame(self) -> pd.DataFrame:
        """Their results, see `frame_of`."""
        return frame_of(self.runs)

    @cached_property
    def splits(self) -> Splits:
        """What they were evaluated on."""
        return find_splits(self.frame)

    @cached_property
    def labels(self) -> list[Label]:
        """Their lines, as figures call them."""
        return list(dict.fromkeys(line_of(run).label for run in self.runs))

    def first_seeds(self, has: Callable[[Run], bool] = lambda _: True) -> list[Run]:
        """The run with the lowest seed of each line, of those runs that have what is asked."""
        chosen: dict[Line, Run] = {}
        for run in filter(has, self.runs):
            best = chosen.setdefault(line_of(run), run)
            chosen[line_of(run)] = min(best, run, key=lambda each: each.seed)
        return list(chosen.values())

    def predicted(self, split: str) -> list[Run]:
        """The first seed of each line that kept its predictions of a split."""
        return self.first_seeds(lambda run: run.has_prediction(split))


def settings_of(runs: Iterable[Run]) -> list[Setting]:
    """The runs that can be compared with each other.

    Args:
        runs: in the order of their lines.
    """
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(_setting(run), []).append(run)
    return [Setting(name, tuple(members)) for name, members in found.items()]


def line_of(run: Run, ignored: Callable[[str, Any], bool] = lambda path, value: False) -> Line:
    """The method of a run and its changes, those of the data and the engine aside.

    Args:
        run: any run.
        ignored: whether a change, given its path and value, does not count either.
    """
    changes = {path: value for path, value in run.variant.items() if not _of_setting(path)}
    counted = [path for path, value in changes.items() if not ignored(path, value)]
    return Line(run.kind, tuple(variant_text({path: changes[path]}) for path in counted))


def seeds_of(runs: Sequence[Run]) -> str:
    """The seeds of these runs, as a sentence of a caption.

    Args:
        runs: at least one.
    """
    seeds = sorted({run.seed for run in runs})
    return f"Seed{'s' if seeds[1:] else ''} {', '.join(map(str, seeds))}."


def penalties(runs: Iterable[Run], *, heads: bool) -> dict[Line, dict[Penalty, list[Run]]]:
    """Runs that differ in their penalty alone, by what they share; λ grows.

    Args:
        runs: on the same data; those whose method has no penalty are left out.
        heads: whether they may also differ in the training of the head.
    """
    found: dict[Line, dict[Penalty, list[Run]]] = {}
    for run in runs:
        if (penalty := _penalty_of(run)) is not None:
            line = line_of(run, lambda path, v: _is_weight(path, v) or (heads and path == HEAD))
            found.setdefault(line, {}).setdefault(penalty, []).append(run)
    return {line: dict(sorted(each.items())) for line, each in found.items()}


def frame_of(runs: Iterable[Run]) -> pd.DataFrame:
    """All results of the runs, see `as_frame`.

    Args:
        runs: in the order of their lines.
    """
    return as_frame(
        (*row, number, _setting(run), str(line_of(run).label))
        for number, run in enumerate(runs)
        for row in run.rows()
    )


def as_frame(results: Iterable[tuple[Any, ...]]) -> pd.DataFrame:
    """A line for each number: the entries of its `Row`, and the columns run, setting and line.

    What the stages of a run took is there once more as a whole, as `train_seconds`.

    Args:
        results: entries of all these columns, in their order.
    """
    import pandas as pd

    words = dict.fromkeys(("split", "metric", "line", "setting"), object)
    frame = pd.DataFrame(list(results), columns=[*Row._fields, *GROUPS]).astype(words)
    stages = frame[frame["metric"].str.startswith("train_seconds:")]
    same = [name for name in frame.columns if name not in ("metric", "value")]
    totals = stages.groupby(same, sort=False)["value"].sum().reset_index()
    return pd.concat([frame, totals.assign(metric="train_seconds")], ignore_index=True)


def over_seeds(frame: pd.DataFrame, *by: str) -> dict[Any, Spread]:
    """Means and deviations over seeds; a mean with a number that is not one is none either.

    Args:
        frame: a line for each seed.
        by: the other columns that tell its lines apart.
    """
    columns = [frame[name] for name in by]
    found = frame["value"].groupby(columns, sort=False).agg(["mean", "std"])
    found[frame["value"].isna().groupby(columns, sort=False).any()] = math.nan
    return {
        key: Spread(mean, std if math.isfinite(std) else None)
        for key, mean, std in found.itertuples()
    }


def find_keys(frame: pd.DataFrame) -> list[Key]:
    """Splits and metrics that have results: splits as they come, metrics in their usual order.

    Args:
        frame: results on the same data.
    """
    splits = list(dict.fromkeys(frame["split"]))
    keys = dict.fromkeys(zip(frame["split"], frame["metric"], strict=True))
    return sorted(keys, key=lambda key: (splits.index(key[0]), metric_order(key[1])))


def roles_of(keys: Iterable[Key]) -> dict[str, SplitRole]:
    """What each split is for; one on which detection is measured is OOD.

    Args:
        keys: splits and metrics.
    """
    roles: dict[str, SplitRole] = {}
    for split, metric in keys:
        if split in ("iid", "cost"):
            roles[split] = "iid" if split == "iid" else "cost"
        elif metric.startswith(("auroc:", "aupr:", "fpr95:")):
            roles[split] = "ood"
        else:
            roles.setdefault(split, "each shift" if "/" in split else "shift")
    return roles


def find_shifts(frame: pd.DataFrame) -> dict[str, Shifts]:
    """By shifted set, which splits the runs have of it.

    Args:
        frame: results on the same data.
    """
    each = frame[(frame["metric"] == "nll") & frame["split"].str.contains("/")]
    found = {}
    for data, part in each.groupby(each["split"].str.split("/").str[0], sort=False):
        num_runs = part.groupby("split", sort=False)["run"].nunique()
        shared = num_runs == part["run"].nunique()
        found[data] = Shifts(tuple(num_runs.index[shared]), tuple(num_runs.index[~shared]))
    return found


def with_shared_means(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with means over shifts taken over those shifts that all runs have.

    Args:
        frame: results on the same data.
    """
    for data, (shared, partial) in find_shifts(frame).items():
        if not partial:
            continue
        typed = frame[frame["split"].str.startswith(f"{data}/")]
        typed = typed.assign(metric="c" + typed["metric"])
        kept = typed[typed["split"].isin(shared)]
        means = kept.groupby(["run", "metric"])["value"].mean().to_dict()
        # In another run a set of this name may have no types: its rows are no means.
        keys = frame.set_index(["run", "metric"]).index
        changed = (frame["split"] == data) & keys.isin(typed.set_index(["run", "metric"]).index)
        entries = zip(keys, frame["value"], changed, strict=True)
        frame = frame.assign(value=[means.get(k, v) if new else v for k, v, new in entries])
        frame = frame if shared else frame[~changed]
    return frame


def find_splits(frame: pd.DataFrame) -> Splits:
    """The splits of results, in their order; means over shifts are no splits.

    Args:
        frame: results on the same data.
    """
    every = roles_of(find_keys(frame))
    measured = frame.loc[frame["metric"].isin(["nll", "confidence"]), "split"]
    roles = {split: every[split] for split in dict.fromkeys(measured)}
    partial = {split for shifts in find_shifts(frame).values() for split in shifts.partial}
    corrupted: dict[str, dict[int, list[str]]] = {}
    for split in (s for s, role in roles.items() if role == "each shift" and s not in partial):
        data, severity = split.split("/")[0], split.rsplit("/")[-1]
        if severity.isdecimal():
            corrupted.setdefault(data, {}).setdefault(int(severity), []).append(split)
    return Splits(
        {data: dict(sorted(levels.items())) for data, levels in corrupted.items()},
        tuple(split for split, role in roles.items() if role == "shift"),
        tuple(split for split, role in roles.items() if role == "ood"),
    )


def _shown(levels: Mapping[int, Sequence[str]]) -> str:
    """The split that the paper shows, otherwise the first type at the middle severity."""
    severities = list(levels)
    middle = levels[severities[(len(severities) - 1) // 2]]
    shown = [s for s in levels.get(SHOWN_SEVERITY, ()) if s.split("/")[-2] == SHOWN_KIND]
    return (shown or list(middle))[0]


def _setting(run: Run) -> str:
    changes = {path: value for path, value in run.variant.items() if _of_setting(path)}
    return setting_name(run.recipe.name, changes)


def _of_setting(path: str) -> bool:
    return _of_data(path) or f"{path}.".startswith("engine.")


def _of_data(path: str) -> bool:
    return f"{path}.".startswith("data.")


def _penalty_of(run: Run) -> Penalty | None:
    """The penalty of a run whose method has one, and may train its head after it."""
    settings = to_dict(run.recipe.method)
    penalty = settings.get("penalty")
    if not isinstance(penalty, Mapping) or "head" not in settings:
        return None
    return Penalty(float(penalty.get("weight", 0.0)), settings["head"] is not None)


def _is_weight(path: str, value: Any) -> bool:
    """Whether a change is one of λ; another norm is another penalty."""
    return path == "method.penalty.weight" or (path, value) == ("method.penalty", "none")
