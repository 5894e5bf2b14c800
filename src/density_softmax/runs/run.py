"""A run: a recipe, a seed and the directory that holds everything about them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from density_softmax.config import assignment, from_dict, local_settings, to_dict
from density_softmax.data.sources import DataConfig
from density_softmax.engine.checkpoints import Checkpoints, Epoch
from density_softmax.engine.runtime import EngineConfig, derive_seed, describe_environment
from density_softmax.engine.stage_cache import StageCache
from density_softmax.errors import UserError
from density_softmax.files import (
    StorageError,
    hash_tensor,
    load_tensors,
    save_tensors,
    short_name,
    write_text,
)
from density_softmax.methods.base import Method
from density_softmax.recipes import Recipe, get_recipe
from density_softmax.runs.rows import read_rows, write_rows
from density_softmax.types import Data, Prediction, Row, Task

# Of recipe.json; a run of another format is not read.
FORMAT = 2
# Where runs go, and the name of a folder whose runs share finished stages.
ROOT = Path("runs")
MEMBERS = "members"
# Data of one configuration are told apart by all of their samples, or by some of many.
FEW, NUM_HASHED, AT_ONCE = 5_000, 500, 100


class Run:
    """What a recipe and a seed are to become, or have become, in a directory.

    | file | content |
    |---|---|
    | `recipe.json` | the recipe, its variant and the seed |
    | `environment.json` | versions and hardware |
    | `progress.json`, `stages/` | checkpoints |
    | `epochs.csv` | loss, rate and held-out values of every epoch; written when all is trained |
    | `predictions/` | probabilities and uncertainties of every sample of every split |
    | `features/` | features of some test samples, to draw maps of |
    | `rows.csv` | every number that is reported; written last |
    | `members/0`, ... | of an ensemble, in place of checkpoints: a run for each member |

    Args:
        recipe: everything that decides the result, except the seed.
        seed: decides data, weights and batches.
        path: the directory; by default one below `runs`, named after recipe, method, variant, seed.
        root: the folder whose runs share finished stages; by default the outermost folder above
            the run that is called `runs`, else the one that it lies in.
        variant: how the recipe deviates from the one of its name, if that is known already.
        ensemble: the run whose member it is, and whose data it reads.
    """

    def __init__(
        self,
        recipe: Recipe,
        seed: int = 0,
        path: Path | None = None,
        *,
        root: Path | None = None,
        variant: Mapping[str, Any] | None = None,
        ensemble: Run | None = None,
    ) -> None:
        self.recipe, self.seed, self._ensemble = recipe, seed, ensemble
        if variant is None:
            variant = recipe.variant(get_recipe(recipe.name, recipe.method.kind))
        self.variant = dict(variant)
        self.path = ROOT / recipe.name / self.line / f"seed{seed}" if path is None else path
        self.root = shared_root(self.path.parent) if root is None else root

    @classmethod
    def at(cls, path: Path) -> Run:
        """The run that a directory holds."""
        stored = _read_json(path, "recipe.json")
        if stored.get("format") != FORMAT:
            raise StorageError(
                f"{path}: was made by another version of density-softmax, whose runs this one does "
                "not read; train it again into another directory"
            )
        try:
            recipe = from_dict(Recipe, stored["recipe"])
            return cls(recipe, int(stored["seed"]), path, variant=stored["variant"])
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"{path / 'recipe.json'}: does not describe a run ({error}); delete the run"
            ) from None

    @property
    def kind(self) -> str:
        """The registry key of its method."""
        return self.recipe.method.kind

    @property
    def variant_text(self) -> str:
        """Its variant as rows and tables print it."""
        return variant_text(self.variant)

    @property
    def line(self) -> str:
        """Its method and variant as a name for files."""
        name = "-".join([self.kind, variant_text(self.variant)] if self.variant else [self.kind])
        return short_name(re.sub(r"[^\w.=-]+", "_", name), whole=name)

    @property
    def data_seed(self) -> int:
        """The seed that decides its data."""
        return self.recipe.resolved_data_seed(self.seed)

    def command(self) -> list[str]:
        """The command line that repeats it."""
        words = ["density-softmax", "train", self.recipe.name, "--method", self.kind]
        words += ["--seed", str(self.seed)]
        for change in self.variant.items():
            words += ["--set", assignment(*change)]
        return words

    @cached_property
    def data(self) -> Data:
        """Its data, loaded when they are first asked for."""
        return self.recipe.load_data(self.seed) if self._ensemble is None else self._ensemble.data

    @cached_property
    def members(self) -> tuple[Run, ...]:
        """The runs of the members of an ensemble: the same data, other weights and orders."""
        return tuple(
            Run(
                replace(self.recipe, method=config, data_seed=self.data_seed),
                derive_seed(self.seed, number),
                self.path / MEMBERS / str(number),
                root=self.root,
                ensemble=self,
            )
            for number, config in enumerate(self.recipe.method.ensemble())
        )

    def member(self, number: int) -> Run:
        """One of these runs."""
        if number >= len(self.members):
            raise UserError(
                f"--member {number}: {self.kind} has {len(self.members)} members, counted from 0"
                if self.members
                else f"--member {number}: {self.kind} has no members; omit --member"
            )
        return self.members[number]

    def build(self, task: Task | None = None) -> Method:
        """Its method with the first weights of its seed. Pass `task` to skip loading the data."""
        task = task or self.data.task
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            encoder = self.recipe.encoder.build(task.input_shape)
            example = torch.zeros(1, *task.input_shape)
            return self.recipe.method.build(encoder, task.num_classes, example)

    def load(self, task: Task | None = None) -> Method:
        """Its trained method, in evaluation mode. Pass `task` to skip loading the data."""
        method = self.build(task)
        self._restore(method)
        return method.eval()

    def _restore(self, method: Method) -> None:
        for member, part in zip(self.members, method.ensemble(), strict=True):
            member._restore(part)
        if self.members:
            return
        record = self.checkpoints()
        if len(record.finished) < len(method.stages()):
            raise UserError(f"{self.path}: is not finished; continue it with train --resume")
        record.restore(method)

    @property
    def identity(self) -> dict[str, Any]:
        """What makes it itself, wherever it computes and reads."""
        return _identity(self._description())

    def exists(self) -> bool:
        """Whether its directory holds it, finished or not."""
        stored = (self.path / "recipe.json").is_file()
        return stored and self.identity == _identity(_read_json(self.path, "recipe.json"))

    def is_trained(self) -> bool:
        """Whether its directory holds it with all stages finished."""
        return (self.path / "epochs.csv").is_file() and self.exists()

    def is_finished(self) -> bool:
        """Whether its directory holds it, trained and evaluated."""
        return self.has_rows() and self.exists()

    def claim(self, *, resume: bool) -> None:
        """Make the directory this run's; refuse one that is another's.

        The members of an ensemble may be there first. A run that continues on another machine,
        where the data are elsewhere, is the same run, and looks for them there from then on.
        """
        if (self.path / "recipe.json").exists():
            if not self.exists():
                raise UserError(
                    f"{self.path}: holds a run of another recipe or seed, or of another version; "
                    "choose another --out"
                )
            if not resume:
                raise UserError(
                    f"{self.path}: holds this run already; add --resume or choose another --out"
                )
        elif self.path.is_dir() and not all(map(_may_come_first, self.path.iterdir())):
            raise UserError(f"{self.path}: is not empty and not a run; choose another --out")
        else:
            self._write_json("environment.json", describe_environment())
        self._write_json("recipe.json", self._description())

    def checkpoints(self) -> Checkpoints:
        """Its finished stages and epochs, to read."""
        return Checkpoints(self.path, self.identity, resume=True, writer=False)

    def stage_cache(self, wait: bool = True) -> StageCache:
        """Where it finds stages of other runs under its root; `wait` for those they still train."""
        inputs = self.recipe.training_inputs(self.seed)
        return StageCache(self.root, {**inputs, "samples": _hash_samples(self.data)}, wait)

    def environment(self) -> dict[str, Any]:
        """Versions and hardware at the time of the run."""
        return _read_json(self.path, "environment.json")

    def add_to_environment(self, values: Mapping[str, Any]) -> None:
        """Note more about how the run was made."""
        self._write_json("environment.json", {**self.environment(), **values})

    def save_epochs(self, epochs: Sequence[Epoch]) -> None:
        """Write what each epoch reported, a line per value."""
        lines = ["stage,epoch,metric,value"]
        for epoch in epochs:
            lines += [f"{epoch.stage},{epoch.epoch},{k},{v!r}" for k, v in epoch.values.items()]
        write_text(self.path / "epochs.csv", "\n".join(lines) + "\n")

    def save_prediction(self, split: str, prediction: Prediction, labels: Tensor) -> None:
        """Keep what was predicted for a split, and its labels."""
        tensors = {**prediction._asdict(), "y": labels}
        save_tensors(self._file("predictions", split), tensors, {})

    def has_prediction(self, split: str) -> bool:
        """Whether its predictions of a split were kept."""
        return self._file("predictions", split).is_file()

    def prediction(self, split: str) -> tuple[Prediction, Tensor]:
        """What was predicted for a split, and its labels."""
        tensors, _ = load_tensors(self._file("predictions", split))
        labels = tensors.pop("y")
        return Prediction(**tensors), labels

    def epistemic(self, split: str) -> Tensor:
        """The epistemic uncertainty of a split, without its probabilities, which may be large."""
        tensors, _ = load_tensors(self._file("predictions", split), names=("epistemic",))
        return tensors["epistemic"]

    def save_features(self, split: str, z: Tensor, labels: Tensor) -> None:
        """Keep the features of some samples of a split, and their labels."""
        save_tensors(self._file("features", split), {"z": z, "y": labels}, {})

    def features(self, split: str) -> tuple[Tensor, Tensor]:
        """The features that were kept of a split, and their labels."""
        tensors, _ = load_tensors(self._file("features", split))
        return tensors["z"], tensors["y"]

    def has_rows(self) -> bool:
        """Whether it was evaluated."""
        return (self.path / "rows.csv").is_file()

    def save_rows(self, rows: Iterable[Row]) -> None:
        """Write its results."""
        write_rows(self.path / "rows.csv", rows)

    def rows(self) -> list[Row]:
        """Its results."""
        return read_rows(self.path / "rows.csv")

    def make_rows(self, found: Mapping[str, Mapping[str, float]]) -> list[Row]:
        """Values by split and metric as rows of this run."""
        names = self.recipe.name, self.kind, self.variant_text, self.seed
        return [
            Row(*names, split, *each) for split, values in found.items() for each in values.items()
        ]

    def _file(self, folder: str, split: str) -> Path:
        return self.path / folder / f"{'/'.join(map(short_name, split.split('/')))}.safetensors"

    def _description(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "recipe": to_dict(self.recipe),
            "variant": self.variant,
            "seed": self.seed,
        }

    def _write_json(self, name: str, values: Mapping[str, Any]) -> None:
        text = json.dumps(values, indent=1)
        if not (self.path / name).is_file() or (self.path / name).read_text("utf-8") != text:
            write_text(self.path / name, text)


def variant_text(variant: Mapping[str, Any]) -> str:
    """A variant as rows and tables print it, without the leading `method.`.

    Args:
        variant: JSON values by path; without any it is the `default`.
    """
    texts = (assignment(path.removeprefix("method."), value) for path, value in variant.items())
    return ", ".join(texts) or "default"


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The directories of the runs at or below some folders, each of them once.

    Args:
        paths: run directories, or folders of them; one without any run is an error.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise UserError(
                f"{path}: no such run; pass run directories or a folder that holds some"
            )
        folders = {file.parent for file in sorted(path.rglob("recipe.json"))}
        if not folders:
            raise UserError(
                f"{path}: no run found, there is no recipe.json at or below it; "
                "make one with density-softmax train"
            )
        # A run inside another is a member of it, and counts there.
        outermost = (folder for folder in folders if folders.isdisjoint(folder.parents))
        found |= {folder.resolve(): folder for folder in outermost}
    return list(found.values())


def shared_root(folder: Path) -> Path:
    """The folder whose runs share finished stages with those in `folder`.

    Args:
        folder: of runs. The root is the outermost folder called `runs` at or above it, else itself.
    """
    folder = folder.absolute()
    return next((f for f in (*reversed(folder.parents), folder) if f.name == ROOT.name), folder)


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    file = folder / name
    if not file.is_file():  # a pipe would never end
        raise StorageError(f"{folder}: not a run directory, it has no {name}")
    try:
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StorageError(f"{file}: not readable ({error}); delete the run") from None
    return values


def _may_come_first(file: Path) -> bool:
    """Whether a directory with this file can become a run's: it has members, or a kill left it."""
    return file.name in (MEMBERS, "environment.json") or file.suffix == ".part"


