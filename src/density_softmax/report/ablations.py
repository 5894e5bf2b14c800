"""Runs that differ in one part alone: with and without the density, with and without the penalty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from density_softmax.report.names import split_variant, variant_of_line
from density_softmax.report.runs import Run

__all__ = ["penalty_of", "penalty_weight", "without_density"]

# Rules of the scale that do not look at the density.
BLIND_SCALES = ("constant", "temperature")
# A method beside its control: the same network, but no density.
CONTROLS = {"density_softmax": "constant_temperature"}


def without_density(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """By method, a run with density and one without, of runs on the same data.

    The one without is a variant whose scale does not look at the density, or else the control.
    """
    pairs = {}
    for run in (run for run in runs if _scale(run) and _is_default(run)):
        variants = [r for r in runs if r.method == run.method and _scale(r) in BLIND_SCALES]
        blind = [r for r in variants if _changes(r) <= {"scale"}]
        controls = [r for r in runs if r.method == CONTROLS.get(run.method) and _is_default(r)]
        if _scale(run) not in BLIND_SCALES and (blind or controls):
            pairs[run.method] = [run, (blind or controls)[0]]
    return pairs


def penalty_of(run: Run) -> Mapping[str, Any] | None:
    """The config of its gradient penalty, if its method has one."""
    penalty = run.recipe["method"].get("penalty")
    return penalty if isinstance(penalty, Mapping) else None


def penalty_weight(penalty: Mapping[str, Any]) -> float:
    """λ; 0 where there is no penalty."""
    return float(penalty.get("weight", 0.0)) if penalty.get("kind") != "none" else 0.0


def _scale(run: Run) -> str:
    scale = run.recipe["method"].get("scale")
    return str(scale["kind"]) if isinstance(scale, Mapping) else ""


def _is_default(run: Run) -> bool:
    return variant_of_line(run.variant) == "default"


def _changes(run: Run) -> set[str]:
    """The parts of the method in which it deviates from its recipe."""
    changes = split_variant(variant_of_line(run.variant))
    return {change.partition("=")[0].partition(".")[0] for change in changes}
