"""Training curves: what each epoch of each stage reported."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from density_softmax.files import StorageError
from density_softmax.report.figures import Drawing
from density_softmax.report.frame import Setting, line_of, seeds_of
from density_softmax.report.names import file_stem
from density_softmax.report.style import DARK_BLUE, DARK_ORANGE, add_legend, panel_figure, tidy
from density_softmax.runs.run import Run

# What is drawn, and how.
CURVES: dict[str, dict[str, Any]] = {
    "loss": {"label": "training loss", "color": DARK_BLUE, "linestyle": "-"},
    "heldout_nll": {"label": "held-out NLL", "color": DARK_ORANGE, "linestyle": (0, (3, 1.2))},
}
CAPTION = (
    "Training loss, including penalties, and negative log-likelihood (NLL) on held-out data, for "
    "each stage with more than one epoch."
)


class StageCurves(NamedTuple):
    """One stage of a run: pairs (epoch, value) of each metric in `CURVES`."""

    label: str
    stage: str
    curves: dict[str, list[tuple[int, float]]]


def draw(setting: Setting) -> Iterator[Drawing]:
    """The stages of the first seed of each method.

    Args:
        setting: the runs to compare.
    """
    if runs := setting.first_seeds(lambda run: bool(_read_curves(run))):
        yield Drawing(
            _curve_figure([stage for run in runs for stage in _read_curves(run)]),
            file_stem(setting.name, "curves"),
            f"Training curves: {setting.name}",
            f"{CAPTION} {seeds_of(runs)}",
        )


def _read_curves(run: Run) -> list[StageCurves]:
    """The stages of more than one epoch, in order; none where there is no epochs.csv."""
    stages: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for stage, epoch, metric, value in _epochs(run):
        if metric in CURVES and math.isfinite(value):
            stages.setdefault(stage, {}).setdefault(metric, []).append((epoch, value))
    return [
        StageCurves(line_of(run).label, stage, curves)
        for stage, curves in stages.items()
        if any(len(curve) > 1 for curve in curves.values())
    ]


def _curve_figure(stages: Sequence[StageCurves]) -> Figure:
    """A small panel for each stage."""
    panels = panel_figure([f"{s.label}: {s.stage}" for s in stages], height=0.85)
    for axes, stage in zip(panels.axes, stages, strict=True):
        _draw(axes, stage)
    add_legend(panels.figure, [Line2D([], [], **look) for look in CURVES.values()], 2)
    return panels.figure


def _epochs(run: Run) -> list[tuple[str, int, str, float]]:
    """Stage, epoch, metric and value of each line."""
    file = run.path / "epochs.csv"
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        try:
            _, *rows = csv.reader(lines)
            return [(stage, int(n), metric, float(value)) for stage, n, metric, value in rows]
        except ValueError as error:
            raise StorageError(f"{file}: cannot be read ({error}); delete the file") from None


def _draw(axes: Axes, stage: StageCurves) -> None:
    values = [value for curve in stage.curves.values() for _, value in curve]
    for metric, curve in stage.curves.items():
        axes.plot(*zip(*curve, strict=True), **CURVES[metric])
    if min(values) > 0 and max(values) > 5 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=4))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_xlabel("epoch", labelpad=1)
    tidy(axes)
