"""Draws how methods that were trained from scratch do on corrupted images.

    python docs/drawing/trained.py [--out FOLDER]

writes trained.svg to docs/images, from the rows of docs/results/cifar10_small.csv and
cifar100_small.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean

import pictures
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from result_tables import RESULTS
from table_layouts import HALF

from density_softmax.methods import MethodConfig, kinds_of
from density_softmax.report.style import DARK_BLUE, INK, add_legend, lined_figure, paper_style
from density_softmax.runs.rows import read_rows
from density_softmax.types import Row

SETS = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
METRICS = {"NLL under corruption": "cnll", "ECE under corruption": "cece"}
Values = Mapping[str, Sequence[float]]


def main() -> None:
    """Draw and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=pictures.IMAGES, help="the folder to write to")
    out: Path = parser.parse_args().out
    names = [f"{name}_small.csv" for name in SETS.values()]
    rows = [row for name in names for row in read_rows(RESULTS / name)]
    with paper_style():
        pictures.save(draw(rows), out / "trained.svg", names)


def draw(rows: Iterable[Row]) -> Figure:
    """A panel for each data set and metric, a line for each method."""
    found = dict[tuple[str, str], dict[str, list[float]]]()
    for row in rows:
        if row.variant == HALF and row.metric in METRICS.values():
            values = found.setdefault((row.split, row.metric), {})
            values.setdefault(row.method, []).append(row.value)
    kinds = [kind for kind in kinds_of("paper") if any(kind in values for values in found.values())]
    panels = {
        f"{title}, {head}": found.get((f"{name}-c", metric), {})
        for title, name in SETS.items()
        for head, metric in METRICS.items()
    }
    labels = [MethodConfig.members[kind].title for kind in kinds]
    figure, axes = lined_figure(labels, list(panels), num_columns=2, row=0.16)
    for each, values in zip(axes, panels.values(), strict=True):
        draw_values(each, kinds, values)
    add_legend(figure, [_mark("one pass", INK), _mark("several passes", "white")], 2)
    return figure


def draw_values(axes: Axes, kinds: Sequence[str], values: Values) -> None:
    """A dot for the mean over seeds of each method, and a line from the lowest to the highest."""
    for number, kind in enumerate(kinds):
        if kind in values:
            color = DARK_BLUE if kind == "density_softmax" else INK
            several = MethodConfig.members[kind]().needs().passes > 1
            axes.plot([min(values[kind]), max(values[kind])], [number] * 2, color=color, lw=0.8)
            axes.plot(
                mean(values[kind]), number, "o", ms=4, mec=color, mfc="white" if several else color
            )
    axes.locator_params(axis="x", nbins=5)
    if "density_softmax" in values:
        axes.axvline(mean(values["density_softmax"]), color=DARK_BLUE, lw=0.5, ls=":", zorder=0)


def _mark(label: str, face: str) -> Line2D:
    return Line2D([], [], marker="o", ls="", ms=4, mec=INK, mfc=face, label=label)


if __name__ == "__main__":
    main()
