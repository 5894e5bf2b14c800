"""The commands for trained models: export, predict, monitor. A call imports what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from density_softmax.cli.terminal import Terminal

console = Terminal()


def export(
    run: Annotated[Path, typer.Argument(help="A finished run directory.")],
    file: Annotated[Path, typer.Argument(help="The file to write: FILE.onnx or FILE.pt2.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="Quantise the encoder to 8 bits, and show what changes.")
    ] = False,
    coverage: Annotated[
        float | None, typer.Option(help="Share of prediction sets that hold the true label.")
    ] = None,
    max_error: Annotated[
        float | None, typer.Option(help="Largest share of answers that may be wrong.")
    ] = None,
    false_alarms: Annotated[
        float | None, typer.Option(help="Largest share of known inputs called unknown.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="A policy's .json file, in place of these three.")
    ] = None,
    by_layer: Annotated[
        bool, typer.Option("--by-layer", help="Tell what each layer contributes; a bit slower.")
    ] = False,
) -> None:
    """Export a run as one file: encoder, density, scale and head, a policy and class names.

    The file is written only if it answers like the model, at batch sizes 1 and 7. Prefer .onnx: a
    .pt2 file can execute code when torch loads it. --coverage, --max-error and --false-alarms fit
    a policy to the run's held-out data: temperature and scale are fitted again on one half, and
    the policy on the other. Without these options the file still knows how typical an input is,
    and calls 5 % of inputs like the held-out data unknown.

    For example

    - `density-softmax export runs/toy/density_softmax/seed0 model.onnx`

    - `density-softmax export RUN model.onnx --coverage 0.95 --max-error 0.02 --false-alarms 0.01`
    """
    from density_softmax.cli.serving import run_export

    asked = {"coverage": coverage, "max_error": max_error, "false_alarms": false_alarms}
    promises = {name: value for name, value in asked.items() if value is not None}
    run_export(run, file, int8, by_layer, policy, promises, console)


def predict(
    model: Annotated[Path, typer.Argument(help="FILE.onnx, or a run directory.")],
    path: Annotated[
        Path, typer.Argument(metavar="INPUT", help="An image folder, an .npz or a .csv file.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="A .csv, .jsonl or .parquet file; default: CSV to stdout.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="An .html page of the most and least typical inputs.")
    ] = None,
    false_alarms: Annotated[
        float | None,
        typer.Option(help="Share of known inputs called unknown; default: the policy's, or 0.05."),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="A policy's .json file, in place of the model's own.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Inputs in memory at once.")] = None,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 takes all.")] = 0,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="This machine, or a Ray cluster.")
    ] = "local",
) -> None:
    """Label every input, with confidence, uncertainty and whether it is in or out of the domain.

    An input that cannot be read becomes a row flagged `bad`. An .onnx file needs no torch.

    For example

    - `density-softmax predict model.onnx photos/ --out labels.csv`

    - `density-softmax predict model.onnx rows.csv --false-alarms 0.01`
    """
    from density_softmax.cli.serving import run_predict

    run_predict(model, path, out, page, policy, false_alarms, batch_size, threads, engine)


def monitor(
    model: Annotated[
        Path, typer.Argument(help="FILE.onnx with a policy, or the .json file of `Policy.save`.")
    ],
    stream: Annotated[
        Path,
        typer.Argument(
            help="What `predict` wrote next: .csv or .jsonl; - reads stdin; a folder that grows, "
            "of such files or of images."
        ),
    ],
    state: Annotated[Path, typer.Option(help="The state file; created, or replaced.")],
    false_alarms: Annotated[
        float, typer.Option(help="Probability that an alarm is ever raised without a change.")
    ] = 0.01,
    out: Annotated[
        Path | None, typer.Option(help="A folder for a page and a figure over time.")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Start over, after you have dealt with an alarm.")
    ] = False,
) -> None:
    """Has the world changed? Read a stream of predictions; the exit code is 3 after an alarm.

    Call it with each new file of predictions; the state file carries the evidence from call to
    call. In a folder, only files that are new since the last call are read, and images are
    predicted with the .onnx file. If nothing changes, the probability that an alarm is ever
    raised is at most --false-alarms, however long the stream is and however often you look.

    For example `density-softmax monitor policy.json labels.csv --state monitor.json --out watch`
    """
    from density_softmax.cli.monitoring import run_monitor

    if run_monitor(model, stream, state, false_alarms, out, reset, console):
        raise typer.Exit(3)