def _identity(description: Mapping[str, Any]) -> dict[str, Any]:
    """What recipe.json says, but not where the run computes and reads; the variant follows."""
    recipe = description.get("recipe", {})
    data = DataConfig.members.get(recipe.get("data", {}).get("kind"))
    free = {"engine": local_settings(EngineConfig), "data": local_settings(data) if data else ()}
    parts = {
        part: {name: value for name, value in recipe.get(part, {}).items() if name not in names}
        for part, names in free.items()
    }
    kept = {name: description.get(name) for name in ("format", "seed")}
    identity: dict[str, Any] = json.loads(json.dumps({**kept, "recipe": {**recipe, **parts}}))
    return identity


def _hash_samples(data: Data) -> list[Any]:
    """The number of training and held-out samples, and a digest of them."""
    digest = hashlib.sha256()
    sources = [source for source in (data.train, data.heldout) if source is not None]
    for source in sources:
        step = 1 if len(source) <= FEW else len(source) // NUM_HASHED
        chosen = range(0, len(source), step)
        batches = [chosen[start : start + AT_ONCE] for start in range(0, len(chosen), AT_ONCE)]
        for batch in source.read(batches, torch.device("cpu")):
            hash_tensor(digest, batch.x)
            hash_tensor(digest, batch.y)
    return [*(len(source) for source in sources), digest.hexdigest()]
