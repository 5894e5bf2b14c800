"""Draws calibration against the severity of corruptions, of methods on trained ResNets.

    python docs/drawing/severities.py [--out FOLDER]

writes severities.svg to docs/images, from the rows of docs/results/posthoc_cifar10.csv.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from statistics import fmean

import pictures
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from result_tables import rows_of
from table_layouts import TABLES, Line, Table

from density_softmax.report.style import (
    DARK_BLUE,
    DARK_ORANGE,
    INK,
    ORANGE,
    PAGE,
    RED,
    new_figure,
    paper_style,
)

NETWORKS = {"resnet20": "ResNet-20", "resnet32": "ResNet-32"}
METRICS = {"ece": "ECE", "nll": "NLL"}
# In the order of the lines of the table.
LOOKS = ((INK, "o"), (DARK_ORANGE, "s"), (ORANGE, "v"), (RED, "^"), (DARK_BLUE, "D"))


def main() -> None:
    """Draw and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=pictures.IMAGES, help="the folder to write to")
    out: Path = parser.parse_args().out
    with paper_style():
        pictures.save(draw(), out / "severities.svg", ["posthoc_cifar10.csv"])


def draw() -> Figure:
    """A panel for each network and metric: means over the corruptions, the clean images at 0."""
    figure = new_figure(PAGE, 2.3 * len(NETWORKS))
    grid = figure.subplots(len(NETWORKS), len(METRICS), sharex=True)
    for (network, title), line in zip(NETWORKS.items(), grid, strict=True):
        for axes, (metric, name) in zip(line, METRICS.items(), strict=True):
            draw_lines(axes, TABLES[f"severities-{network}"], metric)
            axes.set_ylabel(f"{name}, {title}")
    for axes in grid[-1]:
        axes.set_xlabel("severity of the corruption")
    grid[0][0].legend()
    figure.set_layout_engine("constrained")
    return figure


def draw_lines(axes: Axes, table: Table, metric: str) -> None:
    """A line for each line of the table."""
    for line, (color, marker) in zip(table.lines, LOOKS, strict=True):
        means, label = by_severity(table, line, metric), re.sub(r"[*`]", "", line.label)
        axes.plot(*means, color=color, marker=marker, label=label, markersize=3)
    axes.set_ylim(bottom=0)
    axes.set_xticks([0, 1, 3, 5], ["clean", "1", "3", "5"])


def by_severity(table: Table, line: Line, metric: str) -> tuple[list[int], list[float]]:
    """Severities, 0 for the clean images, and the means over corruptions at each."""
    values: dict[int, list[float]] = {}
    for row in rows_of(table, line):
        if row.metric == metric:
            *_, last = row.split.split("/")
            values.setdefault(int(last) if last.isdigit() else 0, []).append(row.value)
    severities = sorted(values)
    return severities, [fmean(values[severity]) for severity in severities]


if __name__ == "__main__":
    main()
