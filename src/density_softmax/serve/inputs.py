"""Reads inputs to predict, batch by batch, from image folders, .npz arrays and .csv tables.

An input that cannot be read is not an error: its row is NaN, and its note says why. At most one
batch is in memory.
"""

from __future__ import annotations

import csv
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from density_softmax.errors import DataError
from density_softmax.files import IMAGE_SUFFIXES, decode
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


def read_chunks(path: Path, card: Card, batch_size: int, workers: int = 1) -> Iterator[Chunk]:
    """The inputs at a path, in order, as a model reads them.

    Args:
        path: a folder of images, an image, an .npz or a .csv file.
        card: of the model.
        batch_size: inputs per chunk.
        workers: threads that decode images.
    """
    if path.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES:
        return _image_chunks(path, card, batch_size, workers)
    if not path.is_file():
        found = "not a regular file" if path.exists() else "not found"
        raise DataError(f"{path}: {found}; check the path")
    if path.suffix == ".npz":
        return _array_chunks(path, card, batch_size)
    if path.suffix == ".csv":
        return _table_chunks(path, card, batch_size)
    raise DataError(f"{path}: predict reads an image folder, an image, an .npz or a .csv file")


def _image_chunks(path: Path, card: Card, batch_size: int, workers: int) -> Iterator[Chunk]:
    normalisation, shape = _image_normalisation(path, card), card.input_shape

    def read(file: Path) -> tuple[Floats, str]:
        try:
            return normalisation(decode(file, *shape)[None])[0], ""
        # Decoders raise errors of every kind on broken files; none may stop the others.
        except Exception as error:
            return np.full(shape, np.nan, np.float32), " ".join(str(error).split())

    found = False
    with ThreadPoolExecutor(workers) as pool:
        for files in _batches(_image_files(path), batch_size):
            found = True
            images, notes = zip(*pool.map(read, files), strict=True)
            names = [
                os.path.relpath(file, path if path.is_dir() else path.parent) for file in files
            ]
            # As text that every output format can hold.
            shown = [os.fsencode(name).decode("utf-8", "replace") for name in names]
            yield Chunk(shown, np.stack(images), list(notes))
    if not found:
        raise DataError(f"{path}: holds no images ({', '.join(IMAGE_SUFFIXES)})")


def _image_normalisation(path: Path, card: Card) -> Normalisation:
    if len(card.input_shape) != 3 or card.input_shape[0] not in (1, 3):
        raise DataError(f"{path}: images, but the model reads inputs of shape {card.input_shape}")
    if card.normalisation is None or card.normalisation.kind != "images":
        raise DataError(
            f"{path}: the model does not say how images are normalised; "
            "export it from a run, or with normalisation="
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


def _array_chunks(path: Path, card: Card, batch_size: int) -> Iterator[Chunk]:
    with _array_stream(path) as (stream, shape, dtype):
        num_rows, num_bytes = shape[0], int(np.prod(shape[1:])) * dtype.itemsize
        for first in range(0, num_rows, batch_size):
            rows = range(first, min(first + batch_size, num_rows))
            data = stream.read(len(rows) * num_bytes)
            if len(data) < len(rows) * num_bytes:
                raise DataError(f"{path}: x ends early; write the file again with numpy.savez")
            x = np.frombuffer(data, dtype).reshape(len(rows), *shape[1:])
            yield Chunk([*map(str, rows)], _prepared(x, card, path), [""] * len(rows))


@contextmanager
def _array_stream(path: Path) -> Iterator[tuple[IO[bytes], tuple[int, ...], np.dtype[Any]]]:
    """The bytes of the array `x` (or `x_test`) of an .npz file, with its shape and type."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            chosen = next((name for name in ("x", "x_test") if name in names), None)
            if chosen is None:
                raise DataError(f"{path}: holds {', '.join(names) or 'nothing'}; it needs x")
            with archive.open(f"{chosen}.npy") as stream:
                yield stream, *_array_header(path, stream)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise DataError(
            f"{path}: truncated or not an .npz file ({error}); write it again with numpy.savez"
        ) from None


def _array_header(path: Path, stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(stream)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read(stream)
    except (ValueError, KeyError) as error:
        raise DataError(f"{path}: x is not a plain array ({error!r})") from None
    if fortran or dtype.kind not in "iuf" or not shape:
        order = "in Fortran order" if fortran else f"{dtype} of shape {shape}"
        raise DataError(
            f"{path}: x is {order}; save numbers of shape (inputs, ...), numpy.ascontiguousarray(x)"
        )
    return shape, dtype


def _prepared(x: NDArray[Any], card: Card, path: Path) -> Floats:
    """Bytes and table rows are normalised; floating-point images are taken as they are."""
    normalisation = card.normalisation
    images = x.dtype == np.uint8 and len(card.input_shape) == 3
    if images:
        x = np.moveaxis(x[..., None] if x.ndim == 3 else x, -1, 1)
    if x.shape[1:] != card.input_shape:
        raise DataError(
            f"{path}: inputs of shape {x.shape[1:]}, but the model reads {card.input_shape}"
        )
    if images:
        return _image_normalisation(path, card)(x)
    if normalisation is not None and normalisation.kind == "table":
        return normalisation(x)
    with np.errstate(over="ignore"):
        return x.astype(np.float32)


def _table_chunks(path: Path, card: Card, batch_size: int) -> Iterator[Chunk]:
    if len(card.input_shape) != 1:
        raise DataError(f"{path}: a table, but the model reads inputs of shape {card.input_shape}")
    first = 0
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            filled = (line for line in csv.reader(file) if line)
            indices, width, lines = _columns(filled, card, path)
            for batch in _batches(lines, batch_size):
                rows = [_numbers(line, indices, width) for line in batch]
                x = np.array([numbers for numbers, _ in rows], np.float64)
                names = [str(first + row) for row in range(len(rows))]
                first += len(rows)
                yield Chunk(names, _prepared(x, card, path), [note for _, note in rows])
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a .csv file in UTF-8 ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    if not first:
        raise DataError(f"{path}: holds no rows")


def _columns(
    lines: Iterator[list[str]], card: Card, path: Path
) -> tuple[list[int], int, Iterator[list[str]]]:
    """The indices of the model's columns, the number of cells in a line, and the lines of values.

    If the model knows the names of its columns, the first line must contain them, in any order
    and among others. Otherwise all columns are read, and a first line without numbers is skipped.
    """
    first = [cell.strip() for cell in next(lines, [])]
    width = len(first)
    columns = card.normalisation.columns if card.normalisation is not None else ()
    if columns:
        if missing := [name for name in columns if first.count(name) != 1]:
            raise DataError(
                f"{path}: line 1 must name each column of the model once; "
                f"'{missing[0]}' is not among {', '.join(first) or 'nothing'}"
            )
        return [first.index(name) for name in columns], width, lines
    if width != card.input_shape[0]:
        raise DataError(f"{path}: {width} columns, but the model reads {card.input_shape[0]}")
    # One bad cell does not make a row of numbers a header.
    header = all(_numbers([cell], [0], 1)[1] for cell in first)
    return list(range(width)), width, lines if header else chain([first], lines)


def _numbers(line: Sequence[str], indices: Sequence[int], width: int) -> tuple[list[float], str]:
    """The numbers at some indices of a line of `width` cells, or NaN and a note."""
    note = "too many cells"
    if len(line) <= width:
        try:
            return [float(line[index]) for index in indices], ""
        except (ValueError, IndexError) as error:
            note = "too few cells" if isinstance(error, IndexError) else str(error)
    return [float("nan")] * len(indices), note


def _batches(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(islice(items, size)):
        yield batch
