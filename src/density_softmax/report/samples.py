"""Figures by line and seed: what tables, bars and boxes summarise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from density_softmax.report.names import line_name, line_order, variant_of_line
from density_softmax.report.splits import find_shifts
from density_softmax.types import Row

__all__ = [
    "Key",
    "Samples",
    "deviation",
    "mean",
    "samples_by_line",
    "with_shared_means",
    "with_totals",
]

Key = tuple[str, str]  # split and metric
Samples = Mapping[int, float]  # values by seed


def samples_by_line(rows: Sequence[Row]) -> dict[str, dict[Key, dict[int, float]]]:
    """Values by line, by split and metric, and by seed; the lines in their order."""
    found: dict[tuple[str, str], dict[Key, dict[int, float]]] = {}
    for row in rows:
        line = found.setdefault((row.method, variant_of_line(row.variant)), {})
        line.setdefault((row.split, row.metric), {})[row.seed] = row.value
    return {line_name(*line): found[line] for line in sorted(found, key=lambda x: line_order(*x))}


def with_totals(rows: Sequence[Row]) -> list[Row]:
    """The rows and, of each run, a row `train_seconds`: the sum over its stages."""
    totals: dict[tuple[str, str, str, int], float] = {}
    for row in rows:
        if row.metric.startswith("train_seconds:"):
            totals[row[:4]] = totals.get(row[:4], 0.0) + row.value
    return [*rows, *(Row(*key, "cost", "train_seconds", value) for key, value in totals.items())]


def with_shared_means(rows: Sequence[Row]) -> list[Row]:
    """The rows of runs on the same data, their means over shifts taken over what all runs have."""
    values = {(row[:4], row.split, row.metric): row.value for row in rows}
    changed = {data: shifts.shared for data, shifts in find_shifts(rows).items() if shifts.partial}
    # To another run a set of the same name may be something else: only what has types is a mean.
    means = {(key, split.partition("/")[0], f"c{metric}") for key, split, metric in values}
    found = []
    for row in rows:
        if row.split not in changed or (row[:4], row.split, row.metric) not in means:
            found.append(row)
        elif shared := changed[row.split]:
            each = [values[row[:4], split, row.metric[1:]] for split in shared]
            found.append(row._replace(value=float(np.mean(each))))
    return found


def mean(samples: Samples) -> float:
    """The mean over seeds."""
    return float(np.mean(list(samples.values())))


def deviation(samples: Samples) -> float | None:
    """The sample standard deviation over seeds; none of a single or an infinite one."""
    values = np.array(list(samples.values()))
    return float(values.std(ddof=1)) if len(values) > 1 and np.isfinite(values).all() else None
