"""The latency of finished runs, measured against each other in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from density_softmax.benchmark import load_run
from density_softmax.config import from_dict, without_places
from density_softmax.engine import start
from density_softmax.errors import UserError
from density_softmax.methods.base import Method
from density_softmax.methods.deterministic import Deterministic
from density_softmax.recipes import Recipe
from density_softmax.runs.evaluation import CONTENDERS, latency_conditions, latency_metrics
from density_softmax.runs.run import RunDirectory
from density_softmax.types import Data, Row

__all__ = ["drop_latencies", "have_met", "measure_latencies"]

REFERENCE = "deterministic"


def measure_latencies(paths: Sequence[Path]) -> list[Row]:
    """Time the methods of finished runs in turn, and write the ratios into the rows of each.

    All are runs on the same data with the same encoder, one of each method and variant. They are
    compared to the first run of `deterministic`; without any, to an untrained network of that
    kind: what a forward pass costs does not depend on its weights.
    """
    runs = _by_contender(paths)
    recipe, data = _shared(paths)
    fabric = start(recipe.engine.in_one_process())
    methods = {name: load_run(path, data.task)[2] for name, path in runs.items()}
    plain = [name for name, method in methods.items() if isinstance(method, Deterministic)]
    if not plain:
        methods[REFERENCE] = _untrained(recipe, data)
    for method in methods.values():
        fabric.to_device(method)
    example = next(data.splits[0].source.read([[0]], fabric.device)).x
    found = latency_metrics(methods, plain[0] if plain else REFERENCE, example)
    conditions = latency_conditions(fabric.device, sorted(methods))
    rows = []
    for name, path in runs.items():
        rows += _write(RunDirectory(path), found[name])
        RunDirectory(path).add_to_environment(conditions)
    return rows


def have_met(paths: Sequence[Path]) -> bool:
    """Whether the runs have been timed in turn with each other, perhaps with more besides."""
    names = {contender(path) for path in paths}
    return all(names <= set(RunDirectory(p).environment().get(CONTENDERS, ())) for p in paths)


def drop_latencies(path: Path) -> None:
    """Remove what a run measured by itself, where another of its kind stands for it.

    A mean over runs would mix two ways of measuring.
    """
    directory = RunDirectory(path)
    rows = directory.rows()
    kept = [row for row in rows if not _is_latency(row)]
    if len(kept) < len(rows):
        directory.save_rows(kept)


def contender(path: Path) -> str:
    """What the method and variant of a run are called in a measurement."""
    identity = RunDirectory(path).identity()
    method, variant = identity["recipe"]["method"]["kind"], identity["variant"]
    return str(method) if variant == "default" else f"{method} ({variant})"


def _by_contender(paths: Sequence[Path]) -> dict[str, Path]:
    """The runs by what they are called; two of the same name could not be told apart."""
    runs: dict[str, Path] = {}
    for path in paths:
        other = runs.setdefault(contender(path), path)
        if other != path:
            raise UserError(
                f"{path}: is a run of {contender(path)}, and so is {other}; give one run of each "
                "method and variant"
            )
    return runs


def _shared(paths: Sequence[Path]) -> tuple[Recipe, Data]:
    """The recipe of the first run, and the data that all runs are about."""
    recipes = [from_dict(Recipe, RunDirectory(path).identity()["recipe"]) for path in paths]
    about = [(without_places(recipe.data), recipe.encoder) for recipe in recipes]
    for path, its in zip(paths, about, strict=True):
        if its != about[0]:
            raise UserError(
                f"{path}: has other data or another encoder than {paths[0]}; "
                "measure runs that can be compared"
            )
    seed = int(RunDirectory(paths[0]).identity()["seed"])
    return recipes[0], recipes[0].load_data(seed)


def _untrained(recipe: Recipe, data: Data) -> Method:
    encoder = recipe.encoder.build(data.task.input_shape)
    return Deterministic(encoder, data.task.num_classes).eval()


def _is_latency(row: Row) -> bool:
    return row.split == "cost" and row.metric.startswith("latency_")


def _write(directory: RunDirectory, found: Mapping[str, float]) -> list[Row]:
    """Replace the latencies among the rows of a run."""
    rows = directory.rows()
    new = [Row(*rows[0][:4], "cost", metric, value) for metric, value in found.items()]
    directory.save_rows([*(row for row in rows if not _is_latency(row)), *new])
    return new
