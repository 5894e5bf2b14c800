"""The walk from a recipe to rows: data, encoder, method and stages, predictions, metrics."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from density_softmax.engine import Checkpoints, fit, start
from density_softmax.engine.descent import check_heldout
from density_softmax.engine.runtime import on_first_process
from density_softmax.methods.base import Method
from density_softmax.runs.evaluation import (
    bound_encoder,
    check_roles,
    evaluate_splits,
    merge_rows,
    own_cost,
    training_cost,
)
from density_softmax.runs.run import Run
from density_softmax.types import Row

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def run(
    run: Run,
    *,
    resume: bool = False,
    evaluated: bool = True,
    share: bool = True,
    wait: bool = True,
    progress: bool = True,
) -> list[Row]:
    """Train and evaluate a recipe with a seed; everything is kept in the directory of the run.

    Args:
        run: the recipe, the seed and the directory.
        resume: continue what the directory holds.
        evaluated: predict and measure what was trained; a member of an ensemble need not be.
        share: take over stages that other runs under the same root have finished.
        wait: wait for a stage that another of these runs trains; if not, a `BusyError` is raised.
        progress: draw progress bars.

    Returns:
        The rows of the run; none if it is not evaluated. Of a run that had rows, those of splits
        and costs that are not measured now stay as they are.
    """
    fabric = start(run.recipe.engine)
    data = run.data  # before anything is written: they may be missing
    method = run.build(data.task)
    for member in method.ensemble() or (method,):
        check_heldout(member.stages(), data.heldout)
    on_first_process(fabric, lambda: run.claim(resume=resume))
    record = train(fabric, run, method, share=share, wait=wait, progress=progress)
    if not evaluated:
        return []
    kept = run.rows() if run.has_rows() else []
    found = evaluate_splits(fabric, run, method, progress)
    found["cost"] = ({} if kept else own_cost(fabric, run, method)) | training_cost(record)
    return _write(fabric, run, merge_rows(run, kept, found))


def train(
    fabric: Fabric,
    run: Run,
    method: Method,
    *,
    share: bool = True,
    wait: bool = True,
    progress: bool = True,
) -> Checkpoints:
    """Train the method of a run whose directory is claimed; returns the record of its training.

    The members of an ensemble are runs of their own: those that are finished are loaded, wherever
    they were trained, and the others trained.

    Args:
        fabric: where to train.
        run: the run.
        method: what it built, trained in place.
        share: take over stages that other runs under the same root have finished.
        wait: wait for a stage that another of these runs trains; if not, a `BusyError` is raised.
        progress: draw progress bars.
    """
    record = Checkpoints(None, {})
    for number, (member, part) in enumerate(zip(run.members, method.ensemble(), strict=True)):
        on_first_process(fabric, partial(member.claim, resume=True))
        trained = member.build(run.data.task)
        its = train(fabric, member, trained, share=share, wait=wait, progress=progress)
        part.load_state_dict(trained.state_dict())
        record.include(its, f"member{number}")
    if not run.members:
        record = fit(
            method,
            run.data.train,
            run.data.heldout,
            seed=run.seed,
            directory=run.path,
            resume=True,  # a directory that may not be continued was not claimed
            identity=run.identity,
            engine=run.recipe.engine,
            fabric=fabric,
            stages=run.stage_cache(wait) if share else None,
            progress=progress,
        )
    fabric.to_device(method.eval())
    if fabric.is_global_zero:
        run.save_epochs(record.epochs)
    return record


def evaluate(
    run: Run,
    *,
    shifts: tuple[str, ...] = (),
    ood: tuple[str, ...] = (),
    lipschitz: bool = False,
    progress: bool = True,
) -> list[Row]:
    """Evaluate a finished run again, on the sets of its recipe or on those named.

    Args:
        run: a finished run.
        shifts: names of shifted sets.
        ood: names of OOD sets.
        lipschitz: bound the encoder's Lipschitz constant as well; large networks take minutes.
        progress: draw a progress bar.

    Returns:
        All rows of the run. Those of splits that are not evaluated now stay, and so do costs:
        latency may have been measured in turn with other runs, which one alone cannot repeat.
    """
    kept, method = run.rows(), run.load()
    if shifts or ood:
        recipe = run.recipe.evaluated_on(shifts, ood)
        run = Run(recipe, run.seed, run.path, variant=run.variant)
    fabric = start(run.recipe.engine)
    fabric.to_device(method)
    check_roles(run, kept, run.data.splits)
    bounds = bound_encoder(fabric, method, run.data) if lipschitz else {}  # first: may be refused
    found = evaluate_splits(fabric, run, method, progress)
    return _write(fabric, run, merge_rows(run, kept, {**found, "cost": bounds}))


def _write(fabric: Fabric, run: Run, rows: list[Row]) -> list[Row]:
    if fabric.is_global_zero:
        run.save_rows(rows)
    return rows
