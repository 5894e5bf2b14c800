"""The command that watches a stream of predictions. It needs no torch."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, groupby, islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from density_softmax.cli.pages import render
from density_softmax.decide.explain import meaning_of
from density_softmax.decide.monitor import Monitor
from density_softmax.decide.policy import Policy
from density_softmax.errors import DataError, UserError
from density_softmax.files import write_text
from density_softmax.files.images import IMAGE_SUFFIXES
from density_softmax.serve.inputs import Part, chunk_of
from density_softmax.serve.predictor import Predictor

COLUMNS = ("epistemic", "confidence")
TABLE_SUFFIXES = (".csv", ".jsonl")
ROWS_AT_ONCE, IMAGES_AT_ONCE = 1000, 64


def run_monitor(
    model: Path,
    stream: Path,
    state: Path,
    false_alarms: float,
    out: Path | None,
    reset: bool,
    console: Console,
) -> bool:
    """Read a stream of predictions, keep the state, and show what is known.

    Args:
        model: an exported model with a policy, or the .json file of a policy.
        stream: a .csv or .jsonl file that `predict` wrote; - is the standard input; or a folder
            of such files, or of images, of which those are read that are new.
        state: the file of the monitor.
        false_alarms: of a monitor that begins.
        out: a folder for the page and the figure; None writes none.
        reset: begin again after an alarm.
        console: where the result is shown.

    Returns:
        Whether there is an alarm.
    """
    monitor = _opened(model, state, false_alarms)
    if reset:
        monitor.reset()
    if stream.is_dir():
        _read_folder(monitor, model, stream, state)
    else:
        _read_file(monitor, stream)
    monitor.save(state)
    table = Table(box=box.SIMPLE, show_header=False)
    for name, value in summary(monitor).items():
        table.add_row(name, value)
    console.print(table)
    if out is not None:
        console.print(f"page: {write_page(monitor, out)}", soft_wrap=True)
    return monitor.alarm


def summary(monitor: Monitor) -> dict[str, str]:
    """What is known, in words.

    Args:
        monitor: after some inputs.
    """
    accuracy, needed = monitor.accuracy, -math.log(monitor.false_alarms)
    alarm = "no alarm"
    if monitor.alarm:
        alarm = f"ALARM, at input {monitor.alarmed_at}"
    found = {
        "inputs": f"{monitor.inputs:,}, {monitor.not_finite:,} of them not finite",
        "has the world changed?": alarm,
        "evidence": f"{monitor.evidence:.2f}, an alarm at {needed:.2f}",
        "estimated accuracy": f"{accuracy.value:.1%} ({accuracy.low:.1%} to {accuracy.high:.1%})",
        "accuracy when calibrated": f"{monitor.reliability.accuracy:.1%}",
    }
    moved = ", ".join(f"{name} {value:.2f}" for name, value in monitor.moved.items())
    if monitor.alarm:
        # The two scores that raise an alarm sum up all experts: an expert says more.
        names = [name for name in monitor.moved if name not in COLUMNS] or [*monitor.moved]
        meaning = meaning_of(names[0])
        found["moved most"] = f"{names[0]}: {meaning}" if meaning else names[0]
    return {**found, "evidence of each score": moved}


def write_page(monitor: Monitor, out: Path) -> Path:
    """A figure over time, and a page that holds it.

    Args:
        monitor: after some inputs.
        out: the folder for monitor.svg and monitor.html.
    """
    drawing = io.StringIO()
    monitor.draw(drawing)
    svg = drawing.getvalue()
    write_text(out / "monitor.svg", svg)
    values = {"alarm": monitor.alarm, "summary": summary(monitor), "svg": svg[svg.index("<svg") :]}
    write_text(out / "monitor.html", render("monitor.html.j2", **values))
    return out / "monitor.html"


def _opened(model: Path, state: Path, false_alarms: float) -> Monitor:
    """The monitor of a state file, checked to be of this policy, or a new one."""
    policy = Policy.load(model) if model.suffix == ".json" else Predictor(model).policy
    if policy is None:
        raise UserError(
            f"{model}: has no policy to compare with; export it with policy= or heldout=, or pass "
            "a .json file that Policy.save wrote"
        )
    begun = Monitor(policy, false_alarms)
    if not state.exists():
        return begun
    found = Monitor.load(state)
    if not found.is_replica(begun):
        raise UserError(
            f"{state}: belongs to another policy than {model}, or another --false-alarms than "
            f"{false_alarms:g}; delete it to begin again"
        )
    return found


def _read_file(monitor: Monitor, stream: Path) -> None:
    """Epistemic scores, confidences and what experts contribute, some rows at a time."""
    experts = monitor.watches.keys() - set(COLUMNS)
    with _lines(stream) as (file, name):
        rows = _rows(file, name)
        while batch := list(islice(rows, ROWS_AT_ONCE)):
            told = experts.intersection(*batch)
            columns = {
                key: np.array([_number(row, key, name) for row in batch])
                for key in (*COLUMNS, *sorted(told))
            }
            epistemic, confidence = (columns.pop(key) for key in COLUMNS)
            monitor.update_scores(epistemic, confidence, columns)


def _read_folder(monitor: Monitor, model: Path, folder: Path, state: Path) -> None:
    """What was written since the last call, tables and images, the oldest first.

    The state keeps the time and name of the last file, and is saved with them: a call that was
    killed is continued by the next, and no input counts twice.
    """
    for are_images, found in groupby(_new_files(folder, monitor.position), _is_image):
        read = _images_reader(model, folder) if are_images else _read_file
        placed = list(found)
        size = IMAGES_AT_ONCE if are_images else 1
        for begin in range(0, len(placed), size):
            places, files = zip(*placed[begin : begin + size], strict=True)
            read(monitor, *files)
            monitor.position = places[-1]
            monitor.save(state)


def _images_reader(model: Path, folder: Path) -> Callable[..., None]:
    """What predicts images and gives the predictions to a monitor."""
    if model.suffix == ".json":
        raise UserError(f"{folder}: images need the model itself, FILE.onnx, not {model.name}")
    predictor = Predictor(model)

    def read(monitor: Monitor, *files: Path) -> None:
        part = Part([file.name for file in files], list(files), [""] * len(files))
        with ThreadPoolExecutor() as pool:
            monitor.update(predictor.predict(chunk_of(part, predictor.card, pool).x))

    return read


def _new_files(folder: Path, position: Any) -> list[tuple[Any, Path]]:
    """Files behind a position, which is the time of a file's last change and its name."""
    suffixes = (*TABLE_SUFFIXES, *IMAGE_SUFFIXES)
    files = [file for file in folder.rglob("*") if file.suffix.lower() in suffixes]
    placed = [([file.stat().st_mtime_ns, str(file.relative_to(folder))], file) for file in files]
    return sorted(each for each in placed if position is None or each[0] > position)


