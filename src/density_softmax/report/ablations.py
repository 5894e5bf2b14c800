"""Runs that differ in one part alone: the density or the gradient penalty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from density_softmax.report.names import split_variant, variant_of_line
from density_softmax.report.runs import Run

__all__ = ["Penalty", "penalty_of", "penalty_variants", "without_density"]

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
        blind = [r for r in variants if all(path.startswith("scale") for path in _paths(r))]
        controls = [r for r in runs if r.method == CONTROLS.get(run.method) and _is_default(r)]
        if _scale(run) not in BLIND_SCALES and (blind or controls):
            pairs[run.method] = [run, (blind or controls)[0]]
    return pairs


class Penalty(NamedTuple):
    """How strongly a run was held to a Lipschitz constant of 1, and whether Eq. 6 was trained.

    Attributes:
        weight: λ; 0 where there is no penalty.
        head: whether the head was trained again, on scaled logits (Eq. 6).
    """

    weight: float
    head: bool

    @property
    def name(self) -> str:
        """As the paper's table has it."""
        return f"λ = {self.weight:g}" + ("" if self.head else ", without Eq. 6")


def penalty_of(run: Run) -> Penalty | None:
    """The penalty of a run that deviates from its recipe in λ and in the head stage at most."""
    method = run.recipe["method"]
    penalty = method.get("penalty")
    known = isinstance(penalty, Mapping) and "head" in method
    if not known or not _paths(run) <= {"penalty", "penalty.weight", "head"}:
        return None
    # Another norm is another penalty, and no weight of this one.
    if any(change.startswith("penalty=") and change != "penalty=none" for change in _changes(run)):
        return None
    return Penalty(float(penalty.get("weight", 0.0)), method["head"] is not None)


def penalty_variants(runs: Sequence[Run]) -> dict[str, dict[float, Run]]:
    """By method and by λ, runs that differ in λ alone.

    Only methods are returned of which there is a run without penalty and one with it.
    """
    found: dict[str, dict[float, Run]] = {}
    for run in runs:
        penalty = penalty_of(run)
        if penalty is not None and "head" not in _paths(run):
            found.setdefault(run.method, {}).setdefault(penalty.weight, run)
    ordered = {method: dict(sorted(each.items())) for method, each in found.items()}
    return {
        method: variants
        for method, variants in ordered.items()
        if 0 in variants and len(variants) > 1
    }


def _scale(run: Run) -> str:
    scale = run.recipe["method"].get("scale")
    return str(scale["kind"]) if isinstance(scale, Mapping) else ""


def _is_default(run: Run) -> bool:
    return variant_of_line(run.variant) == "default"


def _changes(run: Run) -> list[str]:
    return split_variant(variant_of_line(run.variant))


def _paths(run: Run) -> set[str]:
    """The entries of its method in which a run deviates from its recipe."""
    return {change.partition("=")[0] for change in _changes(run)}
