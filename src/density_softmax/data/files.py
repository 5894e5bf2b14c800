"""Where data files live, and arrays read from them without trusting them. Nothing is unpickled."""

from __future__ import annotations

import errno
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from density_softmax.errors import DataError

__all__ = [
    "ROOT_VARIABLE",
    "DataError",
    "Report",
    "data_root",
    "full_disk_named",
    "is_disk_full",
    "load_npy",
    "load_npz",
    "require",
]

ROOT_VARIABLE = "DENSITY_SOFTMAX_DATA"

Report = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is to do."""


def data_root(root: str | Path | None = None) -> Path:
    """Where data sets live: `root`, else $DENSITY_SOFTMAX_DATA, else ~/.cache/density-softmax."""
    chosen = root or os.environ.get(ROOT_VARIABLE) or Path("~/.cache/density-softmax")
    return Path(chosen).expanduser()


def require(path: Path, remedy: str) -> Path:
    """`path`, if it is there."""
    if not path.exists():
        raise DataError(f"{path}: not found; {remedy}")
    return path


def load_npy(path: Path, remedy: str = "replace it") -> NDArray[Any]:
    """The array of an .npy file, memory-mapped: rows are read from disk when they are needed."""
    require(path, remedy)
    try:
        # Copy-on-write, because torch takes no read-only memory; nothing ever writes to it.
        return np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{path}: truncated or not an .npy array ({error}); {remedy}") from None


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name."""
    require(path, "check the path")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, OSError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path}: truncated or not an .npz file of plain arrays ({error}); write it again "
            "with numpy.savez"
        ) from None


@contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Turn the error of a full disk into one that says what to do."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        free = shutil.disk_usage(path if path.exists() else path.parent).free
        raise DataError(
            f"{path}: no space left on the disk ({free:,} bytes free); make room and run the same "
            "command to continue"
        ) from None


def is_disk_full(error: Exception) -> bool:
    """Whether the disk, or the user's share of it, is used up."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
