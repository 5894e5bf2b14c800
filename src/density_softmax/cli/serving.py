"""The commands that leave the laboratory: export and predict."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from density_softmax.cli.pages import check_page, write_gallery
from density_softmax.cli.terminal import Terminal
from density_softmax.serve.gallery import Gallery
from density_softmax.serve.predictor import Predictor
from density_softmax.serve.stream import Served, Throughput, predict_stream

if TYPE_CHECKING:
    from density_softmax.deploy.export import Exported
    from density_softmax.deploy.quantization import Change


def run_export(
    run: Path,
    file: Path,
    int8: bool,
    by_layer: bool,
    policy: Path | None,
    promises: Mapping[str, float],
    console: Console,
) -> None:
    """Export a run and show what was checked.

    Args:
        run: the directory of a finished run.
        file: what to write.
        int8: quantise the encoder.
        by_layer: divide what the density of the layers contributes among them.
        policy: the .json file of one.
        promises: arguments of `Policy.fit`, to fit a policy to the held-out data.
        console: where the result is shown.
    """
    from density_softmax.deploy.export import export_run
    from density_softmax.runs.run import Run

    exported = export_run(
        Run.at(run), file, policy=policy, promises=promises, int8=int8, by_layer=by_layer
    )
    console.print(_summary(exported))
    if exported.card.policy is not None and exported.card.policy.promises:
        console.print(exported.card.policy.summary(), soft_wrap=True)
    if exported.change is not None:
        console.print(_price(exported.change))
    console.print(f"exported: {file} ({decimal(file.stat().st_size)})", soft_wrap=True)


def _summary(exported: Exported) -> Table:
    """How exact the export is, and the thresholds."""
    table = Table(box=box.SIMPLE, show_header=False)
    for size, difference in exported.parity.items():
        table.add_row(f"largest difference of a probability, batch {size}", f"{difference:.1e}")
    for share, value in exported.card.thresholds.items():
        table.add_row(f"epistemic threshold for {share:.0%} false alarms", f"{value:.4g}")
    return table


def _price(change: Change) -> Table:
    """What 8 bits changed on the held-out data."""
    table = Table("held-out data", "float32", "int8", title="encoder in 8 bits", box=box.SIMPLE)
    table.add_row("accuracy", *(f"{value:.4f}" for value in change.accuracy))
    table.add_row("ECE", *(f"{value:.4f}" for value in change.ece))
    table.add_row("same label", "", f"{change.same_label:.4f}")
    moved = f"{change.log_density_shift:+.3g} ± {change.log_density_spread:.3g}"
    table.add_row(
        "log density, its deviation and change", f"{change.log_density_deviation:.3g}", moved
    )
    return table


def run_predict(
    model: Path,
    path: Path,
    out: Path | None,
    page: Path | None,
    policy: Path | None,
    false_alarms: float | None,
    batch_size: int | None,
    threads: int,
    engine: Literal["local", "ray"],
) -> None:
    """Predict for every input; progress and summary go to the standard error.

    Args:
        model: an exported file, which needs no torch, or the directory of a run.
        path: an image folder, an .npz or a .csv file.
        out: a .csv, .jsonl or .parquet file; None prints CSV.
        page: an .html file of the most and the least typical inputs.
        policy: the .json file of one, in place of the model's own.
        false_alarms: share of known inputs that may be flagged; None takes that of the policy.
        batch_size: inputs in memory at once; None lets the model choose.
        threads: CPU threads; 0 takes all.
        engine: this process, or a Ray cluster, where a task has one thread.
    """
    console = Terminal(stderr=True)
    check_page(page, [path, model])
    served = _open(model, threads, policy)
    gallery = None if page is None else Gallery(served.card)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("predict"),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
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
            replica=partial(_open, model.absolute(), 1, None) if engine == "ray" else None,
            report=lambda so_far: bar.update(task, note=_line(so_far)),
            gallery=gallery,
        )
    if gallery is not None and page is not None:
        write_gallery(gallery, served, path, page)
        console.print(f"the most and the least typical inputs: {page}", soft_wrap=True)
    rows = f"{_line(found)}, a row out for each: {_flags(found)}"
    console.print(rows, soft_wrap=True)
    if served.card.policy is None:
        line = f"{model} has no policy: nothing is flagged as out of the domain"
        console.print(line, soft_wrap=True)


def _open(model: Path, threads: int, policy: Path | None) -> Served:
    """An exported file needs no torch; a run directory does."""
    if not model.is_dir():
        return Predictor(model, threads, policy)
    from density_softmax.deploy.export import RunPredictor
    from density_softmax.runs.run import Run

    return RunPredictor.of(Run.at(model), threads, policy)


def _line(found: Throughput) -> str:
    return f"{found.inputs:,} inputs in {found.seconds:.1f} s, {found.rate:,.0f} per second"


def _flags(found: Throughput) -> str:
    words = {"in": "in the domain", "out": "out of it", "bad": "bad", "": "without a flag"}
    return ", ".join(
        f"{found.flags[flag]:,} {word}" for flag, word in words.items() if found.flags[flag]
    )
