"""Tables from rows: a line per method and variant, mean ± standard deviation over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from density_softmax.report.names import (
    Better,
    file_stem,
    line_name,
    line_order,
    metric_name,
    metric_order,
    setting_name,
    variant_of_data,
    variant_of_line,
)
from density_softmax.types import Row

__all__ = ["HOW_TO_READ", "Cell", "Column", "Line", "Table", "build_tables", "is_significant"]

MIN_SEEDS = 3
LEVEL = 0.05
HOW_TO_READ = (
    "Mean ± sample standard deviation over seeds. Bold: better than the second best "
    f"by a paired t-test over at least {MIN_SEEDS} seeds at {LEVEL:.0%}."
)

Key = tuple[str, str]  # split and metric
Samples = Mapping[int, float]  # values by seed


@dataclass(frozen=True)
class Column:
    """A metric on a split.

    Attributes:
        title: the metric, with an arrow towards better values.
        note: what else a reader must know, such as the score that detects.
        key: the split and metric of its rows.
        better: which direction is an improvement; None where neither is.
        decimals: how many to print, the same in all lines.
    """

    title: str
    note: str
    key: Key
    better: Better | None
    decimals: int


@dataclass(frozen=True)
class Cell:
    """A mean over seeds; no deviation for a single one."""

    mean: float
    std: float | None
    best: bool = False


@dataclass(frozen=True)
class Line:
    """A method and variant, and its cell in each column; None where it has no rows."""

    name: str
    num_seeds: int
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Table:
    """Comparable figures, ready to be rendered.

    Attributes:
        name: a file name without ending.
        title: what is compared, on which data.
        remark: what must be known beside `HOW_TO_READ`.
        columns: the header.
        lines: the methods.
        role: what kind of table it is; `results` has the figures to look at first.
    """

    name: str
    title: str
    remark: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    role: str


@dataclass(frozen=True)
class Section:
    """Which columns make up a table."""

    role: str
    name: str
    title: str
    keys: tuple[Key, ...]
    remark: str = ""


def build_tables(rows: Sequence[Row]) -> list[Table]:
    """All tables of the rows: per recipe and data the results at a glance, then each role."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.recipe, variant_of_data(row.variant)), []).append(row)
    return [
        _table(section, recipe, data, members)
        for (recipe, data), members in groups.items()
        for section in _sections(_keys(members))
    ]


def is_significant(a: Samples, b: Samples) -> bool:
    """Whether a paired t-test over the seeds of both says that they differ."""
    seeds = sorted(a.keys() & b.keys())
    if len(seeds) < MIN_SEEDS:
        return False
    left, right = np.array([a[s] for s in seeds]), np.array([b[s] for s in seeds])
    gaps = left - right
    if not np.isfinite(gaps).all():
        return False
    if np.allclose(gaps, gaps.mean(), rtol=1e-9, atol=0):
        return bool(gaps.mean() != 0)  # the same gap for every seed: the limit p → 0
    return bool(stats.ttest_rel(left, right).pvalue < LEVEL)


def _keys(rows: Sequence[Row]) -> list[Key]:
    """The columns that there are: splits as they come, metrics in their usual order."""
    splits = list(dict.fromkeys(row.split for row in rows))
    keys = list(dict.fromkeys((row.split, row.metric) for row in rows))
    return sorted(keys, key=lambda key: (splits.index(key[0]), metric_order(key[1])))


def _sections(keys: Sequence[Key]) -> Iterator[Section]:
    roles: dict[str, list[Key]] = {}
    for key in keys:
        roles.setdefault(_role(key), []).append(key)
    chosen = tuple(key for key in keys if _is_headline(key))
    if chosen:
        yield Section("results", "results", "results", chosen, DETECTION)
    if "iid" in roles:
        yield Section("iid", "iid", "in-domain test set", tuple(roles["iid"]))
    for split, members in _by_split(roles.get("shift", ())).items():
        yield Section("shift", split, f"mean over the shifts of {split}", members)
    for split, members in _by_split(roles.get("ood", ())).items():
        title = f"detection of {split} as out-of-distribution (OOD)"
        yield Section("ood", split, title, members, DETECTION)
    for (data, metric), members in _by_metric(roles.get("shifted", ())).items():
        title = f"{metric_name(metric).title} on each shift of {data}"
        yield Section("shifted", f"{data}-{metric}", title, members)
    if "cost" in roles:
        yield Section("cost", "cost", "cost of prediction", tuple(roles["cost"]), LATENCY)
    if "training" in roles:
        yield Section("training", "training", "cost of training", tuple(roles["training"]))


DETECTION = (
    "AUROC, AUPR and FPR95: OOD is the positive class, the score that detects is named in the "
    "header; AUPR depends on the ratio of the two sets."
)
LATENCY = "Latency relative to ERM with the same encoder, measured in turn with it."


def _role(key: Key) -> str:
    split, metric = key
    name = metric.partition(":")[0]
    if split == "iid":
        return "iid"
    if split == "cost":
        return "training" if name in ("train_seconds", "peak_memory") else "cost"
    if "/" in split:
        return "shifted"
    return "ood" if ":" in metric or name == "confidence" else "shift"


