"""Tables from rows: a line per method and variant, mean ± standard deviation over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from density_softmax.report.names import (
    Better,
    file_stem,
    line_name,
    line_order,
    metric_name,
    setting_name,
    variant_of_data,
    variant_of_line,
)
from density_softmax.report.sections import Key, Section, find_keys, find_sections
from density_softmax.types import Row

__all__ = ["HOW_TO_READ", "Cell", "Column", "Line", "Table", "build_tables", "is_better"]

MIN_SEEDS = 3
LEVEL = 0.05
HOW_TO_READ = (
    "Mean ± sample standard deviation over seeds. Bold: better than the second best "
    f"by a paired t-test over at least {MIN_SEEDS} seeds at {LEVEL:.0%}."
)

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


def build_tables(rows: Sequence[Row]) -> list[Table]:
    """All tables of the rows: for each recipe and data the results at a glance, then each role."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.recipe, variant_of_data(row.variant)), []).append(row)
    return [
        _table(section, setting_name(recipe, data), members)
        for (recipe, data), members in groups.items()
        for section in find_sections(find_keys(members))
    ]


def is_better(a: Samples, b: Samples, better: Better) -> bool:
    """Whether a is better than b by a paired t-test over the seeds that both have."""
    seeds = sorted(a.keys() & b.keys())
    left, right = np.array([a[s] for s in seeds]), np.array([b[s] for s in seeds])
    if len(seeds) < MIN_SEEDS or not np.isfinite([left, right]).all():
        return False
    gains = left - right if better == "higher" else right - left
    if gains.mean() <= 0 or np.allclose(left, right, rtol=1e-9, atol=1e-12):
        return False
    if np.allclose(gains, gains.mean(), rtol=1e-9, atol=0):
        return True  # the same gain for every seed: the limit p → 0
    return bool(stats.ttest_rel(left, right).pvalue < LEVEL)


def _table(section: Section, setting: str, rows: Sequence[Row]) -> Table:
    samples = _samples(rows)
    columns, cells = [], []
    for key, note in section.columns.items():
        values = [line.get(key, {}) for line in samples.values()]
        columns.append(_column(section, key, note, values))
        cells.append(_cells(values, columns[-1].better))
    seeds = [
        {seed for key in section.columns for seed in line.get(key, ())} for line in samples.values()
    ]
    return Table(
        name=file_stem(setting, section.name),
        title=f"{setting}: {section.title}",
        remark=section.remark,
        columns=tuple(columns),
        lines=tuple(map(Line, samples, map(len, seeds), zip(*cells, strict=True))),
        role=section.role,
    )


def _samples(rows: Sequence[Row]) -> dict[str, dict[Key, dict[int, float]]]:
    """Values by line, column and seed, the lines in their order."""
    found: dict[tuple[str, str], dict[Key, dict[int, float]]] = {}
    for row in rows:
        line = found.setdefault((row.method, variant_of_line(row.variant)), {})
        line.setdefault((row.split, row.metric), {})[row.seed] = row.value
    return {line_name(*line): found[line] for line in sorted(found, key=lambda x: line_order(*x))}


def _column(section: Section, key: Key, note: str, samples: Sequence[Samples]) -> Column:
    title, better = metric_name(key[1])
    if key[1] == "confidence" and section.role == "ood":
        better = "lower"  # to be confident about what is out of distribution is wrong
    arrow = {"higher": " ↑", "lower": " ↓", None: ""}[better]
    decimals = _decimals([_mean(line) for line in samples if line])
    return Column(title + arrow, note, key, better, decimals)


def _decimals(means: Sequence[float]) -> int:
    """Three or so digits of the largest mean; no decimals where all are whole numbers."""
    finite = [abs(mean) for mean in means if math.isfinite(mean)]
    largest = max(finite, default=0.0)
    if all(mean.is_integer() and mean > 1 for mean in finite):
        return 0
    if 0 < largest < 1:
        return min(2 - math.floor(math.log10(largest)), 8)
    return next((d for d, limit in ((3, 10), (2, 100), (1, 1000)) if largest < limit), 0)


def _cells(samples: Sequence[Samples], better: Better | None) -> list[Cell | None]:
    """A column: the cell of each line."""
    best = _best(samples, better)
    return [_cell(line, number == best) if line else None for number, line in enumerate(samples)]


def _best(samples: Sequence[Samples], better: Better | None) -> int | None:
    """The line that is better than the second best, if the test says so."""
    means = {number: _mean(line) for number, line in enumerate(samples) if line}
    finite = [number for number, mean in means.items() if math.isfinite(mean)]
    if better is None or len(finite) < 2:
        return None
    first, second, *_ = sorted(finite, key=means.__getitem__, reverse=better == "higher")
    return first if is_better(samples[first], samples[second], better) else None


def _cell(samples: Samples, best: bool) -> Cell:
    values = np.array(list(samples.values()))
    std = float(values.std(ddof=1)) if len(values) > 1 and np.isfinite(values).all() else None
    return Cell(_mean(samples), std, best)


def _mean(samples: Samples) -> float:
    return float(np.mean(list(samples.values())))
