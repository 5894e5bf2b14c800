"""Reads what people send: image files, rows as JSON, tables as CSV.

An input that cannot be read does not spoil the others: its row is NaN and its note says why.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from density_softmax.errors import UserError
from density_softmax.files.images import decode, image_size
from density_softmax.files.tables import FOREIGN, CsvTable, listed
from density_softmax.serve.card import Card
from density_softmax.serve.inputs import Chunk, image_normalisation, prepared, table_rows
from density_softmax.service.settings import Settings

JSON, CSV = "application/json", "text/csv"
INLINE = 2**16  # bytes of a body, or pixels of an image, that are read at once
LONGEST_NAME = 200  # characters of the name of a file that an answer repeats


class RequestError(UserError):
    """A request that cannot be served.

    Args:
        status: of the answer.
        reason: what is wrong, and the remedy.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(" ".join(reason.split()))
        self.status = status


class Upload(NamedTuple):
    """A file of a request: its name, which is only repeated, its type and its content."""

    name: str
    kind: str
    content: bytes


def parse_json(body: bytes) -> Any:
    """JSON values.

    Args:
        body: of a request.
    """
    try:
        return json.loads(body)
    # An integer may have too many digits, a list may be nested too deeply.
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestError(400, f"the body is not JSON ({reason})") from None


def is_small(uploads: Sequence[Upload]) -> bool:
    """Whether a request is read so fast that a thread of its own would cost more.

    Args:
        uploads: the files of a form, or the body.
    """
    if len(uploads) != 1 or len(uploads[0].content) >= INLINE:
        return False
    if _kind(uploads[0]) != "image":
        return True
    try:
        width, height = image_size(io.BytesIO(uploads[0].content))
    except UserError:
        return False
    return width * height < INLINE


def read_inputs(
    uploads: Sequence[Upload], card: Card, settings: Settings, until: float = math.inf
) -> Chunk:
    """The inputs of a request, as a model reads them.

    Args:
        uploads: the files of a form, or the body.
        card: of the model.
        settings: the limits.
        until: when nobody waits for them any more, on the clock of `time.perf_counter`.
    """
    if not uploads:
        raise RequestError(422, "the request holds no file: send images, a CSV or JSON rows")
    if len(uploads) > settings.rows:
        raise RequestError(413, f"{len(uploads)} files, more than {settings.rows}: send fewer")
    kinds = [_kind(upload) for upload in uploads]
    try:
        if set(kinds) == {"image"}:
            return _images(uploads, card, settings, until)
        if len(uploads) > 1:
            raise RequestError(422, "several files that are not all images: send one of them")
        reader = {"csv": _table, "json": _rows}.get(kinds[0])
        if reader is None:
            raise RequestError(
                415,
                f"content of type '{uploads[0].kind[:LONGEST_NAME]}': send an image file, {JSON} "
                f"or {CSV} with its Content-Type, or a file as curl -F file=@photo.png does",
            )
        return reader(uploads[0].content, card, settings, until)
    except RequestError:
        raise
    except UserError as error:
        raise RequestError(422, str(error)) from None


def _kind(upload: Upload) -> str:
    """By the type that was declared; the name of a file decides if there is none."""
    kind, name = upload.kind.partition(";")[0].strip().lower(), upload.name.lower()
    if kind.startswith("image/"):
        return "image"
    if kind in (CSV, "application/vnd.ms-excel") or (name.endswith(".csv") and kind != JSON):
        return "csv"
    if kind == JSON or name.endswith(".json"):
        return "json"
    return "image" if upload.name and kind in ("", "application/octet-stream") else ""


def _images(uploads: Sequence[Upload], card: Card, settings: Settings, until: float) -> Chunk:
    normalisation = image_normalisation("images", card)
    channels, height, width = shape = card.input_shape

    def read(content: bytes) -> NDArray[Any]:
        pixels = decode(io.BytesIO(content), channels, height, width, settings.pixels)
        return normalisation(pixels[None])[0]

    names = [upload.name[:LONGEST_NAME] or str(n) for n, upload in enumerate(uploads)]
    contents = [upload.content for upload in uploads]
    return _each(contents, read, names, shape, until)


