"""Reliability diagrams: how often a prediction comes true, by how confident it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from density_softmax.config import to_dict
from density_softmax.metrics import ReliabilityBins, ece, reliability_bins
from density_softmax.report.figures import Drawing
from density_softmax.report.frame import Line, Setting, line_of, seeds_of
from density_softmax.report.names import control_of, file_stem, split_name
from density_softmax.report.style import (
    DARK_BLUE,
    DARK_ORANGE,
    INK,
    ORANGE,
    PAGE,
    add_legend,
    panel_figure,
)
from density_softmax.runs.run import Run

# Rules of the scale that do not look at the density.
BLIND_SCALES = ("constant", "temperature")
ACCURACY: dict[str, Any] = {"facecolor": "#a6cdec"}
TOO_SURE: dict[str, Any] = {"facecolor": ORANGE, "hatch": "/////", "edgecolor": DARK_ORANGE}
TOO_UNSURE: dict[str, Any] = {"facecolor": "none", "hatch": ".....", "edgecolor": DARK_BLUE}
SHARES: dict[str, Any] = {"color": INK, "linewidth": 0.8}
CAPTION = (
    "Bars: accuracy of predictions with similar confidence, in 15 bins. The gap to their mean "
    "confidence is hatched where they are overconfident and dotted where they are underconfident. "
    "Line: the share of inputs in each bin. The mean of the gaps, weighted by these shares, is the "
    "expected calibration error (ECE)."
)


class Diagram(NamedTuple):
    """A diagram before it is drawn: its title, its bins and the error they amount to."""

    title: str
    bins: ReliabilityBins
    ece: float


def draw(setting: Setting) -> Iterator[Drawing]:
    """All methods in-domain and on each shifted set; a method with and without its density.

    Args:
        setting: the runs to compare.
    """
    for split in ["iid", *setting.splits.shown_shifts()]:
        if runs := setting.predicted(split):
            yield _drawing(setting.name, runs, split, "reliability")
        for line, pair in _without_density(runs).items():
            words = *line.words, "density", "reliability"
            yield _drawing(
                setting.name, pair, split, *words, title="with and without the density, "
            )


def _without_density(runs: Sequence[Run]) -> dict[Line, list[Run]]:
    """Pairs of a run with density and one without, by what the two share.

    The one without is a variant whose scale does not look at the density, or else the control.
    """
    sighted: dict[Line, Run] = {}
    blind: dict[Line, Run] = {}
    for run in runs:
        scale = to_dict(run.recipe.method).get("scale")
        if isinstance(scale, Mapping):
            line = line_of(run, lambda path, _: f"{path}.".startswith("method.scale."))
            (blind if scale["kind"] in BLIND_SCALES else sighted).setdefault(line, run)
    unchanged = {line.kind: run for run in runs if not (line := line_of(run)).changes}
    for line in sighted:
        if not line.changes and (control := unchanged.get(control_of(line.kind))):
            blind.setdefault(line, control)
    return {line: [run, blind[line]] for line, run in sighted.items() if line in blind}


def _read_diagram(run: Run, split: str) -> Diagram:
    """What a run predicted for a split."""
    prediction, labels = run.prediction(split)
    bins = reliability_bins(prediction.probs, labels)
    return Diagram(line_of(run).label, bins, ece(prediction.probs, labels))


def _reliability_figure(diagrams: Sequence[Diagram]) -> Figure:
    """A panel for each diagram, all with the same axes."""
    titles, square = [diagram.title for diagram in diagrams], lambda width: width
    panels = panel_figure(
        titles, height=square, most_columns=6, left=0.36, gap=0.09, row_gap=0.1, foot=0.56
    )
    for axes, diagram in zip(panels.axes, diagrams, strict=True):
        _draw(axes, diagram)
        axes.tick_params(labelleft=axes in panels.left, labelbottom=axes in panels.lowest)
    for axes in panels.left:
        axes.set_ylabel("accuracy", labelpad=1)
    for axes in panels.lowest:
        axes.set_xlabel("confidence", labelpad=1)
    handles: list[Artist] = [
        Patch(linewidth=0, label="accuracy", **ACCURACY),
        Patch(linewidth=0, label="too sure", **TOO_SURE),
        Patch(linewidth=0, label="not sure enough", **{**TOO_UNSURE, **ACCURACY}),
        Line2D([], [], label="share of inputs", **SHARES),
    ]
    num_in_row = 4 if panels.figure.get_size_inches()[0] == PAGE else 2
    spacing = {"columnspacing": 1.2, "handletextpad": 0.5, "labelspacing": 0.2}
    add_legend(panels.figure, handles, num_in_row, **spacing)
    return panels.figure


def _drawing(
    setting: str, runs: Sequence[Run], split: str, *words: str, title: str = ""
) -> Drawing:
    return Drawing(
        _reliability_figure([_read_diagram(run, split) for run in runs]),
        file_stem(setting, *words, split),
        f"Reliability, {title}{split_name(split)}: {setting}",
        f"{CAPTION} {seeds_of(runs)}",
    )


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
