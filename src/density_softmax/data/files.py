"""Where data files live, and arrays read from them without trusting them. Nothing is unpickled."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from density_softmax.errors import UserError

__all__ = ["ROOT_VARIABLE", "DataError", "data_root", "load_npy", "load_npz", "require"]

ROOT_VARIABLE = "DENSITY_SOFTMAX_DATA"


class DataError(UserError):
    """Data that cannot be used; the message names the file and the remedy."""


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
        return np.load(path, mmap_mode="c", allow_pickle=False)  # type: ignore[no-any-return]
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{path}: truncated or not an .npy array ({error}); {remedy}") from None


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name."""
    require(path, "check the path")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, OSError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path}: truncated or not an .npz file of plain arrays ({error}); write it again "
            "with numpy.savez"
        ) from None
