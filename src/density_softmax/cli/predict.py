"""`density-softmax predict`: labels, confidence and uncertainty for files."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from density_softmax.serve.predictor import Predictor
from density_softmax.serve.stream import Served, Throughput, predict_stream

__all__ = ["run_predict"]


def run_predict(
    model: Path, path: Path, out: Path | None, false_alarms: float, batch_size: int, threads: int
) -> None:
    """Serve everything at `path`; progress and summary go to the standard error."""
    console = Console(stderr=True)
    served = _open(model, threads)
    bar = Progress(
        SpinnerColumn(), TextColumn("predict"), TextColumn("{task.fields[note]}"), console=console
    )
    with bar:
        task = bar.add_task("predict", total=None, note="")
        found = predict_stream(
            served,
            path,
            out,
            false_alarms=false_alarms,
            batch_size=batch_size,
            workers=threads or os.cpu_count() or 1,
            report=lambda so_far: bar.update(task, note=_line(so_far)),
        )
    console.print(f"{_line(found)}: {_flags(found)}", soft_wrap=True, highlight=False)
    if not served.card.thresholds:
        console.print(f"{model} has no thresholds: nothing is flagged as out of the domain")


def _open(model: Path, threads: int) -> Served:
    """An exported file needs no torch; a run directory does."""
    if not model.is_dir():
        return Predictor(model, threads)
    from density_softmax.deploy.export import RunPredictor

    return RunPredictor.of(model, threads)


def _line(found: Throughput) -> str:
    return f"{found.inputs:,} inputs in {found.seconds:.1f} s, {found.rate:,.0f} per second"


def _flags(found: Throughput) -> str:
    words = {"in": "in the domain", "out": "out of it", "bad": "bad", "": "without a flag"}
    return ", ".join(
        f"{found.flags[flag]:,} {word}" for flag, word in words.items() if found.flags[flag]
    )
