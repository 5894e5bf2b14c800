"""The walk from a recipe to rows: config, data, encoder, method, predictions, metrics."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from density_softmax.config import from_dict, override, to_dict
from density_softmax.engine import Checkpoints, fit, predict, start
from density_softmax.engine.passes import num_batches
from density_softmax.engine.progress import Bars
from density_softmax.engine.runtime import derive_seed
from density_softmax.errors import UserError
from density_softmax.handover import check_donor, record_of, take_over
from density_softmax.methods.base import Method
from density_softmax.methods.deterministic import Deterministic
from density_softmax.recipes import Recipe, get_recipe
from density_softmax.runs.evaluation import (
    cost_metrics,
    detection_metrics,
    keep_features,
    label_metrics,
    latency_conditions,
    lipschitz_metrics,
    mean_over_shifts,
    training_sample,
)
from density_softmax.runs.run import RunDirectory
from density_softmax.types import Data, Prediction, Row, Split, Task

__all__ = [
    "build",
    "choose_member",
    "default_directory",
    "evaluate",
    "identify",
    "load_run",
    "prepare",
    "run",
    "run_name",
]

Found = dict[str, dict[str, float]]

# In-domain test samples on which the lower bound of the Lipschitz constant is the largest seen.
LIPSCHITZ_SAMPLES = 256

# What a split is to a run, by a metric that tells.
ROLES = {"nll": "shift", "cnll": "mean over shifts", "auroc:confidence": "ood"}

# File systems allow 255 bytes; a variant may be longer.
LONGEST_NAME = 150


def run(
    recipe: Recipe,
    out: Path,
    *,
    seed: int = 0,
    resume: bool = False,
    donor: Path | None = None,
    evaluated: bool = True,
    progress: bool = True,
) -> list[Row]:
    """Train and evaluate a recipe into a run directory; returns its rows.

    The first stage is taken over from the run `donor`, if there is one and it is the same there.
    Without an evaluation there are no rows: what is trained is to become part of something else.
    A run that has rows is evaluated again, like by `evaluate`: other rows and latency stay.
    """
    fabric = start(recipe.engine)
    directory, identity = RunDirectory(out), identify(recipe, seed)
    data = recipe.load_data(seed)  # before the directory is claimed: data may be missing
    if donor is not None:  # before as well: it may be refused
        on_first(fabric, lambda: check_donor(recipe, seed, donor, directory, identity))
    claim(fabric, directory, identity, resume)
    method, record = train(fabric, recipe, seed, data, directory, progress, donor)
    if not evaluated:
        return []
    kept = directory.rows() if (out / "rows.csv").is_file() else []
    found = measure(fabric, recipe, method, data, directory, progress)
    cost = {} if kept else own_cost(fabric, recipe, method, data, directory)
    found["cost"] = cost | training_cost(record)
    return keep(fabric, directory, kept, found)


def train(
    fabric: Fabric,
    recipe: Recipe,
    seed: int,
    data: Data,
    directory: RunDirectory,
    progress: bool,
    donor: Path | None = None,
) -> tuple[Method, Checkpoints]:
    """The trained method of a run whose directory is claimed, and the record of its training."""
    if recipe.method.parts():
        method, record = train_members(fabric, recipe, seed, data, directory, progress)
    else:
        method = build(recipe, data.task, seed)
        if donor is not None:
            on_first(fabric, lambda: take_over(recipe, seed, donor, directory, method))
        record = fit(
            method,
            data.train,
            data.heldout,
            seed=seed,
            directory=directory.path,
            resume=True,  # a directory that may not be continued was not claimed
            identity=directory.run_identity(),
            engine=recipe.engine,
            fabric=fabric,
            progress=progress,
        )
    if fabric.is_global_zero:
        directory.save_epochs(record.epochs)
    return method, record


def train_members(
    fabric: Fabric, recipe: Recipe, seed: int, data: Data, directory: RunDirectory, progress: bool
) -> tuple[Method, Checkpoints]:
    """The method put together from its parts: those that are finished are loaded, others trained.

    Each is a run in a directory of its own, and where that run was trained does not matter.
    """
    method, record = build(recipe, data.task, seed), Checkpoints(None, {})
    runs = zip(method.parts(), member_runs(recipe, seed), strict=True)
    for number, (part, (part_recipe, part_seed)) in enumerate(runs):
        place = directory.member(number)
        claim(fabric, place, identify(part_recipe, part_seed), resume=True)
        trained, its = train(fabric, part_recipe, part_seed, data, place, progress)
        part.load_state_dict(trained.state_dict())
        record.include(its, f"member{number}")
    fabric.to_device(method)
    return method.eval(), record


def member_runs(recipe: Recipe, seed: int) -> list[tuple[Recipe, int]]:
    """The recipe and the seed of each part of a method: the same data, other weights and orders."""
    data_seed = recipe.resolved_data_seed(seed)
    return [
        (replace(recipe, method=part, data_seed=data_seed), derive_seed(seed, number))
        for number, part in enumerate(recipe.method.parts())
    ]


def choose_member(recipe: Recipe, seed: int, out: Path, number: int) -> tuple[Recipe, int, Path]:
    """Recipe, seed and directory of the run that trains one part of a method in `out`."""
    runs = member_runs(recipe, seed)
    if number >= len(runs):
        raise UserError(
            f"--member {number}: {recipe.method.kind} has {len(runs)} members, counted from 0"
            if runs
            else f"--member {number}: {recipe.method.kind} has no members; leave --member away"
        )
    return *runs[number], RunDirectory(out).member(number).path


def evaluate(
    path: Path,
    *,
    shifts: tuple[str, ...] = (),
    ood: tuple[str, ...] = (),
    lipschitz: bool = False,
    progress: bool = True,
) -> list[Row]:
    """Evaluate a finished run again; if any sets are named, on these. Returns and keeps its rows.

    Rows of splits that are not evaluated this time, and of costs, stay, and means over shifts are
    of both. Latency may have been measured in turn with other runs, which one alone cannot repeat.
    Bounds of the encoder's Lipschitz constant are computed only if asked for: large networks take
    minutes.
    """
    directory = RunDirectory(path)
    recipe, seed, method = load_run(path)
    kept = directory.rows()
    recipe = with_sets(recipe, shifts, ood)
    fabric = start(recipe.engine)
    fabric.to_device(method)
    data = recipe.load_data(seed)
    check_roles(path, kept, data.splits)
    bounds = bound_encoder(fabric, method, data) if lipschitz else {}  # first: it may be refused
    found = measure(fabric, recipe, method, data, directory, progress)
    found["cost"] = bounds
    return keep(fabric, directory, kept, found)


def load_run(path: Path, task: Task | None = None) -> tuple[Recipe, int, Method]:
    """The recipe, the seed and the trained method of a finished run.

    Who knows the task spares it the data, which may take long to load.
    """
    directory = RunDirectory(path)
    identity = directory.identity()
    recipe, seed = from_dict(Recipe, identity["recipe"]), int(identity["seed"])
    method = build(recipe, task or recipe.load_data(seed).task, seed)
    restore(method, directory)
    return recipe, seed, method.eval()


def restore(method: Method, directory: RunDirectory) -> None:
    """Load the weights that a finished run left, or the runs of its parts."""
    for number, part in enumerate(method.parts()):
        restore(part, directory.member(number))
    if method.parts():
        return
    record = record_of(directory)
    if len(record.finished) < len(method.stages()):
        raise UserError(f"{directory.path}: is not finished; continue it with train --resume")
    record.restore(method)


def prepare(name: str, method: str, changes: Sequence[str] = ()) -> Recipe:
    """A recipe with the settings of a method and `path=value` changes to them."""
    return override(get_recipe(name, method), *changes)


def default_directory(recipe: Recipe, seed: int) -> Path:
    """Where a run goes that was not told where to go."""
    return Path("runs") / recipe.name / run_name(recipe, seed)


def run_name(recipe: Recipe, seed: int) -> Path:
    """The place of a run among those of its recipe: method, variant and seed."""
    variant = identify(recipe, seed)["variant"]
    name = recipe.method.kind if variant == "default" else f"{recipe.method.kind}-{variant}"
    short = re.sub(r"[^\w.=-]+", "_", name)
    if len(short) > LONGEST_NAME:
        short = f"{short[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return Path(short) / f"seed{seed}"


def identify(recipe: Recipe, seed: int) -> dict[str, Any]:
    """What makes a run itself."""
    default = get_recipe(recipe.name, recipe.method.kind)
    return {"recipe": to_dict(recipe), "variant": recipe.variant(default), "seed": seed}


def claim(
    fabric: Fabric, directory: RunDirectory, identity: Mapping[str, Any], resume: bool
) -> None:
    """Make the directory this run's."""
    on_first(fabric, lambda: directory.claim(identity, resume=resume))