def _is_headline(key: Key) -> bool:
    """Whether a figure belongs among the results that are looked at first."""
    metrics = {
        "iid": ("nll", "accuracy", "ece"),
        "shift": ("cnll", "caccuracy", "cece"),
        "ood": ("auroc:confidence", "auroc:epistemic"),
        "cost": ("latency_ratio:1",),
    }
    return key[1] in metrics.get(_role(key), ())


def _by_split(keys: Sequence[Key]) -> dict[str, tuple[Key, ...]]:
    return {split: tuple(k for k in keys if k[0] == split) for split, _ in keys}


def _by_metric(keys: Sequence[Key]) -> dict[Key, tuple[Key, ...]]:
    """Keys of splits `<set>/<type>/<severity>`, by set and metric."""
    groups: dict[Key, list[Key]] = {}
    for split, metric in keys:
        groups.setdefault((split.partition("/")[0], metric), []).append((split, metric))
    return {group: tuple(members) for group, members in groups.items()}


def _table(section: Section, recipe: str, data: str, rows: Sequence[Row]) -> Table:
    samples = _samples(section, rows)
    columns = tuple(
        _column(section, key, [line.get(key, {}) for line in samples.values()])
        for key in section.keys
    )
    best = [
        _best([line.get(column.key, {}) for line in samples.values()], column.better)
        for column in columns
    ]
    lines = tuple(
        _line(name, line, section.keys, [number == winner for winner in best])
        for number, (name, line) in enumerate(samples.items())
    )
    setting = setting_name(recipe, data)
    return Table(
        name=file_stem(setting, section.name),
        title=f"{setting}: {section.title}",
        remark=section.remark,
        columns=columns,
        lines=lines,
        role=section.role,
    )


def _samples(section: Section, rows: Sequence[Row]) -> dict[str, dict[Key, dict[int, float]]]:
    """Values by line, column and seed, the lines in their order."""
    wanted = set(section.keys)
    found: dict[tuple[str, str], dict[Key, dict[int, float]]] = {}
    for row in rows:
        line = found.setdefault((row.method, variant_of_line(row.variant)), {})
        if (row.split, row.metric) in wanted:
            line.setdefault((row.split, row.metric), {})[row.seed] = row.value
    return {line_name(*line): found[line] for line in sorted(found, key=lambda x: line_order(*x))}


def _column(section: Section, key: Key, samples: Sequence[Samples]) -> Column:
    name = metric_name(key[1])
    # On OOD data a confident classifier is wrong to be so.
    better = "lower" if key[1] == "confidence" and section.role == "ood" else name.better
    arrow = {"higher": " ↑", "lower": " ↓", None: ""}[better]
    return Column(
        title=name.title + arrow,
        note=_note(section, key, name.note),
        key=key,
        better=better,
        decimals=_decimals([_mean(line) for line in samples if line]),
    )


def _note(section: Section, key: Key, detail: str) -> str:
    split, metric = key
    if metric.startswith("latency_ratio"):
        return f"batch {detail}, ERM = 1"
    if section.role == "shifted":
        return split.partition("/")[2].replace("/", " ")
    if section.role == "results" and _role(key) in ("shift", "ood"):
        return f"{split}, by {detail}" if detail else split
    return f"by {detail}" if section.role == "ood" and detail else detail


def _decimals(means: Sequence[float]) -> int:
    """Three or so digits of the largest mean; no decimals where all are whole numbers."""
    finite = [abs(mean) for mean in means if math.isfinite(mean)]
    largest = max(finite, default=0.0)
    if all(mean.is_integer() and mean > 1 for mean in finite):
        return 0
    if 0 < largest < 1:
        return min(2 - math.floor(math.log10(largest)), 8)
    return next((d for d, limit in ((3, 10), (2, 100), (1, 1000)) if largest < limit), 0)


def _best(samples: Sequence[Samples], better: Better | None) -> int | None:
    """The line that beats the second best significantly, if one does."""
    means = {n: _mean(line) for n, line in enumerate(samples) if line}
    ranked = sorted((n for n in means if math.isfinite(means[n])), key=lambda n: means[n])
    if better is None or len(ranked) < 2:
        return None
    first, second = ranked[:2] if better == "lower" else ranked[:-3:-1]
    return first if is_significant(samples[first], samples[second]) else None


def _line(
    name: str, samples: Mapping[Key, Samples], keys: Sequence[Key], best: Sequence[bool]
) -> Line:
    seeds = {seed for line in samples.values() for seed in line}
    cells = (
        _cell(samples[key], mark) if key in samples else None
        for key, mark in zip(keys, best, strict=True)
    )
    return Line(name, len(seeds), tuple(cells))


def _cell(samples: Samples, best: bool) -> Cell:
    values = np.array(list(samples.values()))
    std = float(values.std(ddof=1)) if len(values) > 1 and np.isfinite(values).all() else None
    return Cell(_mean(samples), std, best)


def _mean(samples: Samples) -> float:
    return float(np.mean(list(samples.values())))
