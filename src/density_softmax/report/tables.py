"""Tables from rows: a line per method and variant, mean ± standard deviation over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from density_softmax.metrics import paired_t_test
from density_softmax.report.names import (
    Better,
    file_stem,
    metric_name,
    setting_name,
    variant_of_data,
)
from density_softmax.report.paper import REMARK as PAPER
from density_softmax.report.paper import paper_shifts
from density_softmax.report.samples import (
    Key,
    Samples,
    deviation,
    mean,
    samples_by_line,
    with_shared_means,
    with_totals,
)
from density_softmax.report.sections import Section, find_keys, find_sections
from density_softmax.report.splits import Shifts, find_shifts
from density_softmax.report.wrapping import divide
from density_softmax.types import Row

__all__ = [
    "HOW_TO_READ",
    "Cell",
    "Column",
    "Line",
    "Quotes",
    "Table",
    "build_table",
    "build_tables",
    "fold",
    "is_better",
]

MIN_SEEDS = 3
LEVEL = 0.05
HOW_TO_READ = (
    "Mean ± sample standard deviation over seeds. Bold: better than the second best "
    f"by a paired t-test over at least {MIN_SEEDS} seeds at {LEVEL:.0%}."
)

# What was published elsewhere, by line and by split and metric.
Quotes = Mapping[str, Mapping[Key, float]]


@dataclass(frozen=True)
class Column:
    """A metric on a split.

    Attributes:
        title: the metric, with an arrow towards better values.
        note: what else a reader must know, such as the score that detects.
        key: the split and metric of its rows.
        better: which direction is an improvement; None where neither is.
        decimals: how many to print, the same in all lines.
        quoted: whether its figures are not ours.
    """

    title: str
    note: str
    key: Key
    better: Better | None
    decimals: int
    quoted: bool = False


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


def build_tables(rows: Sequence[Row], quotes: Mapping[str, Quotes] | None = None) -> list[Table]:
    """All tables of the rows: for each recipe and data the results at a glance, then each role.

    Args:
        rows: of any runs.
        quotes: by recipe, what its paper reports with its own data: shown beside the results.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in with_totals(rows):
        groups.setdefault((row.recipe, variant_of_data(row.variant)), []).append(row)
    tables = []
    for (recipe, data), members in groups.items():
        shifts, members = find_shifts(members), with_shared_means(members)
        samples, quoted = samples_by_line(members), {} if data else (quotes or {}).get(recipe, {})
        for section in find_sections(find_keys(members)):
            beside = quoted if section.role == "results" else {}
            tables.append(build_table(section, setting_name(recipe, data), samples, beside, shifts))
    return tables


def build_table(
    section: Section,
    setting: str,
    lines: Mapping[str, Mapping[Key, Samples]],
    quotes: Quotes | None = None,
    shifts: Mapping[str, Shifts] | None = None,
) -> Table:
    """The table of a section; what is quoted stands in columns beside ours.

    Args:
        section: its columns and what it says about them.
        setting: the recipe and data that it is about.
        lines: the figures, means over shifts being of what all runs have.
        quotes: what was published, means over shifts being of `paper_shifts`.
        shifts: what of each shifted set all runs have, and what only some have.
    """
    shifts = shifts or {}
    columns: list[Column] = []
    cells: list[list[Cell | None]] = []
    for key, note in section.columns.items():
        values = [samples.get(key, {}) for samples in lines.values()]
        columns.append(_column(section, key, note, values))
        cells.append(_cells(values, columns[-1].better))
        alike = key[0] not in shifts or set(shifts[key[0]].shared) == paper_shifts(key[0])
        quoted = [(quotes or {}).get(name, {}).get(key) if alike else None for name in lines]
        if any(value is not None for value in quoted):
            columns.append(_quoted(columns[-1]))
            cells.append([None if value is None else Cell(value, None) for value in quoted])
    seeds = [
        {seed for key in section.columns for seed in line.get(key, ())} for line in lines.values()
    ]
    remark = [section.remark, *_left_out(section, shifts)]
    remark += [PAPER] if any(column.quoted for column in columns) else []
    return Table(
        name=file_stem(setting, section.name),
        title=f"{setting}: {section.title}",
        remark=" ".join(filter(None, remark)),
        columns=tuple(columns),
        lines=tuple(map(Line, lines, map(len, seeds), zip(*cells, strict=True))),
        role=section.role,
    )


