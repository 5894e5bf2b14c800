"""What the paper reports: Bui and Liu, "Density-Softmax", ICML 2024, as printed in its tables.

assets/paper.csv has its figures as they stand there, each with the label of its table:
accuracy in percent, parameters in millions, latency in milliseconds per sample.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import NamedTuple

from density_softmax.data.corruptions import CORRUPTIONS, SEVERITIES
from density_softmax.report.ablations import Penalty
from density_softmax.report.names import line_name, split_variant
from density_softmax.report.samples import Key

__all__ = ["REMARK", "paper_penalties", "paper_results", "paper_shifts", "paper_value"]

REMARK = (
    "paper: what Bui and Liu (ICML 2024) report, the mean of 10 seeds on CIFAR-10. They do not "
    "name the score behind their AUPR; their latency, on an RTX A5000, is here divided by ERM's."
)

# From the paper's units to ours.
UNITS = {"accuracy": 0.01, "caccuracy": 0.01, "params": 1e6}
PENALTY_TABLE = "tab:lamda"


class _Figure(NamedTuple):
    recipe: str
    method: str
    variant: str
    split: str
    metric: str
    value: str
    table: str


@cache
def paper_results() -> dict[str, dict[str, dict[Key, float]]]:
    """By recipe and line, what the paper's tables of results have for our columns."""
    found: dict[str, dict[str, dict[Key, float]]] = {}
    latency = {f.recipe: float(f.value) for f in _figures() if _is_latency_of_erm(f)}
    for figure in _figures():
        if figure.table != PENALTY_TABLE:
            line = found.setdefault(figure.recipe, {}).setdefault(
                line_name(figure.method, figure.variant), {}
            )
            line[_key(figure)] = _value(figure, latency[figure.recipe])
    return found


def paper_value(recipe: str, method: str, metric: str, split: str = "cost") -> float | None:
    """What the paper's tables of results have in place of one of our rows, in its unit."""
    line = paper_results().get(recipe, {}).get(line_name(method, "default"), {})
    return line.get((split, metric))


@cache
def paper_penalties() -> dict[str, dict[str, dict[Key, float]]]:
    """By recipe and by λ, what the paper's table of penalties has."""
    found: dict[str, dict[str, dict[Key, float]]] = {}
    for figure in _figures():
        if figure.table == PENALTY_TABLE:
            changes = dict(change.split("=") for change in split_variant(figure.variant))
            penalty = Penalty(float(changes["penalty.weight"]), "head" not in changes)
            line = found.setdefault(figure.recipe, {}).setdefault(penalty.name, {})
            line[_key(figure)] = _value(figure, 1.0)
    return found


def paper_shifts(data: str) -> set[str]:
    """The splits of a corrupted set that the paper's means are of."""
    return {f"{data}/{kind}/{severity}" for kind in CORRUPTIONS for severity in SEVERITIES}


def _figures() -> Iterator[_Figure]:
    text = resources.files(__package__).joinpath("assets", "paper.csv").read_text(encoding="utf-8")
    _, *lines = csv.reader(text.splitlines())
    return (_Figure(*line) for line in lines)


def _is_latency_of_erm(figure: _Figure) -> bool:
    return (figure.method, figure.metric) == ("deterministic", "latency")


def _key(figure: _Figure) -> Key:
    """The column of ours that it stands beside."""
    ours = {"aupr": "aupr:confidence", "latency": "latency_ratio:1"}
    return figure.split, ours.get(figure.metric, figure.metric)


def _value(figure: _Figure, latency_of_erm: float) -> float:
    value = float(figure.value)
    if figure.metric == "latency":
        return value / latency_of_erm
    return value * UNITS.get(figure.metric, 1.0)
