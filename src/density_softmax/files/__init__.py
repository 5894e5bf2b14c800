"""Files on disk: atomic writes and tensor files. Importing it does not import torch.

Nothing is ever unpickled: tensors are kept as safetensors. `files.tables` reads and writes CSV,
`files.arrays` reads .npy and .npz, `files.images` image files.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from density_softmax.errors import DataError, UserError

if TYPE_CHECKING:
    from torch import Tensor


# How the names of temporary files end; no other program's do.
PART = ".density-softmax.part"
# The name of a checksum among the metadata of a tensor file.
CHECKSUM = "sha256"
# Of model files; a change that older versions cannot read gets a new number.
MODEL_FORMAT = "1"
# File systems allow 255 bytes, some of which an ending and a temporary name need.
LONGEST_NAME = 150
# Of tensors that do not fit, so many are named in a message.
NUM_NAMED = 5


class StorageError(UserError):
    """A file that cannot be used; the message names it and the remedy."""


def regular_file(path: Path, remedy: str = "check the path") -> Path:
    """Return `path`, after checking that it is a regular file: a pipe or a device may never end.

    Args:
        path: a user's file.
        remedy: what an error tells the user to do.
    """
    if not path.is_file():
        found = "not a regular file" if path.exists() else "not found"
        raise DataError(f"{path}: {found}; {remedy}")
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file atomically: it takes its name once complete, or vanishes.

    Args:
        path: the file to create or replace; its folder is created if it does not exist, and
            cleared of what processes that were killed while writing have left.

    Yields:
        The temporary file to write to, which is locked.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path.parent)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PART}")
    with _locked(part) as lock:
        try:
            yield part
            os.fsync(lock.fileno())
            if os.name == "nt":  # where an open file cannot be renamed, and nothing is locked
                lock.close()
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _remove_leftovers(folder: Path) -> None:
    """Delete temporary files of killed processes: whoever still writes one holds a lock on it."""
    for part in folder.glob(f".*{PART}"):
        with suppress(OSError), part.open("rb") as file:
            if lock_file(file, without_locks=False):
                part.unlink()


def lock_file(file: IO[Any], *, without_locks: bool) -> bool:
    """Lock a file for this process until it is closed; return whether that worked.

    Args:
        file: any open file.
        without_locks: what to return on systems that have no locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return without_locks
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return without_locks
    return True


@contextmanager
def _locked(part: Path) -> Iterator[IO[bytes]]:
    """Create a file and hold a lock on it."""
    while True:
        with part.open("ab") as file:
            # Before the lock it may have been taken for a leftover.
            if lock_file(file, without_locks=True) and part.exists():
                yield file
                return


def short_name(name: str, whole: str | None = None) -> str:
    """A file name that is not too long: one that is cut ends in a checksum.

    Args:
        name: of a file, without its ending.
        whole: what the checksum is of; None takes the name.
    """
    data = os.fsencode(name)
    if len(data) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(os.fsencode(name if whole is None else whole)).hexdigest()
    return f"{data[:LONGEST_NAME].decode(errors='ignore')}-{digest[:8]}"


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically.

    Args:
        path: the file to create or replace.
        text: its content, written as UTF-8. Bytes of a file name that are not UTF-8 are escaped.
    """
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically; a failure, such as a full disk, is a `StorageError`.

    Args:
        path: the file to create or replace.
        data: its content.
    """
    try:
        with replacing(path) as part:
            part.write_bytes(data)
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written ({error}); free some space or choose another place"
        ) from None


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file atomically.

    Args:
        path: the file to create or replace.
        tensors: by name, on any device. Tied weights are written once per name.
        metadata: texts to keep beside them.
    """
    from safetensors.torch import save

    cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    seen: set[int] = set()
    for name, tensor in cpu.items():  # safetensors refuses tensors that share memory
        memory = tensor.untyped_storage().data_ptr()
        if memory in seen:
            cpu[name] = tensor.clone()
        seen.add(memory)
    # Not `save_file`, which makes files that only their owner can read.
    write_bytes(path, save(cpu, dict(metadata)))


def load_tensors(
    path: Path, device: str = "cpu", names: Sequence[str] | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file.

    Args:
        path: the file.
        device: where the tensors go.
        names: the tensors to read; None reads all of them.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise StorageError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt", device=device) as file:
            chosen = file.keys() if names is None else names
            return {name: file.get_tensor(name) for name in chosen}, file.metadata() or {}
    except SafetensorError as error:
        raise StorageError(
            f"{path}: truncated or not a safetensors file ({error}); delete it and run again"
        ) from None


def hash_tensor(digest: hashlib._Hash, tensor: Tensor) -> None:
    """Add the type, the shape and the values of a tensor to a digest.

    Args:
        digest: such as `hashlib.sha256()`.
        tensor: on any device.
    """
    import torch

    digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def hash_content(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """A checksum of everything that a tensor file says.

    Args:
        tensors: by name, on any device.
        metadata: the texts beside them, without the checksum itself.
    """
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        hash_tensor(digest, tensors[name])
    return digest.hexdigest()


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, without it.

    Args:
        prefix: such as `encoder.`.
        tensors: by name.
    """
    return {n.removeprefix(prefix): value for n, value in tensors.items() if n.startswith(prefix)}


def differences(stored: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """How the tensors of a file differ in names and shapes from those they are to replace.

    Args:
        stored: the tensors of the file, by name.
        own: the tensors of the module. A lazy one takes any shape, an empty one any length.

    Returns:
        A clause that names the first few; empty if all of them fit.
    """
    from torch.nn.parameter import is_lazy

    theirs = {name: tuple(tensor.shape) for name, tensor in stored.items()}
    ours = {n: theirs.get(n) if is_lazy(t) else tuple(t.shape) for n, t in own.items()}
    for name, shape in ours.items():
        if shape is not None and shape[:1] == (0,) and theirs.get(name, ())[1:] == shape[1:]:
            ours[name] = theirs[name]
    names = [name for name in theirs | ours if theirs.get(name) != ours.get(name)]
    found = [
        f"{name} is {theirs.get(name, 'not')} in the file and {ours.get(name, 'not')} here"
        for name in names[:NUM_NAMED]
    ]
    more = len(names) - len(found)
    return "; ".join([*found, f"and {more} more"] if more else found)