def on_first(fabric: Fabric, action: Callable[[], object]) -> None:
    """Let one process act; all of them wait for it, and learn of a refusal."""
    refusal = None
    if fabric.is_global_zero:
        try:
            action()
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
    splits = (*data.splits, training_sample(data.train))
    with Bars(progress and fabric.is_global_zero) as bars:
        bar = bars.add("predict", sum(num_batches(len(s.source), size) for s in splits))
        for split in splits:
            bar.note(split.name)
            prediction, labels = predict(fabric, method, split.source, size, tick=bar.advance)
            if fabric.is_global_zero:
                directory.save_prediction(split.name, prediction, labels)
            keep_features(fabric, method, split, directory, size)
            inside = prediction if split.role == "iid" else inside
            found[split.name] = split_metrics(split, prediction, labels, inside)
    return found


def bound_encoder(fabric: Fabric, method: Method, data: Data) -> dict[str, float]:
    """Bounds of the encoder's Lipschitz constant, the lower one by some test samples."""
    inputs = data.splits[0].source
    few = list(range(min(LIPSCHITZ_SAMPLES, len(inputs))))
    return lipschitz_metrics(method, next(inputs.read([few], fabric.device)).x)


def own_cost(
    fabric: Fabric, recipe: Recipe, method: Method, data: Data, directory: RunDirectory
) -> dict[str, float]:
    """Parameters and latency of a run by itself, in turn with an untrained network of ERM."""
    reference = Deterministic(recipe.encoder.build(data.task.input_shape), data.task.num_classes)
    example = next(data.splits[0].source.read([[0]], fabric.device)).x
    fabric.to_device(reference)
    found = cost_metrics(method, reference.eval(), example)
    if fabric.is_global_zero:
        directory.add_to_environment(latency_conditions(fabric.device, ["deterministic"]))
    return found


