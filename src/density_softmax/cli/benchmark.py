"""`density-softmax benchmark`: a grid of runs and a report on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table

from density_softmax.errors import UserError
from density_softmax.grid.jobs import Engine, LocalEngine, RayEngine
from density_softmax.grid.latency import measure_latencies
from density_softmax.grid.plan import choose_methods, plan
from density_softmax.grid.run import Finished, run_grid
from density_softmax.report import results_text

__all__ = ["run_benchmark", "run_latency"]


def run_benchmark(
    recipe: str,
    methods: str | None,
    num_seeds: int,
    engine: Literal["local", "ray"],
    ablation: str | None,
    changes: tuple[str, ...],
    jobs: int | None,
    out: Path | None,
    console: Console,
) -> bool:
    """Run the grid and print its results; returns whether every cell is finished."""
    if methods is None:
        methods = "density_softmax" if ablation else "all"
    names = choose_methods(recipe, methods)
    place = (out or Path("runs") / recipe).absolute()
    cells = plan(recipe, names, num_seeds, place, changes=changes, ablation=ablation)
    finished = run_grid(cells, place, _engine(engine, jobs), console)
    _print(finished, place, console)
    return not finished.failed


def run_latency(runs: Sequence[Path], console: Console) -> None:
    """Measure the latency of runs in turn, and print what was written into their rows."""
    table = Table("method", "variant", "metric", box=box.SIMPLE_HEAD)
    table.add_column("value", justify="right")
    for row in measure_latencies(runs):
        table.add_row(row.method, row.variant, row.metric, f"{row.value:.3g}")
    console.print(table)


def _engine(name: Literal["local", "ray"], jobs: int | None) -> Engine:
    if name == "local":
        return LocalEngine(jobs or 1)
    if jobs is not None:
        raise UserError(f"--jobs {jobs} is for --engine local; a cluster decides by itself")
    return RayEngine()


def _print(finished: Finished, place: Path, console: Console) -> None:
    if finished.page is not None:
        text = results_text(place / "report")
        console.print(text, soft_wrap=True, markup=False, highlight=False)
        console.print(f"report page: {finished.page}", soft_wrap=True)
    for entry in finished.failed:
        line = f"failed: {entry.name}: {entry.error} (log: {entry.job.log})"
        console.print(line, style="red", soft_wrap=True, markup=False, highlight=False)
    failed, ran = len(finished.failed), sum(entry.ran for entry in finished.entries)
    counts = f"{ran - failed} run, {failed} failed, {len(finished.entries) - ran} finished before"
    console.print(f"{counts}: {place / 'cells.csv'}", soft_wrap=True, highlight=False)
    if failed:
        console.print("the same command runs what failed again, and nothing else")
