"""Reads inputs to predict, batch by batch, from image folders, .npz arrays and .csv tables.

An input that cannot be read is not an error: its row is NaN, and its note says why. At most one
batch is in memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from density_softmax.errors import DataError
from density_softmax.files import regular_file
from density_softmax.files.arrays import ArrayHeader, open_npz
from density_softmax.files.images import IMAGE_SUFFIXES, decode
from density_softmax.files.tables import CsvTable, TableRow, listed, open_csv
from density_softmax.serve.card import Card, Normalisation

Floats = NDArray[np.float32]


class Chunk(NamedTuple):
    """A batch of prepared inputs.

    Attributes:
        names: paths, or the numbers of rows from 0.
        x: what the network reads, (batch, *input shape).
        notes: why an input could not be read; empty if it could.
    """

    names: list[str]
    x: Floats
    notes: list[str]


class Part(NamedTuple):
    """A batch as it is found: nothing is decoded or normalised yet.

    Attributes:
        names: paths, or the numbers of rows from 0.
        raw: image files; or bytes or numbers, (batch, ...).
        notes: why an input could not be read; empty if it could.
    """

    names: list[str]
    raw: list[Path] | NDArray[Any]
    notes: list[str]


def read_chunks(path: Path, card: Card, batch_size: int, workers: int = 1) -> Iterator[Chunk]:
    """The inputs at a path, in order, as a model reads them.

    Args:
        path: a folder of images, an image, an .npz or a .csv file.
        card: of the model.
        batch_size: inputs per chunk.
        workers: threads that decode images.
    """
    return _chunks(read_parts(path, card, batch_size), card, workers)


def _chunks(parts: Iterator[Part], card: Card, workers: int) -> Iterator[Chunk]:
    with ThreadPoolExecutor(workers) as pool:
        for part in parts:
            yield chunk_of(part, card, pool)


def read_parts(path: Path, card: Card, batch_size: int) -> Iterator[Part]:
    """The inputs at a path, in order, with as little work as that takes.

    Args:
        path: a folder of images, an image, an .npz or a .csv file.
        card: of the model.
        batch_size: inputs per part.
    """
    kind = path.suffix.lower()
    if path.is_dir() or kind in IMAGE_SUFFIXES:
        return _image_parts(path, card, batch_size)
    regular_file(path)
    if kind == ".npz":
        return _array_parts(path, card, batch_size)
    if kind == ".csv":
        return _table_parts(path, card, batch_size)
    raise DataError(f"{path}: predict reads an image folder, an image, an .npz or a .csv file")


def chunk_of(part: Part, card: Card, pool: Executor) -> Chunk:
    """A part as a model reads it.

    Args:
        part: of `read_parts`.
        card: of the model.
        pool: decodes images.
    """
    if not isinstance(part.raw, list):
        return Chunk(part.names, prepared(part.raw, card), part.notes)
    images, notes = zip(*pool.map(partial(_decoded, card), part.raw), strict=True)
    return Chunk(part.names, np.stack(images), list(notes))


def _decoded(card: Card, file: Path) -> tuple[Floats, str]:
    """An image, or NaN and the reason."""
    try:
        return image_normalisation(str(file), card)(decode(file, *card.input_shape)[None])[0], ""
    # Decoders raise errors of every kind on broken files; none may stop the others.
    except Exception as error:
        return np.full(card.input_shape, np.nan, np.float32), " ".join(str(error).split())


def _image_parts(path: Path, card: Card, batch_size: int) -> Iterator[Part]:
    what = "a folder of images" if path.is_dir() else "an image"
    image_normalisation(f"{path}: {what}", card)
    found = False
    for files in _batches(_image_files(path), batch_size):
        found = True
        names = [os.path.relpath(file, path if path.is_dir() else path.parent) for file in files]
        # As text that every output format can hold.
        shown = [os.fsencode(name).decode("utf-8", "replace") for name in names]
        yield Part(shown, files, [""] * len(files))
    if not found:
        raise DataError(f"{path}: holds no images ({', '.join(IMAGE_SUFFIXES)})")


def image_normalisation(what: str, card: Card) -> Normalisation:
    """How a model prepares images; an error if it reads none.

    Args:
        what: the images, for error messages.
        card: of the model.
    """
    if len(card.input_shape) != 3 or card.input_shape[0] not in (1, 3):
        raise DataError(f"{what}, but the model reads inputs of shape {card.input_shape}")
    if card.normalisation is None or card.normalisation.kind != "images":
        raise DataError(
            f"{what}, but the model does not say how images are normalised; pass normalisation= "
            "to export or to predict, or export it from a run"
        )
    return card.normalisation


def _image_files(path: Path) -> Iterator[Path]:
    """Every image below a folder in the order of names, one folder's names in memory at a time."""
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            if name.lower().endswith(IMAGE_SUFFIXES):
                yield Path(folder, name)


