"""Runs on disk: found, read and ordered, with the commands that repeat them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from density_softmax.config import differences, from_dict, without_places
from density_softmax.errors import UserError
from density_softmax.recipes import Recipe, get_recipe
from density_softmax.runs.run import RunDirectory
from density_softmax.types import Prediction, Row


@dataclass(frozen=True)
class Run:
    """A recipe and a seed, and the directory with what came of them.

    Attributes:
        path: the run directory.
        recipe: what was run.
        seed: of everything but the data, if the recipe has a seed for these.
        variant: by path, such as `method.scale`, what was changed in the recipe of this name.
    """

    path: Path
    recipe: Recipe
    seed: int
    variant: Mapping[str, Any]

    @classmethod
    def at(cls, path: Path) -> Run:
        """The run in a directory."""
        identity = RunDirectory(path).identity()
        try:
            recipe = from_dict(Recipe, identity["recipe"])
            return cls(path, recipe, int(identity["seed"]), _variant(identity["variant"], recipe))
        except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
            raise UserError(
                f"{path / 'recipe.json'}: does not describe a run ({error}); "
                "delete it or name other runs"
            ) from None

    @property
    def kind(self) -> str:
        """The registry key of its method."""
        return self.recipe.method.kind

    @property
    def variant_text(self) -> str:
        """Its changes as a row has them, `default` if there are none."""
        return variant_text(self.variant)

    @property
    def data_seed(self) -> int:
        """The seed that decided its data."""
        return self.recipe.resolved_data_seed(self.seed)

    def command(self) -> list[str]:
        """The words of the command that repeats it."""
        words = ["density-softmax", "train", self.recipe.name, "--method", self.kind]
        words += ["--seed", str(self.seed)]
        for path, value in self.variant.items():
            words += ["--set", f"{path}={_text(value)}"]
        return words

    def rows(self) -> list[Row]:
        """Its results."""
        return RunDirectory(self.path).rows()

    def environment(self) -> dict[str, Any]:
        """Versions and hardware at the time of the run."""
        return RunDirectory(self.path).environment()

    def has_prediction(self, split: str) -> bool:
        """Whether its predictions of a split were kept."""
        return (self.path / "predictions" / f"{split}.safetensors").is_file()

    def prediction(self, split: str) -> tuple[Prediction, Tensor]:
        """What was predicted for a split, and its labels."""
        return RunDirectory(self.path).prediction(split)

    def epistemic(self, split: str) -> Tensor:
        """The epistemic uncertainty of a split, without its probabilities."""
        return RunDirectory(self.path).epistemic(split)

    def features(self, split: str) -> tuple[Tensor, Tensor]:
        """The features that were kept of a split, and their labels."""
        return RunDirectory(self.path).features(split)


def find_runs(paths: Iterable[Path]) -> list[Run]:
    """The runs at or below some folders, each of them once.

    Args:
        paths: run directories, or folders of them; one without any run is an error.
    """
    places = {file.parent.resolve(): file.parent for path in paths for file in _recipes(path)}
    return [Run.at(place) for place in places.values()]


def variant_text(variant: Mapping[str, Any]) -> str:
    """A variant as rows and tables print it: the leading `method.` goes without saying.

    Args:
        variant: JSON values by path; without any it is the `default`.
    """
    changes = ((path.removeprefix("method."), value) for path, value in variant.items())
    return ", ".join(f"{path}={_text(value)}" for path, value in changes) or "default"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _variant(stored: Any, recipe: Recipe) -> dict[str, Any]:
    """The changes as a mapping; a text that an older version stored is found again."""
    if isinstance(stored, dict):
        return stored
    default = without_places(get_recipe(recipe.name, recipe.method.kind))
    found = (change.partition("=") for change in differences(default, without_places(recipe)))
    return {path: _parsed(text) for path, _, text in found}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _recipes(path: Path) -> list[Path]:
    if not path.exists():
        raise UserError(f"{path}: no such run; pass run directories or a folder that holds some")
    files = sorted(path.rglob("recipe.json"))
    if not files:
        raise UserError(
            f"{path}: no run found, there is no recipe.json at or below it; "
            "make one with density-softmax train"
        )
    places = {file.parent for file in files}
    # A run inside another is a member of it, and counts there.
    return [file for file in files if places.isdisjoint(file.parent.parents)]
