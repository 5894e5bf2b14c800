"""Tensor files: written atomically, read with errors that name the file. Nothing is unpickled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn.parameter import is_lazy

from density_softmax.errors import UserError
from density_softmax.replacing import replacing

__all__ = [
    "StorageError",
    "differences",
    "load_tensors",
    "save_tensors",
    "under",
    "write_bytes",
    "write_text",
]

NUM_NAMED = 5


class StorageError(UserError):
    """A file that cannot be used; the message names it and the remedy."""


def write_text(path: Path, text: str) -> None:
    """Write `text` so that the file is either the old one or the new one, never half of it."""
    with _replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` so that the file is either the old one or the new one, never half of it."""
    with _replacing(path) as part:
        part.write_bytes(data)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file atomically."""
    cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # safetensors refuses tensors that share memory: tied weights are written once per name.
    seen: set[int] = set()
    for name, tensor in cpu.items():
        memory = tensor.untyped_storage().data_ptr()
        if memory in seen:
            cpu[name] = tensor.clone()
        seen.add(memory)
    with _replacing(path) as part:
        # Not `save_file`, which makes files that only their owner can read.
        part.write_bytes(save(cpu, dict(metadata)))


def load_tensors(
    path: Path, device: str = "cpu", names: Sequence[str] | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and metadata of a safetensors file; of the tensors only `names`, if given."""
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


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {n.removeprefix(prefix): value for n, value in tensors.items() if n.startswith(prefix)}


def differences(stored: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """How the tensors of a file differ in names and shapes from those they are to replace."""
    theirs = {name: tuple(tensor.shape) for name, tensor in stored.items()}
    # A lazy tensor takes the shape that it is given.
    ours = {n: theirs.get(n) if is_lazy(t) else tuple(t.shape) for n, t in own.items()}
    names = [name for name in theirs | ours if theirs.get(name) != ours.get(name)]
    found = [
        f"{name} is {theirs.get(name, 'not')} in the file and {ours.get(name, 'not')} here"
        for name in names[:NUM_NAMED]
    ]
    more = len(names) - len(found)
    return "; ".join([*found, f"and {more} more"] if more else found)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    try:
        with replacing(path) as part:
            yield part
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written ({error}); free some space or choose another place"
        ) from None
