"""Takes the first stage of a run over into another, which need not compute it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from density_softmax.config import from_dict
from density_softmax.engine import Checkpoints
from density_softmax.errors import UserError
from density_softmax.methods.base import Method
from density_softmax.recipes import Recipe
from density_softmax.runs.run import RunDirectory

__all__ = ["check_donor", "first_stage_difference", "record_of", "take_over"]


def check_donor(
    recipe: Recipe, seed: int, donor: Path, directory: RunDirectory, identity: Mapping[str, Any]
) -> None:
    """Refuse a donor whose first stage cannot be that of a run, before the run has a directory."""
    if not (directory.holds(identity) and record_of(directory).finished):
        find_donor(recipe, seed, donor)


def take_over(
    recipe: Recipe, seed: int, donor: Path, directory: RunDirectory, method: Method
) -> None:
    """Begin a run with the first stage of another, unless it is past that stage."""
    record, stage = record_of(directory, writer=True), recipe.method.first_stage()
    if not record.finished:
        found = find_donor(recipe, seed, donor)
        assert stage is not None, "else there is no donor"
        record.take_over(found, method, stage.parts)


def find_donor(recipe: Recipe, seed: int, donor: Path) -> Checkpoints:
    """The record of a run that has the first stage of another; any other run is refused."""
    if recipe.method.first_stage() is None:
        raise UserError(
            f"--from {donor}: these settings of {recipe.method.kind} have no stage that could be "
            "taken over; train without --from"
        )
    directory = RunDirectory(donor)
    identity = directory.identity()
    other, other_seed = from_dict(Recipe, identity["recipe"]), int(identity["seed"])
    difference = first_stage_difference(recipe, seed, other, other_seed)
    if difference is not None:
        raise UserError(
            f"--from {donor}: its first stage is not that of a run with {difference}; "
            "train without --from"
        )
    record = record_of(directory)
    if not record.has_first_stage():
        raise UserError(
            f"--from {donor}: its first stage is not finished, or the checkpoint is gone; "
            "continue that run with --resume, or train without --from"
        )
    return record


def first_stage_difference(recipe: Recipe, seed: int, other: Recipe, other_seed: int) -> str | None:
    """The first setting by which a run's first stage is not that of another, as `path=value`."""
    if seed != other_seed:
        return f"seed={seed}"
    ours, theirs = (replace(r, data_seed=r.resolved_data_seed(seed)) for r in (recipe, other))
    return next(iter(ours.first_stage_differences(theirs)), None)


def record_of(directory: RunDirectory, *, writer: bool = False) -> Checkpoints:
    """What a run has done so far."""
    return Checkpoints(directory.path, directory.run_identity(), resume=True, writer=writer)
