"""The arrays of .npy and .npz files: their headers are checked before anything else is read."""

from __future__ import annotations

import lzma
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from density_softmax.errors import DataError, UserError
from density_softmax.files import regular_file

# What a damaged, encrypted or otherwise odd archive makes zipfile and numpy raise.
ODD = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError),
    *(ValueError, KeyError, RuntimeError, NotImplementedError, AttributeError, OverflowError),
)


class ArrayHeader(NamedTuple):
    """What a file says about an array before its values."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool


@final
class Npz:
    """The arrays of an .npz file by name; what is not asked for is not read.

    Args:
        path: the file, for error messages.
        archive: the open file.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self._archive = path, archive
        members = [name for name in archive.namelist() if name.endswith(".npy")]
        self.names = tuple(dict.fromkeys(name.removesuffix(".npy") for name in members))

    def header(self, name: str) -> ArrayHeader:
        """Shape and type of an array."""
        with self.stream(name) as (_, header):
            return header

    def read(self, name: str) -> NDArray[Any]:
        """A whole array."""
        header = self.header(name)
        try:
            with self._archive.open(f"{name}.npy") as stream:
                return np.lib.format.read_array(stream, allow_pickle=False)
        except MemoryError:
            size = math.prod(header.shape) * header.dtype.itemsize
            raise DataError(
                f"{self.path}: {name} needs {size:,} bytes, more than there are"
            ) from None

    @contextmanager
    def stream(self, name: str) -> Iterator[tuple[IO[bytes], ArrayHeader]]:
        """The bytes of the values of an array, and its header."""
        with self._archive.open(f"{name}.npy") as stream:
            header = self._read_header(name, stream)
            stored = self._archive.getinfo(f"{name}.npy").file_size - stream.tell()
            if stored != math.prod(header.shape) * header.dtype.itemsize:
                raise DataError(
                    f"{self.path}: {name} is of shape {header.shape} and {header.dtype}, which "
                    f"are not {stored:,} bytes; write it again with numpy.savez"
                )
            yield stream, header

    def _read_header(self, name: str, stream: IO[bytes]) -> ArrayHeader:
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        try:
            shape, fortran, dtype = readers[np.lib.format.read_magic(stream)](stream)
        except (ValueError, KeyError) as error:
            raise DataError(f"{self.path}: {name} is not a plain array ({error!r})") from None
        if dtype.hasobject or min(shape, default=0) < 0:
            raise DataError(
                f"{self.path}: {name} is {dtype} of shape {shape}, not one of plain arrays; "
                "write it again with numpy.savez"
            )
        return ArrayHeader(shape, dtype, fortran)


@contextmanager
def open_npz(path: Path) -> Iterator[Npz]:
    """Open a user's arrays.

    Args:
        path: an .npz file.
    """
    regular_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            yield Npz(path, archive)
    except UserError:
        raise
    except ODD as error:
        raise DataError(
            f"{path}: truncated or not an .npz file of plain arrays ({error}); write it again "
            "with numpy.savez"
        ) from None


def load_npy(path: Path, remedy: str = "replace it") -> NDArray[Any]:
    """Memory-map the array of an .npy file: rows are read from disk when they are needed.

    Args:
        path: the file.
        remedy: what an error tells the user to do.
    """
    regular_file(path, remedy)
    try:
        # Copy-on-write, because torch takes no read-only memory; nothing ever writes to it.
        return np.load(path, mmap_mode="c", allow_pickle=False)
    except ODD as error:
        raise DataError(f"{path}: truncated or not an .npy array ({error}); {remedy}") from None
