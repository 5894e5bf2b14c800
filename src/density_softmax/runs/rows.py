"""Rows on disk: every number that is reported, in one CSV format."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

from density_softmax.files import StorageError, write_text
from density_softmax.files.tables import csv_reader, csv_writer
from density_softmax.types import Row


def write_rows(file: Path, rows: Iterable[Row]) -> None:
    """Write rows to a CSV file.

    Args:
        file: the CSV file to replace.
        rows: any number of them.
    """
    text = io.StringIO()
    csv_writer(text)([Row._fields, *rows])
    write_text(file, text.getvalue())


def read_rows(file: Path) -> list[Row]:
    """The rows of a CSV file.

    Args:
        file: a CSV file that `write_rows` wrote.
    """
    if not file.is_file():
        raise StorageError(f"{file}: no such file; is it a finished run?")
    with file.open(encoding="utf-8", newline="") as lines:
        reader = csv_reader(lines)
        if tuple(next(reader, ())) != Row._fields:
            raise StorageError(f"{file}: its header is not {','.join(Row._fields)}")
        try:
            return [_row(*line) for line in reader]
        except (ValueError, TypeError) as error:
            raise StorageError(f"{file}: a row cannot be read ({error})") from None


def _row(
    recipe: str, method: str, variant: str, seed: str, split: str, metric: str, value: str
) -> Row:
    return Row(recipe, method, variant, int(seed), split, metric, float(value))
