"""From a plan to a report: train what is missing, time what is there, write it all up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from density_softmax.engine import EngineConfig
from density_softmax.grid.board import Board, Donor, Entry, State, execute
from density_softmax.grid.jobs import Engine, Job
from density_softmax.grid.latency import drop_latencies, have_met
from density_softmax.grid.plan import Cell, find_donors
from density_softmax.grid.view import GridView
from density_softmax.report import write_report

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
    """
    donors = find_donors(cells)
    entries = [entry_of(cell, out, donors[cell.name]) for cell in cells]
    board = Board(entries, out / "cells.csv", engine.capacity)
    with GridView(cells[0].recipe.name, console) as view:
        try:
            execute(board, engine, view)
            runs = [cell for cell in cells if cell.member is None and cell.is_finished()]
            for cell in runs:
                cell.settle()
            _time(runs, out, board, engine, view)
        finally:
            engine.stop()
    page = write_report([cell.path for cell in runs], out / "report") if runs else None
    return Finished(board.entries, page)


def entry_of(cell: Cell, out: Path, donors: Sequence[Cell] = ()) -> Entry:
    """The job of a cell, done already if its directory says so.

    Its first stage is taken over from one of the donors, if any of them finishes it.
    """
    job = _job(cell.name, cell.command(), cell.recipe.engine, out)
    members = range(len(cell.recipe.method.parts())) if cell.member is None else ()
    needs = tuple(f"{cell.name}-member{number}" for number in members)
    state: State = "done" if cell.is_finished() else "waiting"
    helpers = (
        Donor(each.name, each.has_first_stage, ("--from", str(each.path))) for each in donors
    )
    return Entry(job, cell.line, f"seed {cell.seed}", needs, tuple(helpers), state)


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


def _time(runs: Sequence[Cell], out: Path, board: Board, engine: Engine, view: GridView) -> None:
    """Time all methods and variants in turn, by the runs with the lowest seeds.

    What the other runs measured by themselves is removed.
    """
    chosen: dict[str, Cell] = {}
    for cell in runs:
        chosen.setdefault(cell.line, cell)
    paths = [cell.path for cell in chosen.values()]
    if not paths:
        return
    job = _job(LATENCY, (LATENCY, *map(str, paths)), runs[0].recipe.engine, out)
    state: State = "done" if have_met(paths) else "waiting"
    board.add(Entry(job, LATENCY, f"seed {runs[0].seed}", state=state))
    execute(board, engine, view)
    if have_met(paths):
        for cell in runs:
            if cell.path not in paths:
                drop_latencies(cell.path)