def fold(table: Table, most_columns: int) -> list[Table]:
    """The table in parts of at most so many columns, for a terminal; quotes stay beside ours."""
    units: list[list[int]] = []
    for number, column in enumerate(table.columns):
        units = [*units[:-1], [*units[-1], number]] if column.quoted else [*units, [number]]
    parts = divide(units, max(1, most_columns // max(map(len, units))))
    return [
        replace(
            _part(table, [number for unit in part for number in unit]),
            title=f"{table.title} ({n} of {len(parts)})" if parts[1:] else table.title,
        )
        for n, part in enumerate(parts, 1)
    ]


def _part(table: Table, chosen: Sequence[int]) -> Table:
    columns = tuple(table.columns[number] for number in chosen)
    cells = [tuple(line.cells[number] for number in chosen) for line in table.lines]
    lines = (replace(line, cells=each) for line, each in zip(table.lines, cells, strict=True))
    return replace(table, columns=columns, lines=tuple(lines))


def is_better(a: Samples, b: Samples, better: Better) -> bool:
    """Whether a is better than b by a paired t-test over the seeds that both have."""
    seeds = sorted(a.keys() & b.keys())
    left, right = np.array([a[s] for s in seeds]), np.array([b[s] for s in seeds])
    if len(seeds) < MIN_SEEDS or not np.isfinite([left, right]).all():
        return False
    gain = float((left - right).mean())
    improves = gain > 0 if better == "higher" else gain < 0
    return improves and paired_t_test(left.tolist(), right.tolist()) < LEVEL


def _left_out(section: Section, shifts: Mapping[str, Shifts]) -> list[str]:
    """What means over shifts leave out, so that those of all lines are of the same."""
    headline = section.role in ("results", "penalty")
    splits = {split for split, _ in section.columns}
    return [
        f"Means over {data} are of the {len(shared)} shifts that all runs have, without "
        f"{len(partial)} that only some have."
        for data, (shared, partial) in shifts.items()
        if partial and (headline or data in splits)
    ]


def _column(section: Section, key: Key, note: str, samples: Sequence[Samples]) -> Column:
    title, better = metric_name(key[1])
    if key[1] == "confidence" and section.role == "ood":
        better = "lower"  # to be confident about what is out of distribution is wrong
    arrow = {"higher": " ↑", "lower": " ↓", None: ""}[better]
    decimals = _decimals([mean(line) for line in samples if line])
    return Column(title + arrow, note, key, better, decimals)


def _quoted(ours: Column) -> Column:
    """The column beside ours; its note names the metric, since its title does not."""
    metric = ours.title.partition(" ")[0]
    note = ", ".join(filter(None, (metric, ours.note)))
    return Column("paper", note, ours.key, None, ours.decimals, quoted=True)


def _decimals(means: Sequence[float]) -> int:
    """Three or so digits of the largest mean; no decimals where all are whole numbers."""
    finite = [abs(value) for value in means if math.isfinite(value)]
    largest = max(finite, default=0.0)
    if all(value.is_integer() and value > 1 for value in finite):
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
    means = {number: mean(line) for number, line in enumerate(samples) if line}
    finite = [number for number, value in means.items() if math.isfinite(value)]
    if better is None or len(finite) < 2:
        return None
    first, second, *_ = sorted(finite, key=means.__getitem__, reverse=better == "higher")
    return first if is_better(samples[first], samples[second], better) else None


def _cell(samples: Samples, best: bool) -> Cell:
    return Cell(mean(samples), deviation(samples), best)
