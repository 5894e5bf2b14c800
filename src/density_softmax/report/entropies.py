"""Predictive entropy: how undecided each method is in-domain, under shift and out of domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.ndimage import gaussian_filter1d

from density_softmax.metrics import entropy
from density_softmax.report.names import file_stem
from density_softmax.report.panels import block_figure, panel_figure, tidy
from density_softmax.report.runs import Run, by_setting, first_seeds, rows_of, seeds_of
from density_softmax.report.splits import find_splits, shift_name
from density_softmax.report.style import DARK_BLUE, DARK_ORANGE, INK, LOOKS, Picture, save_figure
from density_softmax.report.wrapping import with_reference

__all__ = ["entropy_figure", "outside_figure", "smooth_density", "write_entropies"]

Array = npt.NDArray[np.float64]

NUM_BINS, BANDWIDTH = 256, 0.03  # the bandwidth as a share of the axis
# As in the paper: solid in-domain, dotted under shift, dashed out of domain.
INSIDE: dict[str, Any] = {"color": DARK_BLUE, "linestyle": "-"}
SHIFTED: dict[str, Any] = {"color": DARK_ORANGE, "linestyle": (0, (1, 0.8))}
OUTSIDE: dict[str, Any] = {"color": INK, "linestyle": (0, (4, 1.2))}


def write_entropies(runs: Sequence[Run], folder: Path) -> list[Picture]:
    """A figure for each out-of-domain set, or one where there is none, and one of all methods."""
    pictures = []
    for setting, members in by_setting(runs).items():
        chosen = first_seeds(members, "iid")
        splits = find_splits(rows_of(members))
        for outside in splits.ood or ("",) if chosen else ():
            shown = _shown(splits.shown_shifts()[:1], outside)
            file, words = file_stem(setting, "entropy", outside), _words(setting, outside, chosen)
            pictures.append(save_figure(entropy_figure(chosen, shown), folder / file, *words[0]))
            if outside:
                figure, file = outside_figure(chosen, outside), f"{file}-methods"
                pictures.append(save_figure(figure, folder / file, *words[1]))
    return pictures


def smooth_density(values: Array, largest: float) -> tuple[Array, Array]:
    """Places in [0, largest] and the density there, smoothed but reflected at both ends."""
    counts, edges = np.histogram(np.clip(values, 0, largest), NUM_BINS, (0, largest))
    smooth = gaussian_filter1d(counts.astype(float), BANDWIDTH * NUM_BINS, mode="reflect")
    return (edges[:-1] + edges[1:]) / 2, smooth / (len(values) * largest / NUM_BINS)


def entropy_figure(runs: Sequence[Run], shown: dict[str, dict[str, Any]]) -> Figure:
    """A panel for each run with a line for each split."""
    panels = panel_figure(
        [run.label for run in runs], height=0.8, most_columns=5, gap=0.3, row_gap=0.24, foot=0.52
    )
    for number, (axes, run) in enumerate(zip(panels.axes, runs, strict=True)):
        for split, look in shown.items():
            if run.predicted(split):
                _draw(axes, run, split, look, filled=True)
        axes.set_ylim(0, None)
        if panels.is_lowest(number):
            axes.set_xlabel("entropy, nats", labelpad=1)
        if panels.is_left(number):
            axes.set_ylabel("density", labelpad=2)
    handles = [
        Line2D([], [], label="in-domain" if split == "iid" else shift_name(split), **look)
        for split, look in shown.items()
    ]
    panels.figure.legend(handles=handles, loc="lower center", ncols=len(shown), borderaxespad=0.1)
    return panels.figure


def outside_figure(runs: Sequence[Run], outside: str) -> Figure:
    """The entropy of all runs on one set, in one panel or, of many runs, a few."""
    groups = with_reference([run for run in runs if run.predicted(outside)])
    labels = [[run.label for run in group] for group in groups]
    blocks = block_figure(labels, [f"{shift_name(outside)} (OOD)"], num_columns=1, height=1.4)
    for group, (axes,) in zip(groups, blocks.axes, strict=True):
        for run, look in zip(group, LOOKS, strict=False):
            _draw(axes, run, outside, look.line())
        axes.set_ylim(0, None)
        axes.set_xlabel("entropy, nats", labelpad=1)
        axes.set_ylabel("density", labelpad=2)
    return blocks.figure


def _draw(axes: Axes, run: Run, split: str, look: dict[str, Any], *, filled: bool = False) -> None:
    prediction, _ = run.directory.prediction(split)
    largest = math.log(prediction.probs.shape[1])
    places, density = smooth_density(entropy(prediction.probs).numpy(), largest)
    axes.plot(places, density, **look)
    if filled:
        axes.fill_between(places, density, color=look["color"], alpha=0.12, linewidth=0)
    axes.set_xlim(0, largest)
    axes.locator_params(nbins=3)
    tidy(axes)


def _shown(shifts: Sequence[str], outside: str) -> dict[str, dict[str, Any]]:
    outsides = {outside: OUTSIDE} if outside else {}
    return {"iid": INSIDE, **dict.fromkeys(shifts, SHIFTED), **outsides}


def _words(setting: str, outside: str, runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Titles and captions of both figures."""
    how = (
        f"Density of the predictive entropy H(p(y | x)), bandwidth {BANDWIDTH:g} log K, "
        "between 0 (certain) and log K (all K classes equally likely)."
    )
    where = " A method that knows what it does not know is certain in-domain and undecided on "
    kinds = [f"{where}{outside}." if outside else "", " Out-of-domain data alone."]
    titles = [f"Predictive entropy: {setting}", f"Predictive entropy on {outside}: {setting}"]
    return [
        (title, f"{how}{kind} {seeds_of(runs)}") for title, kind in zip(titles, kinds, strict=True)
    ]
