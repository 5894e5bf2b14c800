"""Which runs a report shows, and which it leaves out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from density_softmax.errors import UserError
from density_softmax.report.frame import line_of
from density_softmax.report.names import method_order, readable
from density_softmax.runs.run import Run


class LeftOut(NamedTuple):
    """A run that a report cannot show.

    Attributes:
        path: its directory.
        name: its method, variant and seed; empty if its recipe cannot be read.
        reason: why.
    """

    path: Path
    name: str
    reason: str

    @property
    def text(self) -> str:
        """All of it on one line."""
        name = f" ({self.name})" if self.name else ""
        return readable(f"{self.path}{name}: {self.reason}")


class Runs(NamedTuple):
    """Finished runs, ordered by recipe, method, variant and seed, and those left out."""

    finished: tuple[Run, ...]
    left_out: tuple[LeftOut, ...]


def sort_runs(folders: Iterable[Path]) -> Runs:
    """Those that a report shows, in the order of their lines, and those that it leaves out.

    Args:
        folders: directories of runs, as `find_runs` finds them. One that cannot be read, such as
            a run of another version, is left out.
    """
    opened = [_open(folder) for folder in sorted(folders)]
    left_out = [each for each in opened if isinstance(each, LeftOut)]
    runs = (each for each in opened if isinstance(each, Run))
    finished: dict[tuple[Any, ...], Run] = {}
    for run in sorted(runs, key=lambda run: (*_order(run), str(run.path))):
        first = finished.get(_order(run))
        if reason := _flaw(run) or (first and f"the same run as {first.path}"):
            name = f"{line_of(run).label}, seed {run.seed}"
            left_out.append(LeftOut(run.path, name, reason))
        else:
            finished[_order(run)] = run
    return Runs(tuple(finished.values()), tuple(left_out))


def _open(folder: Path) -> Run | LeftOut:
    try:
        return Run.at(folder)
    except UserError as error:
        return LeftOut(folder, "", _reason(error, folder))


def _flaw(run: Run) -> str:
    """Why the results of a run cannot be shown; empty if they can."""
    if not run.has_rows():
        return "unfinished: it has no rows.csv"
    try:
        run.rows()
        run.environment()
    except UserError as error:
        return _reason(error, run.path)
    return ""


def _reason(error: UserError, folder: Path) -> str:
    """What an error says, without the directory that it begins with."""
    return str(error).removeprefix(f"{folder}: ").removeprefix(f"{folder}/")


def _order(run: Run) -> tuple[Any, ...]:
    return run.recipe.name, method_order(run.kind), bool(run.variant), run.variant_text, run.seed
