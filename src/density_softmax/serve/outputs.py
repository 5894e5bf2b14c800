"""Where predictions go: CSV, JSON lines or Parquet, written as they come."""

from __future__ import annotations

import csv
import json
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, final

from density_softmax.errors import UserError
from density_softmax.files import replacing

__all__ = ["Flag", "Record", "Writer", "open_output"]

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
            if the model has no thresholds.
        note: why an input is bad.
    """

    input: str
    label: str
    confidence: float
    aleatoric: float
    epistemic: float
    flag: Flag
    note: str


class Writer(ABC):
    """Takes records as they come."""

    @abstractmethod
    def write(self, records: Sequence[Record]) -> None:
        """Some more records."""


@final
class CsvWriter(Writer):
    """A line of names, then a line per record."""

    def __init__(self, file: IO[str]) -> None:
        self._writer = csv.writer(file, lineterminator="\n")
        self._writer.writerow(Record._fields)

    def write(self, records: Sequence[Record]) -> None:
        """One line each."""
        self._writer.writerows(records)


@final
class JsonWriter(Writer):
    """A JSON object per line; an infinite uncertainty, which JSON cannot express, is null."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, records: Sequence[Record]) -> None:
        """One line each."""
        for record in records:
            values = {k: _json_value(v) for k, v in record._asdict().items()}
            self._file.write(json.dumps(values, ensure_ascii=False) + "\n")


@final
class ParquetWriter(Writer):
    """A Parquet file with a row group per batch."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ModuleNotFoundError:
            raise UserError(
                "Parquet needs pyarrow: pip install pyarrow, or write .csv or .jsonl"
            ) from None
        self._arrow = pyarrow
        types = {str: pyarrow.string(), float: pyarrow.float64()}
        kinds = (str, str, float, float, float, str, str)
        columns = [(k, types[t]) for k, t in zip(Record._fields, kinds, strict=True)]
        self._schema = pyarrow.schema(columns)
        self._writer = parquet.ParquetWriter(path, self._schema)

    def write(self, records: Sequence[Record]) -> None:
        """One row each."""
        rows = [record._asdict() for record in records]
        self._writer.write_table(self._arrow.Table.from_pylist(rows, schema=self._schema))

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


@contextmanager
def open_output(path: Path | None) -> Iterator[Writer]:
    """A writer in the format of the file's name; None is CSV to the standard output.

    A file takes its name when it is complete: an old one stays until then, and no half remains.
    """
    if path is None:
        yield CsvWriter(sys.stdout)
        return
    if path.suffix not in (".csv", ".jsonl", ".parquet"):
        raise UserError(f"--out {path}: choose a name that ends in .csv, .jsonl or .parquet")
    if path.is_dir():
        raise UserError(f"--out {path}: is a folder; choose the name of a file")
    try:
        with replacing(path) as part, _writer(part, path.suffix) as writer:
            yield writer
    # Inputs that cannot be read are DataErrors: what remains is about the output.
    except OSError as error:
        raise UserError(
            f"--out {path}: cannot be written ({error}); free some space or choose another place"
        ) from None


@contextmanager
def _writer(part: Path, suffix: str) -> Iterator[Writer]:
    if suffix == ".parquet":
        parquet = ParquetWriter(part)
        try:
            yield parquet
        finally:
            parquet.close()
        return
    with part.open("w", encoding="utf-8", newline="") as file:
        yield CsvWriter(file) if suffix == ".csv" else JsonWriter(file)


def _json_value(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
