"""A run on disk: recipe, environment, checkpoints, epochs, predictions and rows."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from density_softmax.config import places
from density_softmax.data.sources import DataConfig
from density_softmax.engine.checkpoints import Epoch
from density_softmax.engine.runtime import EngineConfig
from density_softmax.errors import UserError
from density_softmax.files import StorageError, load_tensors, save_tensors, write_text
from density_softmax.runs.rows import read_rows, write_rows
from density_softmax.types import Prediction, Row
from density_softmax.version import __version__

__all__ = ["RunDirectory", "describe_environment"]

# Below a run: the runs of its parts.
MEMBERS = "members"
PACKAGES = ("torch", "lightning-fabric", "numpy", "scikit-learn", "safetensors")


class RunDirectory:
    """The files of one run.

    recipe.json, environment.json, progress.json and stages/ (checkpoints), epochs.csv,
    predictions/ (a file per split), features/ (of some samples, to be mapped) and rows.csv.
    Every metric can be computed from the predictions: a new one needs no new run. An ensemble
    has members/ in place of checkpoints, a run each.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def claim(self, identity: Mapping[str, Any], *, resume: bool) -> None:
        """Make the directory this run's; refuse one that is another's.

        Members may be there before the run that they are members of. A run that continues on
        another machine, where the data are elsewhere, is still the same, and looks for them there
        from then on.
        """
        if (self.path / "recipe.json").exists():
            if not self.holds(identity):
                raise UserError(
                    f"{self.path}: holds a run of another recipe or seed; choose another --out"
                )
            if not resume:
                raise UserError(
                    f"{self.path}: holds this run already; add --resume or choose another --out"
                )
            if self.identity() != _as_stored(identity):
                self._write_identity(identity)
            return
        if self.path.is_dir() and not all(map(_may_be_there, self.path.iterdir())):
            raise UserError(f"{self.path}: is not empty and not a run; choose another --out")
        write_text(self.path / "environment.json", json.dumps(describe_environment(), indent=1))
        self._write_identity(identity)

    def holds(self, identity: Mapping[str, Any]) -> bool:
        """Whether it is the directory of that run, wherever that computed."""
        if not (self.path / "recipe.json").exists():
            return False
        return self.run_identity() == _without_place(_as_stored(identity))

    def member(self, number: int) -> RunDirectory:
        """The run of one of its parts."""
        return RunDirectory(self.path / MEMBERS / str(number))

    def identity(self) -> dict[str, Any]:
        """The recipe, seed and variant, as `claim` wrote them."""
        return self._json("recipe.json")

    def run_identity(self) -> dict[str, Any]:
        """What makes the run itself, wherever it computes: whose its checkpoints are."""
        return _without_place(self.identity())

    def environment(self) -> dict[str, Any]:
        """Versions and hardware at the time of the run."""
        return self._json("environment.json")

    def add_to_environment(self, values: Mapping[str, Any]) -> None:
        """Note more about how the run was made."""
        text = json.dumps({**self.environment(), **values}, indent=1)
        write_text(self.path / "environment.json", text)

    def save_epochs(self, epochs: Sequence[Epoch]) -> None:
        """Write what each epoch reported, a line per value."""
        lines = ["stage,epoch,metric,value"]
        for epoch in epochs:
            lines += [f"{epoch.stage},{epoch.epoch},{k},{v!r}" for k, v in epoch.values.items()]
        write_text(self.path / "epochs.csv", "\n".join(lines) + "\n")

    def save_prediction(self, split: str, prediction: Prediction, labels: Tensor) -> None:
        """Keep what was predicted for a split, and its labels."""
        save_tensors(self._prediction(split), {**prediction._asdict(), "y": labels}, {})

    def prediction(self, split: str) -> tuple[Prediction, Tensor]:
        """What was predicted for a split, and its labels."""
        tensors, _ = load_tensors(self._prediction(split))
        labels = tensors.pop("y")
        return Prediction(**tensors), labels

    def epistemic(self, split: str) -> Tensor:
        """The epistemic uncertainty of a split alone: probabilities may be a thousand times it."""
        tensors, _ = load_tensors(self._prediction(split), names=("epistemic",))
        return tensors["epistemic"]

    def save_features(self, split: str, z: Tensor, labels: Tensor) -> None:
        """Keep the features of some samples of a split, and their labels."""
        save_tensors(self._features(split), {"z": z, "y": labels}, {})

    def features(self, split: str) -> tuple[Tensor, Tensor]:
        """The features that were kept of a split, and their labels."""
        tensors, _ = load_tensors(self._features(split))
        return tensors["z"], tensors["y"]

    def save_rows(self, rows: Sequence[Row]) -> None:
        """Write the run's figures."""
        write_rows(self.path / "rows.csv", rows)

    def rows(self) -> list[Row]:
        """The run's figures."""
        return read_rows(self.path / "rows.csv")

    def _prediction(self, split: str) -> Path:
        return self.path / "predictions" / f"{split}.safetensors"

    def _features(self, split: str) -> Path:
        return self.path / "features" / f"{split}.safetensors"

    def _write_identity(self, identity: Mapping[str, Any]) -> None:
        write_text(self.path / "recipe.json", json.dumps(identity, indent=1))

    def _json(self, name: str) -> dict[str, Any]:
        file = self.path / name
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise StorageError(f"{self.path}: not a run directory, it has no {name}") from None
        except ValueError as error:
            raise StorageError(f"{file}: not readable ({error}); delete the run") from None


def _as_stored(identity: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(identity))


def _may_be_there(file: Path) -> bool:
    """Whether a directory with this file can become a run's: it has members, or a kill left it."""
    return file.name in (MEMBERS, "environment.json") or file.suffix == ".part"


def _without_place(identity: Mapping[str, Any]) -> dict[str, Any]:
    """An identity that does not say where the run computes and reads."""
    recipe = identity.get("recipe", {})
    data = DataConfig.members.get(recipe.get("data", {}).get("kind"))
    free = {"engine": places(EngineConfig), "data": places(data) if data else ()}
    parts = {
        part: {name: value for name, value in recipe.get(part, {}).items() if name not in names}
        for part, names in free.items()
    }
    return {**identity, "recipe": {**recipe, **parts}}


def describe_environment() -> dict[str, Any]:
    """Versions and hardware, for whoever wants to repeat the run."""
    return {
        "density-softmax": __version__,
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }
