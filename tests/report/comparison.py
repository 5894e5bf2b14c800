"""Results as the report compares them, from rows or from run directories."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from density_softmax.report.frame import Setting, as_frame, settings_of
from density_softmax.report.names import Label, method_name
from density_softmax.report.selection import sort_runs
from density_softmax.runs.run import Run, find_runs
from density_softmax.types import Row


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Rows of runs on the data of their recipes, in the order of their lines."""
    runs: dict[tuple[object, ...], int] = {}
    return as_frame(
        (*row, runs.setdefault(row[:4], len(runs)), row.recipe, str(_label(row))) for row in rows
    )


def finished(path: Path) -> tuple[Run, ...]:
    """The finished runs below a path, in their order."""
    return sort_runs(find_runs([path])).finished


def setting(path: Path) -> Setting:
    """The only setting of the runs below a path."""
    (found,) = settings_of(finished(path))
    return found


def _label(row: Row) -> Label:
    return Label(method_name(row.method), [] if row.variant == "default" else [row.variant])
