"""Predictive entropy: how undecided each method is in-domain, under shift and on OOD data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.ndimage import gaussian_filter1d

from density_softmax.metrics import entropy
from density_softmax.report.figures import Drawing
from density_softmax.report.frame import Setting, line_of, seeds_of
from density_softmax.report.names import file_stem, set_name, split_name, with_reference
from density_softmax.report.style import (
    DARK_BLUE,
    DARK_ORANGE,
    INK,
    LOOKS,
    add_legend,
    block_figure,
    panel_figure,
    tidy,
)
from density_softmax.runs.run import Run

Array = npt.NDArray[np.float64]

NUM_BINS, BANDWIDTH = 256, 0.03  # the bandwidth as a share of the axis
# As in the paper: solid in-domain, dotted under shift, dashed out of distribution.
INSIDE: dict[str, Any] = {"color": DARK_BLUE, "linestyle": "-"}
SHIFTED: dict[str, Any] = {"color": DARK_ORANGE, "linestyle": (0, (1, 0.8))}
OUTSIDE: dict[str, Any] = {"color": INK, "linestyle": (0, (4, 1.2))}
CAPTION = (
    f"Density of the predictive entropy H(p(y | x)), bandwidth {BANDWIDTH:g} log K, "
    "between 0 (certain) and log K (all K classes equally likely)."
)
WISH = " A method that knows what it does not know is certain in-domain and undecided on "


def draw(setting: Setting) -> Iterator[Drawing]:
    """For each OOD set a panel for each method and one of all; without any, in-domain alone.

    Args:
        setting: the runs to compare.
    """
    runs = setting.predicted("iid")
    for ood in setting.splits.ood or (None,) if runs else ():
        shown = {"iid": INSIDE, **dict.fromkeys(setting.splits.shown_shifts()[:1], SHIFTED)}
        yield Drawing(
            _entropy_figure(runs, shown if ood is None else {**shown, ood: OUTSIDE}),
            file_stem(setting.name, "entropy", ood or ""),
            f"Predictive entropy: {setting.name}",
            f"{CAPTION}{'' if ood is None else f'{WISH}{set_name(ood)}.'} {seeds_of(runs)}",
        )
        if ood is not None and any(run.has_prediction(ood) for run in runs):
            yield Drawing(
                _ood_figure(runs, ood),
                file_stem(setting.name, "entropy", ood, "methods"),
                f"Predictive entropy on {set_name(ood)}: {setting.name}",
                f"{CAPTION} OOD data alone. {seeds_of(runs)}",
            )


def _entropy_figure(runs: Sequence[Run], shown: Mapping[str, dict[str, Any]]) -> Figure:
    """A panel for each run with a line for each split."""
    labels = [line_of(run).label for run in runs]
    panels = panel_figure(labels, height=0.8, most_columns=5, gap=0.3, row_gap=0.24, foot=0.52)
    for axes, run in zip(panels.axes, runs, strict=True):
        for split, look in shown.items():
            if run.has_prediction(split):
                _draw(axes, run, split, look, filled=True)
        axes.set_ylim(0, None)
    for axes in panels.lowest:
        axes.set_xlabel("entropy, nats", labelpad=1)
    for axes in panels.left:
        axes.set_ylabel("density", labelpad=2)
    handles = [Line2D([], [], label=split_name(split), **look) for split, look in shown.items()]
    add_legend(panels.figure, handles, len(shown))
    return panels.figure


def _smooth_density(values: Array, largest: float) -> tuple[Array, Array]:
    """Points in [0, largest] and the density there, smoothed but reflected at both ends."""
    counts, edges = np.histogram(np.clip(values, 0, largest), NUM_BINS, (0, largest))
    smooth = gaussian_filter1d(counts.astype(float), BANDWIDTH * NUM_BINS, mode="reflect")
    return (edges[:-1] + edges[1:]) / 2, smooth / (len(values) * largest / NUM_BINS)


def _ood_figure(runs: Sequence[Run], ood: str) -> Figure:
    """The entropy of all runs on one set, in one panel or, of many runs, a few."""
    groups = with_reference([run for run in runs if run.has_prediction(ood)])
    labels = [[line_of(run).label for run in group] for group in groups]
    titles = [f"{split_name(ood)} (OOD)"]
    figure, blocks = block_figure(labels, titles, num_columns=1, height=1.4)
    for group, (axes,) in zip(groups, blocks, strict=True):
        for run, look in zip(group, LOOKS, strict=False):
            _draw(axes, run, ood, look.line())
        axes.set_ylim(0, None)
        axes.set_xlabel("entropy, nats", labelpad=1)
        axes.set_ylabel("density", labelpad=2)
    return figure


def _draw(axes: Axes, run: Run, split: str, look: dict[str, Any], *, filled: bool = False) -> None:
    prediction, _ = run.prediction(split)
    largest = math.log(prediction.probs.shape[1])
    points, density = _smooth_density(entropy(prediction.probs).numpy(), largest)
    axes.plot(points, density, **look)
    if filled:
        axes.fill_between(points, density, color=look["color"], alpha=0.12, linewidth=0)
    axes.set_xlim(0, largest)
    axes.locator_params(nbins=3)
    tidy(axes)
