"""Finished stages of all runs under one root, found by a digest of what they depend on."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from torch import Tensor
from torch.nn.parameter import is_lazy

from density_softmax import __version__
from density_softmax.config import plain
from density_softmax.engine.checkpoints import Checkpoints, read_progress
from density_softmax.errors import BusyError
from density_softmax.files import StorageError, hash_tensor, lock_file
from density_softmax.methods.base import Method
from density_softmax.training import Stage

if TYPE_CHECKING:
    from lightning_fabric import Fabric


# Below the root: a file per stage. Another layout of checkpoints needs another number.
FOLDER, FORMAT = ".stages", 1
# Of a stage, all but what it computes with: functions, parameters, and what they depend on.
DESCRIBED = ("name", "descent", "reduce", "on", "split", "limit")
# Of this package, the code that decides what a stage leaves.
TRAINING_CODE = ("training.py", "data", "engine", "methods", "nn")
# Seconds between two looks at a stage that another run trains.
PATIENCE = 0.5


class StageCache:
    """Where a run looks for stages that are finished already, and records its own.

    `ROOT/.stages/DIGEST` names the run that finished a stage; its weights stay in that run's
    checkpoints, and its checksum guards them. A run locks the file while it trains the stage, and
    others that need the same one wait. The lock of a killed run is released by the system.

    Args:
        root: the folder whose runs share stages.
        inputs: what the stages of this run read, as JSON values: data, encoder, precision.
        wait: whether to wait for a stage that another run trains.
    """

    def __init__(self, root: Path, inputs: Mapping[str, Any], wait: bool = True) -> None:
        self.folder, self.root, self.inputs, self.wait = root / FOLDER, root, inputs, wait

    def digest(self, method: Method, seed: int, number: int, stage: Stage) -> str:
        """The digest of everything that decides what a stage leaves.

        Args:
            method: in the state in which the stage finds it.
            seed: of the run.
            number: of the stage in the method, from which its seeds are derived.
            stage: the stage.
        """
        described = {
            field.name: plain(getattr(stage, field.name))
            for field in fields(stage)
            if field.name in DESCRIBED
        }
        settings = {"method": method.config} if stage.settings is None else stage.settings
        words = {
            "version": [FORMAT, __version__, _code_of(method)],
            "inputs": self.inputs,
            "seed": [seed, number],
            "stage": [type(stage).__name__, described],
            "settings": {name: plain(value) for name, value in settings.items()},
        }
        digest = hashlib.sha256(json.dumps(words, sort_keys=True).encode())
        for name, tensor in _state(method.state_dict(), stage).items():
            digest.update(name.encode())
            hash_tensor(digest, tensor)
        return digest.hexdigest()

    @contextmanager
    def reserved(
        self, fabric: Fabric, digest: str, waiting: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Inside, no other run trains this stage; one that does is waited for, or an error.

        Args:
            fabric: the processes of this run, the first of which holds the lock.
            digest: of the stage.
            waiting: called once if there is a run to wait for.
        """
        lock = self._open(digest) if fabric.is_global_zero else None
        try:
            if not fabric.broadcast(lock is None or lock_file(lock, without_locks=True)):
                if not self.wait:
                    raise BusyError("another run trains the same stage; try again once it has")
                waiting()
                while not fabric.broadcast(lock is None or lock_file(lock, without_locks=True)):
                    time.sleep(PATIENCE)
            yield
        finally:
            if lock is not None:
                lock.close()

    def take_over(
        self, fabric: Fabric, digest: str, stage: Stage, method: Method, checkpoints: Checkpoints
    ) -> bool:
        """Put what a finished stage left into a method, with its epochs and cost, if there is one.

        Args:
            fabric: the processes of this run.
            digest: of the stage.
            stage: the stage.
            method: changed only in the modules of the stage; the others stay as they are.
            checkpoints: those of this run, where the stage is then finished.
        """
        found = self._find(digest, stage, method) if fabric.is_global_zero else None
        found = fabric.broadcast(found)
        if found is None:
            return False
        path, record, epochs, state = found
        method.load_state_dict(method.state_dict() | state)
        checkpoints.epochs += epochs
        origin = record.taken_from or str(path)
        checkpoints.finish(method, stage.name, record.seconds, record.peak_memory, origin)
        return True

    def add(self, digest: str, run: Path, stage: Stage) -> None:
        """Record that a run has finished a stage, where the root can be written.

        Args:
            digest: of the stage, which this run has reserved.
            run: its directory.
            stage: the stage.
        """
        entry = {"run": os.path.relpath(run, self.root), "stage": stage.name}
        with suppress(OSError):
            (self.folder / digest).write_text(json.dumps(entry), encoding="utf-8")

    def _open(self, digest: str) -> IO[str] | None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return (self.folder / digest).open("a", encoding="utf-8")
        except OSError:  # a root that is another user's: nothing is shared
            return None

    def _find(self, digest: str, stage: Stage, method: Method) -> Any:
        """The run, record, epochs and state of a finished stage; None where any is missing."""
        try:
            entry = json.loads((self.folder / digest).read_text(encoding="utf-8"))
            path = self.root / entry["run"]
            progress = read_progress(path)
            (record,) = (r for r in progress.finished if r.name == entry["stage"])
            state = _state(progress.left_by(record), stage)
        except (OSError, ValueError, KeyError, TypeError, StorageError):
            return None  # moved, deleted or damaged since: the stage is trained again
        epochs = [epoch for epoch in progress.epochs if epoch.stage == record.name]
        fits = state.keys() == _state(method.state_dict(), stage).keys()
        return (path, record, epochs, state) if fits else None


def _code_of(method: Method) -> str:
    """A digest of the code that trains a method: a stage of before an edit is not taken over."""
    classes = {type(module) for module in method.modules()}
    digest = hashlib.sha256(_training_code())
    for file in sorted({file for cls in classes if (file := _own_file(cls))}):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()


def _own_file(cls: type) -> str | None:
    """The file of a class that neither torch nor this package defines."""
    if cls.__module__.partition(".")[0] in ("torch", "density_softmax"):
        return None
    try:
        return inspect.getfile(cls)
    except (TypeError, OSError):  # written in a session, not in a file
        return None


@cache
def _training_code() -> bytes:
    folder, digest = Path(__file__).parent.parent, hashlib.sha256()
    for name in TRAINING_CODE:
        files = [folder / name] if name.endswith(".py") else sorted((folder / name).rglob("*.py"))
        for file in files:
            digest.update(file.read_bytes())
    return digest.digest()


def _state(state: Mapping[str, Tensor], stage: Stage) -> dict[str, Tensor]:
    """The tensors of the modules that a stage reads or changes."""
    return {
        name: tensor
        for name, tensor in state.items()
        if (not stage.modules or name.partition(".")[0] in stage.modules) and not is_lazy(tensor)
    }
