"""What the paper reports: Bui and Liu, "Density-Softmax", ICML 2024, as printed in its tables.

paper.csv has its numbers as they stand there, each with the label of its table: accuracy in
percent, parameters in millions, latency in milliseconds per sample. In the table of penalties
`weight` is λ, and `head` says whether Eq. 6 was trained.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib import resources

from density_softmax.data.corruptions import CORRUPTIONS, SEVERITIES
from density_softmax.report.frame import Key, Penalty
from density_softmax.report.names import method_name

# What was published elsewhere, by line and by split and metric.
Quotes = Mapping[str, Mapping[Key, float]]

REMARK = (
    "paper: what Bui and Liu (ICML 2024) report, the mean of 10 seeds on CIFAR-10. They do not "
    "name the score behind their AUPR; their latency, on an RTX A5000, is here divided by ERM's."
)

# From the paper's units to ours, and from its metrics to our columns beside which they stand.
UNITS = {"accuracy": 0.01, "caccuracy": 0.01, "params": 1e6}
COLUMNS = {"aupr": "aupr:confidence", "latency": "latency_ratio:1"}


@cache
def paper_results() -> dict[str, dict[str, dict[Key, float]]]:
    """By recipe and line, what the paper's tables of results have for our columns."""
    return _quotes(by_weight=False)


@cache
def paper_penalties() -> dict[str, dict[str, dict[Key, float]]]:
    """By recipe and by λ, what the paper's table of penalties has."""
    return _quotes(by_weight=True)


def paper_value(recipe: str, method: str, metric: str, split: str = "cost") -> float | None:
    """What the paper's tables of results have in place of one of our rows, in its unit.

    Args:
        recipe: its name.
        method: its registry key.
        metric: as in rows.
        split: as in rows.
    """
    line = paper_results().get(recipe, {}).get(method_name(method), {})
    return line.get((split, metric))


def paper_shifts(data: str) -> set[str]:
    """The splits of a corrupted set that the paper's means are of.

    Args:
        data: the name of the set.
    """
    return {f"{data}/{kind}/{severity}" for kind in CORRUPTIONS for severity in SEVERITIES}


def _quotes(by_weight: bool) -> dict[str, dict[str, dict[Key, float]]]:
    text = resources.files(__package__).joinpath("paper.csv").read_text(encoding="utf-8")
    rows = [row for row in csv.DictReader(text.splitlines()) if bool(row["weight"]) == by_weight]
    erm = [row for row in rows if (row["method"], row["metric"]) == ("deterministic", "latency")]
    latency = {row["recipe"]: float(row["value"]) for row in erm}
    found: dict[str, dict[str, dict[Key, float]]] = {}
    for row in rows:
        recipe, metric = row["recipe"], row["metric"]
        penalty = Penalty(float(row["weight"] or 0), row["head"] == "yes")
        name = penalty.name if by_weight else method_name(row["method"])
        value = float(row["value"]) * UNITS.get(metric, 1.0)
        line = found.setdefault(recipe, {}).setdefault(name, {})
        key = row["split"], COLUMNS.get(metric, metric)
        line[key] = value / latency[recipe] if metric == "latency" else value
    return found