def _array_parts(path: Path, card: Card, batch_size: int) -> Iterator[Part]:
    with open_npz(path) as archive:
        chosen = next((name for name in ("x", "x_test") if name in archive.names), None)
        if chosen is None:
            raise DataError(f"{path}: holds {', '.join(archive.names) or 'nothing'}; it needs x")
        with archive.stream(chosen) as (stream, header):
            _check_array(path, header, card)
            num_rows, *shape = header.shape
            num_bytes = math.prod(shape) * header.dtype.itemsize
            for first in range(0, num_rows, batch_size):
                rows = range(first, min(first + batch_size, num_rows))
                data = stream.read(len(rows) * num_bytes)
                x = np.frombuffer(data, header.dtype).reshape(len(rows), *shape)
                yield Part([*map(str, rows)], x, [""] * len(rows))


def _check_array(path: Path, header: ArrayHeader, card: Card) -> None:
    """Refuse an array that the model cannot read, before it is read."""
    shape, fortran, dtype = header.shape, header.fortran, header.dtype
    if fortran or dtype.kind not in "iuf" or not shape:
        order = "in Fortran order" if fortran else f"{dtype} of shape {shape}"
        raise DataError(
            f"{path}: x is {order}; save numbers of shape (inputs, ...), numpy.ascontiguousarray(x)"
        )
    if shape[0] == 0:
        raise DataError(f"{path}: holds no rows")
    one = shape[1:]
    if _are_images(dtype, card):
        image_normalisation(f"{path}: images", card)
        one = (*one, 1) if len(one) == 2 else one
        one = (*one[-1:], *one[:-1])
    if one != card.input_shape:
        raise DataError(
            f"{path}: inputs of shape {shape[1:]}, but the model reads {card.input_shape}"
        )


def _are_images(dtype: np.dtype[Any], card: Card) -> bool:
    """Whether an array of this type holds images whose channels come last."""
    return dtype == np.uint8 and len(card.input_shape) == 3


def prepared(x: NDArray[Any], card: Card) -> Floats:
    """Bytes and table rows are normalised; floating-point images are taken as they are.

    Args:
        x: inputs as they were read, (batch, ...).
        card: of the model.
    """
    if _are_images(x.dtype, card):
        x = np.moveaxis(x[..., None] if x.ndim == 3 else x, -1, 1)
        return image_normalisation("images", card)(x)
    if card.normalisation is not None and card.normalisation.kind == "table":
        return card.normalisation(x)
    with np.errstate(over="ignore"):
        return x.astype(np.float32)


def _table_parts(path: Path, card: Card, batch_size: int) -> Iterator[Part]:
    if len(card.input_shape) != 1:
        raise DataError(f"{path}: a table, but the model reads inputs of shape {card.input_shape}")
    first = 0
    with open_csv(path) as table:
        for rows in _batches(table_rows(table, card), batch_size):
            x = np.array([row.numbers for row in rows], np.float64)
            names = [str(first + row) for row in range(len(rows))]
            first += len(rows)
            yield Part(names, x, [row.problem for row in rows])
    if not first:
        raise DataError(f"{path}: holds no rows")


def table_rows(table: CsvTable, card: Card) -> Iterator[TableRow]:
    """The rows of a table, with the numbers that the model reads.

    If the model knows the names of its columns, the first line must contain them, in any order
    and among others. Otherwise all columns are read, and a first line without numbers is skipped.

    Args:
        table: an open one.
        card: of the model.
    """
    header, path = table.header, table.path
    columns = card.normalisation.columns if card.normalisation is not None else ()
    if columns:
        if wrong := [name for name in columns if header.count(name) != 1]:
            found = "twice" if wrong[0] in header else f"not among {listed(header)}"
            raise DataError(
                f"{path}: line 1 must name each column of the model once; '{wrong[0]}' is {found}"
                f"{table.hint}"
            )
        return table.rows([header.index(name) for name in columns])
    width = card.input_shape[0]
    if len(header) != width:
        raise DataError(f"{path}: {len(header)} columns, but the model reads {width}{table.hint}")
    # One bad cell does not make a row of numbers a header.
    return table.rows(range(width), headless=any(map(_looks_like_number, header)))


def _looks_like_number(cell: str) -> bool:
    """Whether a cell was meant to be a number, if only NaN."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _batches(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(islice(items, size)):
        yield batch
