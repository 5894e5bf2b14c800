"""Histograms of log densities: lower where data are shifted further."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from density_softmax.report.figures import Drawing
from density_softmax.report.frame import Setting, Splits, line_of, seeds_of
from density_softmax.report.names import file_stem, set_name
from density_softmax.report.style import (
    DARK_BLUE,
    GREY,
    INK,
    LEVELS,
    add_legend,
    panel_figure,
    tidy,
)
from density_softmax.runs.run import Run

Array = npt.NDArray[np.float64]
# A name and the splits that it stands for, with how they are drawn.
Group = tuple[str, Sequence[str], dict[str, Any]]

NUM_BINS = 40
# Of all values of a panel, the share beyond its left end and beyond its right end.
TAIL = 0.01
# How far to the left the axis goes, in interquartile ranges of the in-domain values.
REACH = 8
CAPTION = (
    "Histograms of the log density that a method gives to each input, or of what takes its place: "
    "minus its epistemic uncertainty. The outermost bins also count the "
    f"{TAIL:.0%} of values beyond either end, and those more than {REACH} in-domain interquartile "
    "ranges below the in-domain median."
)


def draw(setting: Setting) -> Iterator[Drawing]:
    """The methods that have a density, by levels of each shift.

    Args:
        setting: the runs to compare.
    """
    runs = [run for run in setting.predicted("iid") if run.recipe.method.log_density]
    for name, groups in _find_groups(setting.splits).items() if runs else ():
        yield Drawing(
            _likelihood_figure(runs, groups),
            file_stem(setting.name, "likelihood", name),
            f"Log density, {set_name(name)}: {setting.name}",
            f"{CAPTION} {seeds_of(runs)}",
        )


def _find_groups(splits: Splits) -> dict[str, list[Group]]:
    """What is drawn together: severities of a corrupted set, or else the sets that there are."""
    inside: list[Group] = [
        ("training", ["train"], {"color": GREY, "linestyle": (0, (1, 0.8))}),
        ("in-domain test", ["iid"], {"color": DARK_BLUE}),
    ]
    found = {}
    for name, levels in splits.corrupted.items():
        colors = [to_hex(LEVELS(n / max(1, len(levels) - 1))) for n in range(len(levels))]
        found[name] = inside + [
            (f"severity {severity}", members, {"color": color})
            for (severity, members), color in zip(levels.items(), colors, strict=True)
        ]
    others = [*splits.shifted, *splits.ood]
    colors = [to_hex(LEVELS((n + 1) / (len(others) + 1))) for n in range(len(others))]
    looks = [{"color": color, "linestyle": (0, (4, 1.2))} for color in colors]
    if others:
        far = zip(others, looks, strict=True)
        found["other sets"] = inside + [(set_name(name), [name], look) for name, look in far]
    return found


def _log_densities(run: Run, splits: Sequence[str]) -> Array:
    """Minus the epistemic uncertainty of every input of these splits that was predicted."""
    found = [run.epistemic(split) for split in splits if run.has_prediction(split)]
    return -np.concatenate([each.double().numpy() for each in found]) if found else np.empty(0)


def _likelihood_figure(runs: Sequence[Run], groups: Sequence[Group]) -> Figure:
    """A panel for each run with a histogram for each group."""
    num_in_row = 2 if len(runs) in (1, 2, 4) else 4  # as few as the panels, on a column's width
    foot = 0.4 + 0.14 * math.ceil(len(groups) / num_in_row)
    labels = [line_of(run).label for run in runs]
    panels = panel_figure(labels, height=1.0, most_columns=3, gap=0.3, left=0.3, foot=foot)
    for axes, run in zip(panels.axes, runs, strict=True):
        _draw(axes, run, groups)
        axes.set_xlabel(run.recipe.method.log_density, labelpad=1)
    for axes in panels.left:
        axes.set_ylabel("density", labelpad=2)
    handles = [Line2D([], [], label=name, **{"color": INK, **look}) for name, _, look in groups]
    add_legend(panels.figure, handles, num_in_row)
    return panels.figure


def _draw(axes: Axes, run: Run, groups: Sequence[Group]) -> None:
    values = [_log_densities(run, splits) for _, splits, _ in groups]
    low, high = _range(np.concatenate(values), _log_densities(run, ["iid"]))
    for each, (_, _, look) in zip(values, groups, strict=True):
        if len(each):
            heights, edges = np.histogram(np.clip(each, low, high), NUM_BINS, (low, high))
            density = heights / (len(each) * (edges[1] - edges[0]))
            axes.stairs(density, edges, linewidth=0.9, **look)
    axes.set(xlim=(low, high), ylim=(0, None), yticks=[])
    axes.locator_params(axis="x", nbins=4)
    tidy(axes, grid="x")


def _range(values: Array, inside: Array) -> tuple[float, float]:
    """The ends of the axis; not the same even where all values are."""
    values, inside = values[np.isfinite(values)], inside[np.isfinite(inside)]
    if not len(values) or not len(inside):
        return -0.5, 0.5
    low, high = np.quantile(values, [TAIL, 1 - TAIL])
    first, median, third = np.quantile(inside, [0.25, 0.5, 0.75])
    low = max(low, median - REACH * (third - first)) if third > first else low
    return (low, high) if high > low else (low - 0.5, low + 0.5)