def _each(
    items: Sequence[Any],
    read: Callable[[Any], NDArray[Any]],
    names: list[str],
    shape: tuple[int, ...],
    until: float,
) -> Chunk:
    """Inputs that are read one by one; what fails is a row of NaN with a note."""
    x, notes = np.full((len(items), *shape), np.nan, np.float32), [""] * len(items)

    def fill(row: int) -> None:
        try:
            x[row] = read(items[row])
        # Decoders raise errors of every kind on broken files; none may stop the others.
        except Exception as error:
            notes[row] = " ".join(str(error).split())

    for row in range(len(items)):
        if perf_counter() > until:
            raise RequestError(503, f"only {row} of {len(items)} inputs were read in time")
        fill(row)
    return Chunk(names, x, notes)


def _table(content: bytes, card: Card, settings: Settings, until: float) -> Chunk:
    if len(card.input_shape) != 1:
        raise RequestError(422, f"a table, but the model reads inputs of shape {card.input_shape}")
    for magic, found in FOREIGN.items():
        if content.startswith(magic):
            raise RequestError(415, f"the table is {found}")
    text = content.decode("utf-8-sig", errors="surrogateescape")
    file: IO[str] = io.StringIO(text, newline=None)
    table = table_rows(CsvTable(Path("the table"), file), card)
    rows = list(islice(table, settings.rows + 1))
    _check_number(len(rows), settings)
    x = np.array([row.numbers for row in rows], np.float64)
    names = [str(number) for number in range(len(rows))]
    return Chunk(names, prepared(x, card), [row.problem for row in rows])


def _check_number(rows: int, settings: Settings) -> None:
    if not rows:
        raise RequestError(422, "the request holds no rows: send at least one")
    if rows > settings.rows:
        raise RequestError(413, f"more than {settings.rows} rows: send fewer at a time")


def _rows(content: bytes, card: Card, settings: Settings, until: float) -> Chunk:
    """Rows are objects with the model's columns, or arrays; `{"rows": [...]}`, a list, or one."""
    value = parse_json(content)
    rows = value["rows"] if isinstance(value, dict) and "rows" in value else value
    rows = [rows] if isinstance(rows, dict) else rows
    if not isinstance(rows, list):
        raise RequestError(422, 'send {"rows": [...]}, each row an object or a list of numbers')
    _check_number(len(rows), settings)
    columns = card.normalisation.columns if card.normalisation is not None else ()
    shape = card.input_shape

    def read(row: Any) -> NDArray[Any]:
        values = _values(row, columns) if isinstance(row, Mapping) else row
        return prepared(_numbers(values, shape)[None], card)[0]

    return _each(rows, read, [str(number) for number in range(len(rows))], shape, until)


def _values(row: Mapping[str, Any], columns: Sequence[str]) -> list[Any]:
    if not columns:
        raise UserError("an object, but the model's columns have no names: send lists of numbers")
    if missing := [name for name in columns if name not in row]:
        raise UserError(f"no field '{missing[0]}' among {listed(list(row))}")
    for name in columns:
        if type(row[name]) not in (int, float) or not math.isfinite(row[name]):
            raise UserError(f"field '{name}': {str(row[name])[:40]!r} is not a finite number")
    return [row[name] for name in columns]


def _numbers(values: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    try:
        found = np.asarray(values)
    except ValueError:
        raise UserError("its lists are not equally long") from None
    if found.dtype.kind not in "iuf" or found.shape != shape:
        raise UserError(
            f"type {found.dtype} and shape {found.shape}: send numbers of shape {list(shape)}"
        )
    if not np.isfinite(found).all():
        raise UserError("not finite")
    return found.astype(np.float64)
