"""From a plan to a report: train what is missing, time what is there, write it all up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from density_softmax.engine import EngineConfig
from density_softmax.grid.board import Board, Entry, State, execute
from density_softmax.grid.jobs import Engine, Job
from density_softmax.grid.latency import drop_latencies, were_timed_together
from density_softmax.grid.plan import Cell
from density_softmax.grid.view import GridView
from density_softmax.report import write_report
from density_softmax.runs.run import Run

__all__ = ["Finished", "entry_of", "run_grid"]

LATENCY = "latency"


class Finished(NamedTuple):
    """What a grid ended with: every job, and the page of the report if any run is finished."""

    entries: list[Entry]
    page: Path | None

    @property
    def failed(self) -> list[Entry]:
        """The jobs that failed."""
        return [entry for entry in self.entries if entry.state == "failed"]


def run_grid(cells: Sequence[Cell], out: Path, engine: Engine, console: Console) -> Finished:
    """Run the cells that are not finished, measure latencies, and report on all that are.

    Called again, it continues: whatever is finished stays as it is.

    Args:
        cells: the plan.
        out: the folder of the grid.
        engine: runs the jobs.
        console: where progress is shown.
    """
    board = Board([entry_of(cell, out) for cell in cells], out / "cells.csv", engine.capacity)
    with GridView(cells[0].run.recipe.name, console) as view:
        try:
            execute(board, engine, view)
            runs = [cell.run for cell in cells if cell.member is None and cell.is_finished()]
            for run in runs:
                run.claim(resume=True)  # the data may have moved since it was made
            _time(runs, out, board, engine, view)
        finally:
            engine.stop()
    page = write_report([run.path for run in runs], out / "report") if runs else None
    return Finished(board.entries, page)


def entry_of(cell: Cell, out: Path) -> Entry:
    """The job of a cell, done already if its directory says so.

    Args:
        cell: one run of the grid, or a member of one.
        out: the folder of the grid.
    """
    job = _job(cell.name, cell.command(), cell.run.recipe.engine, out)
    state: State = "done" if cell.is_finished() else "waiting"
    return Entry(job, cell.run.line, f"seed {cell.run.seed}", cell.needs, state)


def _job(name: str, words: tuple[str, ...], engine: EngineConfig, out: Path) -> Job:
    on_gpu = engine.accelerator in ("auto", "cuda", "gpu")
    return Job(
        name,
        words,
        log=out / "logs" / f"{name}.log",
        folder=Path.cwd(),
        num_cpus=engine.devices * (engine.threads or 1),
        num_gpus=engine.devices * on_gpu,
    )


def _time(runs: Sequence[Run], out: Path, board: Board, engine: Engine, view: GridView) -> None:
    """Time all methods and variants in turn, by the runs with the lowest seeds.

    What the other runs measured by themselves is removed.
    """
    chosen: dict[str, Run] = {}
    for run in runs:
        chosen.setdefault(run.line, run)
    timed = list(chosen.values())
    if not timed:
        return
    words = (LATENCY, *(str(run.path) for run in timed))
    job = _job(LATENCY, words, timed[0].recipe.engine, out)
    state: State = "done" if were_timed_together(timed) else "waiting"
    board.add(Entry(job, LATENCY, f"seed {timed[0].seed}", state=state))
    execute(board, engine, view)
    if were_timed_together(timed):
        for run in runs:
            if run not in timed:
                drop_latencies(run)
