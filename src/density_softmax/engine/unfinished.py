"""What is known of a pass over the data that is not finished, on disk: a killed one continues."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from density_softmax.config import to_dict
from density_softmax.engine.runtime import EngineConfig
from density_softmax.files import StorageError, hash_content, load_tensors, save_tensors
from density_softmax.methods.base import Method
from density_softmax.training import Values
from density_softmax.types import Source, tensors_of

if TYPE_CHECKING:
    from lightning_fabric import Fabric


# How many samples, spread over the data, tell whether the data are still the same.
NUM_LOOKED_AT = 64


@final
class UnfinishedPass:
    """Rows that a pass has computed so far, in files of some seconds' work each.

    Files of another network, of other data or of other batches are removed. A pass that takes
    less than `seconds` writes none.

    Args:
        directory: of one set of data and one process.
        identity: what the rows depend on.
        seconds: how long the work of a file takes.
    """

    def __init__(self, directory: Path, identity: str, seconds: float) -> None:
        self.directory, self.identity, self.seconds = directory, identity, seconds
        self._waiting: list[Values] = []
        self._first, self._next, self._began = 0, 0, time.monotonic()

    def known(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Steps that are done and the rows of one file after another, up to the first gap."""
        while (file := self._file(self._next)).exists():
            try:
                rows, metadata = load_tensors(file)
                found = json.loads(metadata["steps"]) if metadata["of"] == self.identity else None
            except (StorageError, KeyError, ValueError):
                found = None
            if found is None:
                break
            self._first = self._next = found
            yield found, rows
        for file in self.directory.glob("*.safetensors"):
            if int(file.stem) >= self._next:
                file.unlink()

    def add(self, values: Values) -> None:
        """Note the rows of the next step."""
        self._waiting.append({name: value.cpu() for name, value in values.items()})
        self._next += 1
        if time.monotonic() - self._began >= self.seconds:
            self._write()

    def _write(self) -> None:
        names = self._waiting[0]
        rows = {name: torch.cat([each[name] for each in self._waiting]) for name in names}
        metadata = {"of": self.identity, "steps": json.dumps(self._next)}
        self.directory.mkdir(parents=True, exist_ok=True)
        save_tensors(self._file(self._first), rows, metadata)
        self._waiting, self._first, self._began = [], self._next, time.monotonic()

    def _file(self, step: int) -> Path:
        return self.directory / f"{step:010}.safetensors"


def unfinished_pass(
    directory: Path | None,
    config: EngineConfig,
    fabric: Fabric,
    method: Method,
    source: Source,
    batch_size: int,
) -> UnfinishedPass | None:
    """The rows that a pass of a method's encoder over some data has left, or will leave.

    Args:
        directory: of the set and the process; None keeps nothing.
        config: how long the work of a file takes, and the precision of the rows.
        fabric: the processes that share the pass.
        method: whose encoder runs; its weights are a part of what the rows depend on.
        source: the samples, of which some are looked at.
        batch_size: of all processes together.
    """
    if directory is None:
        return None
    looked_at = range(0, len(source), max(1, len(source) // NUM_LOOKED_AT))
    x, y = next(source.read([looked_at], torch.device("cpu")))
    tensors = {"y": y} | {f"x{number}": part for number, part in enumerate(tensors_of(x))}
    tensors |= {f"state.{name}": value for name, value in method.state_dict().items()}
    numbers = [len(source), batch_size, fabric.global_rank, fabric.world_size]
    metadata = {"numbers": json.dumps(numbers), "method": json.dumps(to_dict(method.config))}
    metadata["precision"] = config.precision
    return UnfinishedPass(directory, hash_content(tensors, metadata), config.checkpoint_seconds)


def remove_files(directory: Path) -> None:
    """Remove mapped features, and what unfinished passes have left.

    Args:
        directory: of one process, in which there is a folder for each set.
    """
    for kind in ("npy", "safetensors"):
        for file in directory.glob(f"*/*.{kind}"):
            file.unlink()
