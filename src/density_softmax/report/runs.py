"""The runs that a report is about: found on disk, in order, with the commands that made them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from density_softmax.config import to_dict
from density_softmax.errors import UserError
from density_softmax.report.names import (
    changed_part,
    line_name,
    line_order,
    setting_name,
    split_variant,
    variant_of_data,
    variant_of_line,
)
from density_softmax.runs.run import Run as StoredRun
from density_softmax.types import Row

__all__ = [
    "LeftOut",
    "Run",
    "Runs",
    "by_setting",
    "find_runs",
    "first_seeds",
    "rows_of",
    "seeds_of",
]

# Of a recipe, beside its method, whose name a variant leaves out.
OTHER_PARTS = ("data", "data_seed", "encoder", "engine")


@dataclass(frozen=True)
class Run:
    """A run directory and what its recipe.json says it is."""

    path: Path
    recipe: Mapping[str, Any]
    variant: str
    seed: int

    @property
    def directory(self) -> StoredRun:
        """Access to its files."""
        return StoredRun.at(self.path)

    @property
    def method(self) -> str:
        """The registry key of its method."""
        return str(self.recipe["method"]["kind"])

    @property
    def data(self) -> Mapping[str, Any]:
        """Its data config as plain values."""
        return self.recipe["data"]

    @property
    def data_seed(self) -> int:
        """The seed that decided its data."""
        own = self.recipe.get("data_seed")
        return self.seed if own is None else int(own)

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What its rows begin with."""
        return str(self.recipe["name"]), self.method, self.variant, self.seed

    @property
    def label(self) -> str:
        """Its name among runs on the same data."""
        return line_name(self.method, variant_of_line(self.variant))

    @property
    def setting(self) -> str:
        """The name of its recipe and data: figures compare runs that have it in common."""
        return setting_name(self.key[0], variant_of_data(self.variant))

    @property
    def command(self) -> str:
        """The command line that repeats it."""
        words = ["density-softmax", "train", self.key[0], "--method", self.method]
        words += ["--seed", str(self.seed)]
        for assignment in split_variant(self.variant):
            elsewhere = changed_part(assignment) in OTHER_PARTS
            words += ["--set", assignment if elsewhere else f"method.{assignment}"]
        return shlex.join(words)

    def predicted(self, split: str) -> bool:
        """Whether its predictions of a split were kept."""
        return (self.path / "predictions" / f"{split}.safetensors").is_file()


@dataclass(frozen=True)
class LeftOut:
    """A run that a report cannot show, and why."""

    run: Run
    reason: str


@dataclass(frozen=True)
class Runs:
    """Finished runs, ordered by recipe, method, variant and seed, and those left out."""

    finished: tuple[Run, ...]
    left_out: tuple[LeftOut, ...]

    def rows(self) -> list[Row]:
        """The rows of all finished runs."""
        return rows_of(self.finished)


def find_runs(paths: Sequence[Path]) -> Runs:
    """The runs at or below the paths; a path without any raises."""
    places = {file.parent.resolve(): file.parent for path in paths for file in _recipes(path)}
    found = sorted((_read(place) for place in places.values()), key=_order)
    finished: dict[tuple[str, str, str, int], Run] = {}
    left_out = []
    for run in found:
        if not (run.path / "rows.csv").is_file():
            left_out.append(LeftOut(run, "unfinished: it has no rows.csv"))
        elif run.key in finished:
            left_out.append(LeftOut(run, f"the same run as {finished[run.key].path}"))
        else:
            finished[run.key] = run
    return Runs(tuple(finished.values()), tuple(left_out))


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """The rows of these runs, in their order."""
    return [row for run in runs for row in run.directory.rows()]


def seeds_of(runs: Sequence[Run]) -> str:
    """The seeds of these runs, as a sentence of a caption."""
    seeds = sorted({run.seed for run in runs})
    return f"Seed{'s' if seeds[1:] else ''} {', '.join(map(str, seeds))}."


def by_setting(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs that can be compared, by the name of their setting."""
    settings: dict[str, list[Run]] = {}
    for run in runs:
        settings.setdefault(run.setting, []).append(run)
    return settings


def first_seeds(runs: Sequence[Run], split: str | None = None) -> list[Run]:
    """The run with the lowest seed of each recipe, method and variant.

    With a split, of those runs that kept their predictions of it.
    """
    chosen: dict[tuple[str, ...], Run] = {}
    for run in (run for run in runs if split is None or run.predicted(split)):
        best = chosen.setdefault(run.key[:3], run)
        chosen[run.key[:3]] = min(best, run, key=lambda each: each.seed)
    return list(chosen.values())


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


def _read(place: Path) -> Run:
    run = StoredRun.at(place)
    return Run(place, to_dict(run.recipe), run.variant_text, run.seed)


def _order(run: Run) -> tuple[str, tuple[int, str, bool, str], int, str]:
    return run.key[0], line_order(run.method, run.variant), run.seed, str(run.path)