def _is_image(placed: tuple[Any, Path]) -> bool:
    return placed[1].suffix.lower() in IMAGE_SUFFIXES


@contextmanager
def _lines(stream: Path) -> Iterator[tuple[IO[str], str]]:
    if str(stream) == "-":
        yield sys.stdin, "the standard input"
        return
    if stream.suffix.lower() not in TABLE_SUFFIXES:
        raise UserError(f"{stream}: pass a .csv or .jsonl file that `predict` wrote")
    try:
        with stream.open(encoding="utf-8", newline="") as file:
            yield file, str(stream)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{stream}: cannot be read ({error})") from None


def _rows(file: Iterable[str], name: str) -> Iterator[Mapping[str, Any]]:
    """Lines of JSON begin with a brace, those of CSV do not."""
    lines = iter(file)
    first = next(lines, "")
    if first.lstrip().startswith("{"):
        for number, line in enumerate(chain([first], lines), 1):
            if line.strip():
                yield _parsed(line, number, name)
        return
    reader = csv.DictReader(lines, fieldnames=next(csv.reader([first]), []))
    missing = [key for key in COLUMNS if key not in (reader.fieldnames or ())]
    if missing:
        raise DataError(f"{name}: has no column {' or '.join(missing)}; pass what `predict` wrote")
    yield from reader


def _parsed(line: str, number: int, name: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
        return {**found.get("contributions", {}), **{key: found[key] for key in COLUMNS}}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            f"{name}, line {number}: no JSON object with {' and '.join(COLUMNS)}; "
            "pass what `predict` wrote"
        ) from None


def _number(row: Mapping[str, Any], key: str, name: str) -> float:
    """A number; null, which stands for an infinite one, is not finite."""
    value = row[key]
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError):
        raise DataError(
            f"{name}: {key} '{value}' is no number; pass what `predict` wrote"
        ) from None
