"""The walk from a recipe to rows: config, data, encoder, method, predictions, metrics."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from density_softmax.config import from_dict, override, to_dict
from density_softmax.engine import Checkpoints, RunDirectory, fit, predict, start
from density_softmax.engine.evaluate import (
    cost_metrics,
    detection_metrics,
    label_metrics,
    mean_over_shifts,
)
from density_softmax.engine.progress import Bars
from density_softmax.engine.sharing import num_batches
from density_softmax.errors import UserError
from density_softmax.methods import Deterministic, Method
from density_softmax.recipes import Recipe, get_recipe
from density_softmax.types import Data, Prediction, Row, Split, Task

__all__ = ["default_directory", "evaluate", "load_run", "prepare", "run"]

Found = dict[str, dict[str, float]]


def run(
    recipe: Recipe, out: Path, *, seed: int = 0, resume: bool = False, progress: bool = True
) -> list[Row]:
    """Train and evaluate a recipe into a run directory; returns its rows."""
    fabric = start(recipe.engine)
    directory, identity = RunDirectory(out), identify(recipe, seed)
    data = recipe.data.load(seed)  # before the directory is claimed: data may be missing
    claim(fabric, directory, identity, resume)
    method = build(recipe, data.task, seed)
    record = fit(
        method,
        data.train,
        data.heldout,
        seed=seed,
        directory=out,
        resume=True,  # a directory that may not be continued was refused above
        identity=identity,
        engine=recipe.engine,
        fabric=fabric,
        progress=progress,
    )
    found = measure(fabric, recipe, method, data, directory, progress)
    found["cost"] |= {f"train_seconds:{stage.name}": stage.seconds for stage in record.finished}
    rows = as_rows(identity, found)
    if fabric.is_global_zero:
        directory.save_epochs(record.epochs)
        directory.save_rows(rows)
    return rows


def evaluate(
    path: Path, *, shifts: tuple[str, ...] = (), ood: tuple[str, ...] = (), progress: bool = True
) -> list[Row]:
    """Evaluate a finished run again, on other sets if any are named; returns and keeps its rows.

    Rows of splits that are not evaluated this time, and of training, stay.
    """
    directory = RunDirectory(path)
    recipe, seed, method = load_run(path)
    recipe = with_sets(recipe, shifts, ood)
    fabric = start(recipe.engine)
    fabric.to_device(method)
    found = measure(fabric, recipe, method, recipe.data.load(seed), directory, progress)
    rows = as_rows(directory.identity(), found)
    new = {(row.split, row.metric) for row in rows}
    rows = [row for row in directory.rows() if (row.split, row.metric) not in new] + rows
    if fabric.is_global_zero:
        directory.save_rows(rows)
    return rows


def load_run(path: Path) -> tuple[Recipe, int, Method]:
    """The recipe, the seed and the trained method of a finished run."""
    identity = RunDirectory(path).identity()
    recipe, seed = from_dict(Recipe, identity["recipe"]), int(identity["seed"])
    task = recipe.data.load(seed).task
    method = build(recipe, task, seed)
    record = Checkpoints(path, identity, resume=True, writer=False)
    if len(record.finished) < len(method.stages()):
        raise UserError(f"{path}: is not finished; continue it with train --resume")
    record.restore(method)
    return recipe, seed, method.eval()


def prepare(name: str, method: str, changes: Sequence[str] = ()) -> Recipe:
    """A recipe with the settings of a method and `path=value` changes to them."""
    recipe = get_recipe(name, method)
    for change in changes:
        recipe = override(recipe, change)
    return recipe


def default_directory(recipe: Recipe, seed: int) -> Path:
    """Where a run goes that was not told where to go."""
    variant = identify(recipe, seed)["variant"]
    name = recipe.method.kind if variant == "default" else f"{recipe.method.kind}-{variant}"
    return Path("runs") / recipe.name / re.sub(r"[^\w.=-]+", "_", name) / f"seed{seed}"


def identify(recipe: Recipe, seed: int) -> dict[str, Any]:
    """What makes a run itself."""
    default = get_recipe(recipe.name, recipe.method.kind)
    return {"recipe": to_dict(recipe), "variant": recipe.variant(default), "seed": seed}


def claim(
    fabric: Fabric, directory: RunDirectory, identity: Mapping[str, Any], resume: bool
) -> None:
    """Let one process make the directory this run's; all of them learn of a refusal."""
    refusal = None
    if fabric.is_global_zero:
        try:
            directory.claim(identity, resume=resume)
        except UserError as error:
            refusal = str(error)
    refusal = fabric.broadcast(refusal)
    if refusal is not None:
        raise UserError(refusal)


def build(recipe: Recipe, task: Task, seed: int) -> Method:
    """The untrained method of a recipe; the seed decides its first weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = recipe.encoder.build(task.input_shape)
        return recipe.method.build(encoder, task.num_classes, torch.zeros(1, *task.input_shape))


def measure(
    fabric: Fabric,
    recipe: Recipe,
    method: Method,
    data: Data,
    directory: RunDirectory,
    progress: bool,
) -> Found:
    """Predict every split, keep the predictions, and compute the metrics of each."""
    found, inside, size = Found(), None, recipe.engine.predict_batch_size
    with Bars(progress and fabric.is_global_zero) as bars:
        bar = bars.add("predict", sum(num_batches(len(s.source), size) for s in data.splits))
        for split in data.splits:
            bar.note(split.name)
            prediction, labels = predict(fabric, method, split.source, size, tick=bar.advance)
            if fabric.is_global_zero:
                directory.save_prediction(split.name, prediction, labels)
            inside = prediction if split.role == "iid" else inside
            found[split.name] = split_metrics(split, prediction, labels, inside)
    reference = Deterministic(recipe.encoder.build(data.task.input_shape), data.task.num_classes)
    example = next(data.splits[0].source.read([[0]], fabric.device)).x
    fabric.to_device(reference)
    found["cost"] = cost_metrics(method, reference.eval(), example)
    return found | mean_over_shifts(found)


def split_metrics(
    split: Split, prediction: Prediction, labels: Tensor, inside: Prediction | None
) -> dict[str, float]:
    """The metrics that the role of a split allows."""
    if split.role in ("iid", "shift"):
        return label_metrics(prediction, labels)
    if split.role == "ood":
        assert inside is not None, "the in-domain split comes first"
        return detection_metrics(inside, prediction)
    return {}


def with_sets(recipe: Recipe, shifts: tuple[str, ...], ood: tuple[str, ...]) -> Recipe:
    """The recipe with other sets to evaluate on, where any are named."""
    named = {"shifts": shifts, "ood": ood}
    changes = {name: sets for name, sets in named.items() if sets}
    known = {field.name for field in dataclasses.fields(recipe.data)}  # type: ignore[arg-type]
    for name in changes:
        if name not in known:
            raise UserError(
                f"the data of recipe '{recipe.name}' are generated whole: "
                "leave --shift and --ood away"
            )
    data = dataclasses.replace(recipe.data, **changes)  # type: ignore[type-var]
    return dataclasses.replace(recipe, data=data)


def as_rows(identity: Mapping[str, Any], found: Found) -> list[Row]:
    """Metrics by split as rows of a run."""
    recipe, variant, seed = identity["recipe"], identity["variant"], identity["seed"]
    names = recipe["name"], recipe["method"]["kind"], variant, seed
    return [
        Row(*names, split, metric, value)
        for split, values in found.items()
        for metric, value in values.items()
    ]
