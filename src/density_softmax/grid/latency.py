"""The latency of finished runs, measured against each other in one process."""

from __future__ import annotations

from collections.abc import Sequence

from density_softmax.config import without_local
from density_softmax.engine import start
from density_softmax.errors import UserError
from density_softmax.methods.deterministic import Deterministic
from density_softmax.runs.evaluation import (
    TIMED_TOGETHER,
    latency_conditions,
    latency_metrics,
    untrained_reference,
)
from density_softmax.runs.run import Run
from density_softmax.types import Row

REFERENCE = "deterministic"


def measure_latencies(runs: Sequence[Run]) -> list[Row]:
    """Time the methods of finished runs in turn, and write the ratios into the rows of each.

    They are relative to the first run of `deterministic`; without any, to an untrained network of
    that kind: what a forward pass costs does not depend on its weights.

    Args:
        runs: on the same data with the same encoder, one of each method and variant.
    """
    named, first = _by_name(runs), runs[0]
    _check_comparable(runs)
    fabric = start(first.recipe.engine.in_one_process())
    methods = {name: run.load(first.data.task) for name, run in named.items()}
    plain = [name for name, method in methods.items() if isinstance(method, Deterministic)]
    if not plain:
        methods[REFERENCE] = untrained_reference(first)
    for method in methods.values():
        fabric.to_device(method)
    example = next(first.data.splits[0].source.read([[0]], fabric.device)).x
    found = latency_metrics(methods, plain[0] if plain else REFERENCE, example)
    rows = []
    for name, run in named.items():
        new = run.make_rows({"cost": found[name]})
        run.save_rows([*(row for row in run.rows() if not _is_latency(row)), *new])
        run.add_to_environment(latency_conditions(fabric.device, sorted(methods)))
        rows += new
    return rows


def were_timed_together(runs: Sequence[Run]) -> bool:
    """Whether the runs have been timed in turn with each other, perhaps with more besides.

    Args:
        runs: finished runs.
    """
    names = {_name(run) for run in runs}
    return all(names <= set(run.environment().get(TIMED_TOGETHER, ())) for run in runs)


def drop_latencies(run: Run) -> None:
    """Remove what a run measured by itself, where another of its kind stands for it.

    Args:
        run: a finished run. A mean over seeds would mix two ways of measuring.
    """
    rows = run.rows()
    kept = [row for row in rows if not _is_latency(row)]
    if len(kept) < len(rows):
        run.save_rows(kept)


def _name(run: Run) -> str:
    """What the method and variant of a run are called in a measurement."""
    return f"{run.kind} ({run.variant_text})" if run.variant else run.kind


def _by_name(runs: Sequence[Run]) -> dict[str, Run]:
    """The runs by what they are called; two of the same name could not be told apart."""
    named: dict[str, Run] = {}
    for run in runs:
        other = named.setdefault(_name(run), run)
        if other.path != run.path:
            raise UserError(
                f"{run.path}: is a run of {_name(run)}, and so is {other.path}; give one run of "
                "each method and variant"
            )
    return named


def _check_comparable(runs: Sequence[Run]) -> None:
    first, *others = runs
    for run in others:
        same = without_local(run.recipe.data) == without_local(first.recipe.data)
        if not same or run.recipe.encoder != first.recipe.encoder:
            raise UserError(
                f"{run.path}: has other data or another encoder than {first.path}; "
                "measure runs that can be compared"
            )


def _is_latency(row: Row) -> bool:
    return row.split == "cost" and row.metric.startswith("latency_")
