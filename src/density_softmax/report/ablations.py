"""Runs that differ in one part alone: the density or the gradient penalty."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from density_softmax.report.names import split_variant, variant_of_line
from density_softmax.report.runs import Run

__all__ = ["Line", "Penalty", "penalty_groups", "penalty_of", "penalty_variants", "without_density"]

# Rules of the scale that do not look at the density.
BLIND_SCALES = ("constant", "temperature")
# A method beside its control: the same network, but no density.
CONTROLS = {"density_softmax": "constant_temperature"}


class Line(NamedTuple):
    """What runs have in common beside the part in which they differ."""

    method: str
    variant: str

    @property
    def words(self) -> tuple[str, ...]:
        """For the name of a file."""
        return (self.method,) if self.variant == "default" else tuple(self)


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


def without_density(runs: Sequence[Run]) -> dict[Line, list[Run]]:
    """A run with density and one without, of runs on the same data.

    The one without is a variant whose scale does not look at the density, or else the control.
    """
    sighted: dict[Line, Run] = {}
    blind: dict[Line, Run] = {}
    for run in (run for run in runs if _scale(run)):
        line = _line(run, lambda change: change.startswith(("scale=", "scale.")))
        (blind if _scale(run) in BLIND_SCALES else sighted).setdefault(line, run)
    controls = {controlled: run for run in runs if (controlled := _controlled(run))}
    pairs = {line: (run, blind.get(line) or controls.get(line)) for line, run in sighted.items()}
    return {line: [run, other] for line, (run, other) in pairs.items() if other}


def penalty_of(run: Run) -> Penalty | None:
    """The penalty of a run whose method has one, and may train its head after it."""
    method = run.recipe["method"]
    penalty = method.get("penalty")
    if not isinstance(penalty, Mapping) or "head" not in method:
        return None
    return Penalty(float(penalty.get("weight", 0.0)), method["head"] is not None)


def penalty_groups(runs: Sequence[Run]) -> dict[Line, dict[Penalty, list[Run]]]:
    """Runs on the same data that differ in λ and in the head stage alone, λ growing."""
    found: dict[Line, dict[Penalty, list[Run]]] = {}
    for run in runs:
        penalty = penalty_of(run)
        if penalty is not None:
            line = _line(run, lambda change: _changes_penalty(change) or _path(change) == "head")
            found.setdefault(line, {}).setdefault(penalty, []).append(run)
    return {line: dict(sorted(each.items())) for line, each in found.items()}


def penalty_variants(runs: Sequence[Run]) -> dict[Line, dict[float, Run]]:
    """By λ, runs on the same data that differ in λ alone: one without penalty, others with it."""
    found: dict[Line, dict[float, Run]] = {}
    for run in runs:
        penalty = penalty_of(run)
        if penalty is not None:
            variants = found.setdefault(_line(run, _changes_penalty), {})
            variants.setdefault(penalty.weight, run)
    ordered = {line: dict(sorted(each.items())) for line, each in found.items()}
    return {line: each for line, each in ordered.items() if 0 in each and len(each) > 1}


def _line(run: Run, differs: Callable[[str], bool]) -> Line:
    """The method of a run, and its variant but for the changes that runs may differ in."""
    changes = split_variant(variant_of_line(run.variant))
    rest = ", ".join(change for change in changes if not differs(change))
    return Line(run.method, rest or "default")


def _changes_penalty(change: str) -> bool:
    """Another norm is another penalty, and no weight of this one."""
    return change == "penalty=none" or _path(change) == "penalty.weight"


def _path(change: str) -> str:
    return change.partition("=")[0]


def _scale(run: Run) -> str:
    scale = run.recipe["method"].get("scale")
    return str(scale["kind"]) if isinstance(scale, Mapping) else ""


def _controlled(run: Run) -> Line | None:
    """What a run is the control of."""
    methods = [m for m, c in CONTROLS.items() if c == run.method]
    default = variant_of_line(run.variant) == "default"
    return Line(methods[0], "default") if methods and default else None
