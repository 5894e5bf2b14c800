"""Training curves: what each epoch of each stage reported."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from density_softmax.files import StorageError
from density_softmax.report.names import file_stem
from density_softmax.report.panels import panel_figure, tidy
from density_softmax.report.runs import Run, by_setting, first_seeds, seeds_of
from density_softmax.report.style import DARK_BLUE, DARK_ORANGE, Picture, save_figure

__all__ = ["StageCurves", "curve_figure", "read_curves", "write_curves"]

# What is drawn, and how.
LOOKS: dict[str, dict[str, Any]] = {
    "loss": {"label": "training loss", "color": DARK_BLUE, "linestyle": "-"},
    "heldout_nll": {"label": "held-out NLL", "color": DARK_ORANGE, "linestyle": (0, (3, 1.2))},
}


@dataclass(frozen=True)
class StageCurves:
    """One stage of a run: pairs (epoch, value) of each metric in `LOOKS`."""

    label: str
    stage: str
    curves: dict[str, list[tuple[int, float]]]


def write_curves(runs: Sequence[Run], folder: Path) -> list[Picture]:
    """Draw the stages of the first seed of each method: a figure for each recipe and data."""
    pictures = []
    for setting, members in by_setting(runs).items():
        chosen = first_seeds([run for run in members if read_curves(run)])
        stages = [stage for run in chosen for stage in read_curves(run)]
        if stages:
            file = folder / file_stem(setting, "curves")
            words = f"Training curves: {setting}", _caption(chosen)
            pictures.append(save_figure(curve_figure(stages), file, *words))
    return pictures


def read_curves(run: Run) -> list[StageCurves]:
    """The stages of more than one epoch, in order; none where there is no epochs.csv."""
    stages: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for stage, epoch, metric, value in _epochs(run.path / "epochs.csv"):
        if metric in LOOKS and math.isfinite(value):
            stages.setdefault(stage, {}).setdefault(metric, []).append((epoch, value))
    return [
        StageCurves(run.label, stage, curves)
        for stage, curves in stages.items()
        if any(len(curve) > 1 for curve in curves.values())
    ]


def _epochs(file: Path) -> list[tuple[str, int, str, float]]:
    """Stage, epoch, metric and value of each line."""
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        try:
            _, *rows = csv.reader(lines)
            return [(stage, int(n), metric, float(value)) for stage, n, metric, value in rows]
        except ValueError as error:
            raise StorageError(f"{file}: cannot be read ({error}); delete the file") from None


def curve_figure(stages: Sequence[StageCurves]) -> Figure:
    """A small panel for each stage."""
    panels = panel_figure([f"{s.label}: {s.stage}" for s in stages], height=0.85)
    for axes, stage in zip(panels.axes, stages, strict=True):
        _draw(axes, stage)
    handles = [Line2D([], [], **look) for look in LOOKS.values()]
    panels.figure.legend(handles=handles, loc="lower center", ncols=2, borderaxespad=0.1)
    return panels.figure


def _draw(axes: Axes, stage: StageCurves) -> None:
    values = [value for curve in stage.curves.values() for _, value in curve]
    for metric, curve in stage.curves.items():
        axes.plot(*zip(*curve, strict=True), **LOOKS[metric])
    if min(values) > 0 and max(values) > 5 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=4))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_xlabel("epoch", labelpad=1)
    tidy(axes)


def _caption(runs: Sequence[Run]) -> str:
    return (
        "Loss on the training set, with all penalties, and negative log likelihood (NLL) on the "
        f"held-out slice, over the epochs of each stage that has several. {seeds_of(runs)}"
    )