def training_cost(record: Checkpoints) -> dict[str, float]:
    """What each stage took: seconds, and megabytes at most."""
    seconds = {f"train_seconds:{stage.name}": stage.seconds for stage in record.finished}
    memory = {f"peak_memory:{stage.name}": stage.peak_memory for stage in record.finished}
    return seconds | memory


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
    """The recipe with the named sets to evaluate on besides its test set; with its own if none."""
    if not shifts and not ood:
        return recipe
    named = {"shifts": shifts, "ood": ood}
    known = {field.name for field in dataclasses.fields(recipe.data)}  # type: ignore[arg-type]
    if not named.keys() <= known:
        raise UserError(
            f"the data of recipe '{recipe.name}' are generated whole: leave --shift and --ood away"
        )
    return replace(recipe, data=replace(recipe.data, **named))  # type: ignore[type-var]


def check_roles(path: Path, rows: Sequence[Row], splits: Sequence[Split]) -> None:
    """Refuse splits of which a run has figures in another role: rows would mix the two."""
    had = {row.split: ROLES[row.metric] for row in rows if row.metric in ROLES}
    now: dict[str, str] = {split.name: split.role for split in splits if split.role != "iid"}
    shifts = [name for name, role in now.items() if role == "shift" and "/" in name]
    now |= dict.fromkeys((name.partition("/")[0] for name in shifts), "mean over shifts")
    for name, role in now.items():
        if had.get(name, role) != role:
            raise UserError(
                f"{name}: {path} has figures of it as {had[name]}, and cannot have any as {role} "
                "beside them; leave it away, or rename your file"
            )


def keep(fabric: Fabric, directory: RunDirectory, kept: Sequence[Row], found: Found) -> list[Row]:
    """Write what was found beside the rows of anything else; means over shifts are of both."""
    found |= mean_over_shifts(by_split(kept) | found)
    rows = as_rows(directory.identity(), found)
    new = {(row.split, row.metric) for row in rows}
    rows = [row for row in kept if (row.split, row.metric) not in new] + rows
    if fabric.is_global_zero:
        directory.save_rows(rows)
    return rows


def by_split(rows: Sequence[Row]) -> Found:
    """The metrics in the rows of a run."""
    found = Found()
    for row in rows:
        found.setdefault(row.split, {})[row.metric] = row.value
    return found


def as_rows(identity: Mapping[str, Any], found: Found) -> list[Row]:
    """Metrics by split as rows of a run."""
    recipe, variant, seed = identity["recipe"], identity["variant"], identity["seed"]
    names = recipe["name"], recipe["method"]["kind"], variant, seed
    return [
        Row(*names, split, metric, value)
        for split, values in found.items()
        for metric, value in values.items()
    ]
