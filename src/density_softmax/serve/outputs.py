"""Writes predictions as CSV, JSON lines or Parquet, batch by batch."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from density_softmax.errors import UserError
from density_softmax.files import replacing
from density_softmax.files.tables import csv_writer

Flag = Literal["in", "out", "bad", ""]


class Record(NamedTuple):
    """One line of output.

    Attributes:
        input: a path, or the number of a row.
        label: the likeliest class; empty for a bad input.
        confidence: its probability.
        aleatoric: entropy in nats that more data would not remove.
        epistemic: how little is known about the input, higher = less known.
        flag: `in` or `out` of the domain; `bad` if it could not be read or is not finite; empty
            if the model has no policy.
        note: why an input is bad.
        typicality: the share of held-out inputs that are at least as unusual; None without a
            policy.
        action: `answer`, `abstain` or `unknown`, by the policy; empty without one.
        set: the labels that it deems possible; None if it makes no sets.
        reason: why a row is not answered; empty if it is.
        contributions: what each expert adds to `epistemic`, to six digits; empty without experts.
    """

    input: str
    label: str
    confidence: float
    aleatoric: float
    epistemic: float
    flag: Flag
    note: str
    typicality: float | None = None
    action: str = ""
    set: tuple[str, ...] | None = None
    reason: str = ""
    contributions: tuple[float, ...] = ()


# What a record holds besides its contributions.
PLAIN = Record._fields[:-1]
Write = Callable[[Sequence[Record]], object]


@contextmanager
def open_output(path: Path | None, experts: Sequence[str] = ()) -> Iterator[Write]:
    """Write records atomically, in the format that the file's name asks for.

    Args:
        path: ends in .csv, .jsonl or .parquet; None is CSV to the standard output.
        experts: the names of their contributions. These are the last columns, or in JSON an object
            called `contributions`.

    Yields:
        A function that writes some more records.
    """
    if path is None:
        yield _csv_lines(sys.stdout, experts)
        return
    if path.suffix not in (".csv", ".jsonl", ".parquet"):
        raise UserError(f"--out {path}: choose a name that ends in .csv, .jsonl or .parquet")
    if path.is_dir():
        raise UserError(f"--out {path}: is a folder; choose the name of a file")
    try:
        with replacing(path) as part, _opened(part, path.suffix, experts) as write:
            yield write
    # Inputs that cannot be read are DataErrors: any other is about the output.
    except OSError as error:
        raise UserError(
            f"--out {path}: cannot be written ({error}); free some space or choose another folder"
        ) from None


@contextmanager
def _opened(part: Path, suffix: str, experts: Sequence[str]) -> Iterator[Write]:
    if suffix == ".parquet":
        with _parquet_file(part, experts) as write:
            yield write
        return
    with part.open("w", encoding="utf-8", newline="") as file:
        yield (_csv_lines if suffix == ".csv" else _json_lines)(file, experts)


def _csv_lines(file: IO[str], experts: Sequence[str]) -> Write:
    """CSV with a header, which is not written before there is a record."""
    write, header = csv_writer(file), iter([(*PLAIN, *experts)])
    return lambda records: write(chain(header, map(_cells, records)))


def _cells(record: Record) -> tuple[Any, ...]:
    """With a set of labels as JSON, because a label may hold any separator."""
    if record.set is not None:
        text: Any = json.dumps(record.set, ensure_ascii=False)
        record = record._replace(set=text)
    return (*record[:-1], *record.contributions)


def _json_lines(file: IO[str], experts: Sequence[str]) -> Write:
    """A JSON object per line; an infinite uncertainty, which JSON cannot express, is null."""

    def line(record: Record) -> str:
        values = {name: _json_value(getattr(record, name)) for name in PLAIN}
        if experts:
            parts = zip(experts, map(_json_value, record.contributions), strict=True)
            values["contributions"] = dict(parts)
        return json.dumps(values, ensure_ascii=False) + "\n"

    return lambda records: file.writelines(map(line, records))


def _json_value(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def _parquet_file(path: Path, experts: Sequence[str]) -> Iterator[Write]:
    """A Parquet file with a row group per batch."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise UserError(
            "Parquet needs pyarrow: pip install pyarrow, or write .csv or .jsonl"
        ) from None
    numbers = ("confidence", "aleatoric", "epistemic", "typicality", *experts)
    types = dict.fromkeys(PLAIN, pyarrow.string())
    types |= dict.fromkeys(numbers, pyarrow.float64()) | {"set": pyarrow.list_(pyarrow.string())}
    schema = pyarrow.schema(types)
    with parquet.ParquetWriter(path, schema) as writer:

        def write(records: Sequence[Record]) -> None:
            names = (*PLAIN, *experts)
            rows = [dict(zip(names, (*r[:-1], *r.contributions), strict=True)) for r in records]
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))

        yield write
