"""Reliability diagrams: how often a prediction comes true, by how confident it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from density_softmax.metrics import ReliabilityBins, ece, reliability_bins
from density_softmax.report.ablations import without_density
from density_softmax.report.names import file_stem
from density_softmax.report.panels import panel_figure
from density_softmax.report.runs import Run, by_setting, first_seeds, rows_of, seeds_of
from density_softmax.report.splits import find_splits, shift_name
from density_softmax.report.style import (
    DARK_BLUE,
    DARK_ORANGE,
    INK,
    ORANGE,
    PAGE,
    Picture,
    save_figure,
)

__all__ = ["Diagram", "read_diagram", "reliability_figure", "write_reliability"]

ACCURACY: dict[str, Any] = {"facecolor": "#a6cdec"}
TOO_SURE: dict[str, Any] = {"facecolor": ORANGE, "hatch": "/////", "edgecolor": DARK_ORANGE}
TOO_UNSURE: dict[str, Any] = {"facecolor": "none", "hatch": ".....", "edgecolor": DARK_BLUE}
SHARES: dict[str, Any] = {"color": INK, "linewidth": 0.8}

CAPTION = (
    "Bars: the share of right answers among predictions of like confidence, 15 bins; the gap to "
    "their mean confidence is hatched where they were too sure and dotted where not sure enough. "
    "Line: the share of all samples in each bin. The gaps, weighted by these shares, add "
    "up to the expected calibration error (ECE)."
)


@dataclass(frozen=True)
class Diagram:
    """A diagram before it is drawn: its title, its bins and the error they amount to."""

    title: str
    bins: ReliabilityBins
    ece: float


def write_reliability(runs: Sequence[Run], folder: Path) -> list[Picture]:
    """For each recipe and data: all methods in-domain and shifted; with and without density."""
    pictures = []
    for setting, members in by_setting(runs).items():
        for split in ["iid", *find_splits(rows_of(members)).shown_shifts()]:
            chosen = first_seeds(members, split)
            pictures += _write(chosen, split, folder / file_stem(setting, "reliability", split))
            for line, pair in without_density(chosen).items():
                file = folder / file_stem(setting, *line.words, "density", "reliability", split)
                pictures += _write(pair, split, file, "with and without the density, ")
    return pictures


def read_diagram(run: Run, split: str) -> Diagram:
    """What a run predicted for a split."""
    prediction, labels = run.directory.prediction(split)
    bins = reliability_bins(prediction.probs, labels)
    return Diagram(run.label, bins, ece(prediction.probs, labels))


def reliability_figure(diagrams: Sequence[Diagram]) -> Figure:
    """A panel for each diagram, all with the same axes."""
    titles = [diagram.title for diagram in diagrams]
    panels = panel_figure(
        titles, height=None, most_columns=6, left=0.36, gap=0.09, row_gap=0.1, foot=0.56
    )
    for number, (axes, diagram) in enumerate(zip(panels.axes, diagrams, strict=True)):
        _draw(axes, diagram)
        if panels.is_left(number):
            axes.set_ylabel("accuracy", labelpad=1)
        if panels.is_lowest(number):
            axes.set_xlabel("confidence", labelpad=1)
        axes.tick_params(labelleft=panels.is_left(number), labelbottom=panels.is_lowest(number))
    _draw_legend(panels.figure)
    return panels.figure


def _write(runs: Sequence[Run], split: str, file: Path, prefix: str = "") -> list[Picture]:
    if not runs:
        return []
    place = "in-domain" if split == "iid" else shift_name(split)
    title = f"Reliability, {prefix}{place}: {runs[0].setting}"
    figure = reliability_figure([read_diagram(run, split) for run in runs])
    return [save_figure(figure, file, title, f"{CAPTION} {seeds_of(runs)}")]


def _draw(axes: Axes, diagram: Diagram) -> None:
    bins, width = diagram.bins, 1 / len(diagram.bins.counts)
    filled = (bins.counts > 0).numpy()
    left = bins.edges[:-1].numpy()[filled]
    accuracy, confidence = bins.accuracy.numpy()[filled], bins.confidence.numpy()[filled]
    axes.bar(left, accuracy, width, align="edge", linewidth=0, **ACCURACY)
    for sign, look in ((1, TOO_SURE), (-1, TOO_UNSURE)):
        gap = np.maximum(sign * (confidence - accuracy), 0)
        bottom = np.minimum(accuracy, confidence)
        axes.bar(left, gap, width, bottom, align="edge", linewidth=0, **look)
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.6, linestyle=(0, (4, 2)))
    axes.stairs((bins.counts / bins.counts.sum()).numpy(), bins.edges.numpy(), **SHARES)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    axes.set_yticks([0, 0.5, 1], ["0", ".5", "1"])
    frame = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1}
    axes.text(0.04, 0.96, f"ECE {diagram.ece:.3f}", va="top", fontsize=6, bbox=frame)


def _draw_legend(figure: Figure) -> None:
    handles = [
        Patch(linewidth=0, label="accuracy", **ACCURACY),
        Patch(linewidth=0, label="too sure", **TOO_SURE),
        Patch(linewidth=0, label="not sure enough", **{**TOO_UNSURE, **ACCURACY}),
        Line2D([], [], label="share of samples", **SHARES),
    ]
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=4 if figure.get_size_inches()[0] == PAGE else 2,
        borderaxespad=0.1,
        columnspacing=1.2,
        handletextpad=0.5,
        labelspacing=0.2,
    )
