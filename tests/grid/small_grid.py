"""A grid small enough for tests, and an engine that runs its cells without new processes."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest
from rich.console import Console

from density_softmax.cli.main import app
from density_softmax.errors import UserError
from density_softmax.grid import board as grid_run
from density_softmax.grid.board import Finished, run_grid
from density_softmax.grid.jobs import Job, Outcome
from density_softmax.grid.plan import Cell, plan
from density_softmax.runs.rows import read_rows
from density_softmax.types import Row

SMALL = ("encoder.depth=1", "encoder.width=8", "data.num_points=80")
EPOCHS = {
    "deterministic": ("deterministic.descent.epochs=3",),
    "density_softmax": (
        "density_softmax.representation.epochs=2",
        "density_softmax.density.descent.epochs=2",
    ),
    "deep_ensemble": ("deep_ensemble.member.descent.epochs=2", "deep_ensemble.num_members=2"),
    "ddu": ("ddu.descent.epochs=2",),
}


class InlineEngine:
    """Runs the command of a job here and now."""

    capacity: int | None = 1

    def __init__(self) -> None:
        self.ran: list[str] = []

    def submit(self, job: Job) -> Future[Outcome]:
        self.ran.append(job.name)
        job.log.parent.mkdir(parents=True, exist_ok=True)
        job.log.touch()
        future: Future[Outcome] = Future()
        try:
            app(list(job.words), standalone_mode=False)
            future.set_result(Outcome(1.0))
        except UserError as error:
            future.set_result(Outcome(1.0, str(error)))
        return future

    def stop(self) -> None:
        """Nothing runs."""


def cells_of(
    out: Path, methods: list[str], num_seeds: int = 1, *changes: str, ablation: str | None = None
) -> list[Cell]:
    made = changes_of(methods, *changes)
    return plan("toy", methods, num_seeds, out, changes=made, ablation=ablation)


def changes_of(methods: list[str], *changes: str) -> tuple[str, ...]:
    """What makes the recipe small, and more changes."""
    return (*SMALL, *(change for method in methods for change in EPOCHS[method]), *changes)


def run_inline(
    out: Path, methods: list[str], num_seeds: int = 1, *changes: str, ablation: str | None = None
) -> tuple[Finished, list[str]]:
    """Run a grid without its report; returns what it ended with, and the names of what it ran."""
    engine = InlineEngine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid_run, "write_report", lambda runs, place: place / "index.html")
        cells = cells_of(out, methods, num_seeds, *changes, ablation=ablation)
        finished = run_grid(cells, out, engine, Console(quiet=True))
    return finished, engine.ran


def results(out: Path) -> dict[Path, list[Row]]:
    """The rows of all runs, by their place, without costs."""
    files = sorted(out.glob("*/seed*/rows.csv"))
    return {file.relative_to(out): without_costs(read_rows(file)) for file in files}


def without_costs(rows: list[Row]) -> list[Row]:
    """What does not vary from time to time."""
    return [row for row in rows if row.split != "cost"]


# So many epochs that there is a checkpoint to be killed after, and time left to do it.
LONG = ("deterministic.descent.epochs=60", "engine.checkpoint_seconds=0.0")
