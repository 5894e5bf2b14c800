"""Checkpoints of a run: its finished stages, and how far the stage under way has come."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from density_softmax.errors import UserError
from density_softmax.files import StorageError, load_tensors, save_tensors, under, write_text
from density_softmax.methods.base import Method


@dataclass(frozen=True)
class Epoch:
    """What one epoch of a stage reports: its loss, rate, seconds and monitored values."""

    stage: str
    epoch: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class StageRecord:
    """A finished stage: its cost and the checksum of the weights it left.

    Of a stage that was interrupted, the memory is that of the process which finished it; of one
    that was taken over, the cost is that of the run that trained it, which `taken_from` names.
    """

    name: str
    seconds: float
    sha256: str = ""
    peak_memory: float = 0.0
    taken_from: str = ""


class Checkpoints:
    """Checkpoints of one run in a directory, or nowhere if that is None.

    `progress.json` names the run, its finished stages and their epochs; it is there before the
    first epoch of a stage is kept, which is thus never taken for another run's. Every file is
    replaced atomically, so that a kill at any moment leaves a state to continue from. All
    processes of a run read the directory; one of them, the writer, writes it.
    """

    def __init__(
        self,
        directory: Path | None,
        identity: Mapping[str, Any],
        *,
        resume: bool = False,
        writer: bool = True,
    ) -> None:
        self.directory = directory
        self.identity = json.loads(json.dumps(identity))
        self.writer = writer and directory is not None
        self.finished: list[StageRecord] = []
        self.epochs: list[Epoch] = []
        if directory is not None and self._progress().exists():
            self._read(resume)

    def restore(self, method: nn.Module) -> None:
        """Load what the last finished stage left."""
        if self.directory is None or not self.finished:
            return
        record = self.finished[-1]
        try:
            method.load_state_dict(self.left_by(record))
        except RuntimeError as error:
            raise StorageError(
                f"{self._file(record.name)}: was written by another version, or is another "
                f"method's ({str(error).splitlines()[-1].strip()}); {_AGAIN}"
            ) from None
        if isinstance(method, Method):
            method.mark_fitted(len(self.finished) == len(method.stages()))

    def finish(
        self,
        method: nn.Module,
        name: str,
        seconds: float,
        peak_memory: float = 0.0,
        taken_from: str = "",
    ) -> None:
        """Record that a stage is over, after so many seconds and with so many megabytes."""
        digest = ""
        if self.writer:
            save_tensors(self._file(name), method.state_dict(), {"stage": name})
            digest = _sha256(self._file(name))
        self.finished.append(StageRecord(name, seconds, digest, peak_memory, taken_from))
        if self.writer:
            self._write()
            self._file(name, "partial").unlink(missing_ok=True)

    def include(self, other: Checkpoints, name: str) -> None:
        """Take over what another run did, under the name of the part that it trained."""
        self.finished += [replace(stage, name=f"{name}-{stage.name}") for stage in other.finished]
        self.epochs += [replace(epoch, stage=f"{name}-{epoch.stage}") for epoch in other.epochs]

    def save_epoch(
        self,
        name: str,
        done: int,
        seconds: float,
        method: nn.Module,
        optimizer: Any,
        best: Mapping[str, Tensor],
    ) -> None:
        """Keep the state after `done` epochs of a stage that takes longer.

        `best` is what the stage may have to return to.
        """
        if not self.writer:
            return
        if not self._progress().exists():
            self._write()
        tensors = {f"method.{key}": value for key, value in method.state_dict().items()}
        tensors |= {f"best.{key}": value for key, value in best.items()}
        for index, state in optimizer.state_dict()["state"].items():
            for key, value in state.items():
                if value is not None:
                    tensors[f"optimizer.{index}.{key}"] = torch.as_tensor(value)
        epochs = json.dumps([asdict(epoch) for epoch in self.epochs])
        metadata = {"done": str(done), "seconds": str(seconds), "epochs": epochs}
        save_tensors(self._file(name, "partial"), tensors, metadata)

    def load_epoch(
        self, name: str, method: nn.Module, optimizer: Any
    ) -> tuple[int, float, dict[str, Tensor]]:
        """Continue a stage: its epochs done, the seconds they took, and its best weights."""
        if self.directory is None or not self._file(name, "partial").exists():
            return 0, 0.0, {}
        tensors, metadata = load_tensors(self._file(name, "partial"))
        method.load_state_dict(under("method.", tensors))
        states: dict[int, dict[str, Tensor]] = {}
        for key, value in under("optimizer.", tensors).items():
            index, _, entry = key.partition(".")
            states.setdefault(int(index), {})[entry] = value
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": states, "param_groups": groups})
        self.epochs = [Epoch(**epoch) for epoch in json.loads(metadata["epochs"])]
        best = under("best.", tensors)
        return int(metadata["done"]), float(metadata["seconds"]), best

    def left_by(self, stage: StageRecord) -> dict[str, Tensor]:
        """The state of the method after a finished stage, checked against its checksum."""
        file = self._file(stage.name)
        if file.exists() and _sha256(file) != stage.sha256:
            raise StorageError(f"{file}: truncated or changed since it was written; {_AGAIN}")
        return load_tensors(file)[0]

    def _file(self, name: str, state: str = "done") -> Path:
        assert self.directory is not None
        return self.directory / "stages" / f"{name}.{state}.safetensors"

    def _progress(self) -> Path:
        assert self.directory is not None
        return self.directory / "progress.json"

    def _read(self, resume: bool) -> None:
        assert self.directory is not None
        progress = read_progress(self.directory)
        if progress.identity != self.identity:
            raise UserError(f"{self.directory}: belongs to another run; choose another directory")
        if not resume:
            raise UserError(
                f"{self.directory}: holds this run already; resume it or choose another directory"
            )
        self.finished, self.epochs = progress.finished, progress.epochs

    def _write(self) -> None:
        names = {record.name for record in self.finished}
        progress = {
            "identity": self.identity,
            "finished": [asdict(record) for record in self.finished],
            "epochs": [asdict(epoch) for epoch in self.epochs if epoch.stage in names],
        }
        write_text(self._progress(), json.dumps(progress, indent=1))


_AGAIN = "delete the run's directory and train again"


def read_progress(directory: Path) -> Checkpoints:
    """The checkpoints that a directory holds, of any run.

    Args:
        directory: of a run.
    """
    file = directory / "progress.json"
    try:
        progress = json.loads(file.read_text(encoding="utf-8"))
        found = Checkpoints(None, progress["identity"])
        found.finished = [StageRecord(**record) for record in progress["finished"]]
        found.epochs = [Epoch(**epoch) for epoch in progress["epochs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{file}: not readable ({error}); {_AGAIN}") from None
    found.directory = directory
    return found


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()
