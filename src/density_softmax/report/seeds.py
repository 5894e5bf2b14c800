"""Error bars over seeds: every figure of the headline, method by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from density_softmax.report.bars import lined_figure
from density_softmax.report.names import file_stem, metric_name
from density_softmax.report.runs import Run, by_setting, rows_of
from density_softmax.report.samples import (
    Key,
    Samples,
    deviation,
    mean,
    samples_by_line,
    with_shared_means,
)
from density_softmax.report.style import DARK_BLUE, GREY, Picture, save_figure

__all__ = ["find_columns", "seed_figure", "write_seeds"]

METRICS = (("nll", "accuracy", "ece"), ("cnll", "caccuracy", "cece"))
CAPTION = (
    "Dark: mean over seeds and one standard deviation to either side. Light dots: the seeds. "
    "An overlap does not decide whether two methods differ, since they share their seeds: the "
    "tables test the differences."
)


def write_seeds(runs: Sequence[Run], folder: Path) -> list[Picture]:
    """A figure for each recipe and data of which a method has more than one seed."""
    pictures = []
    for setting, members in by_setting(runs).items():
        lines = samples_by_line(with_shared_means(rows_of(members)))
        columns = find_columns(lines)
        if columns and any(len(s.get(columns[0], {})) > 1 for s in lines.values()):
            figure, file = seed_figure(lines, columns), folder / file_stem(setting, "seeds")
            pictures.append(save_figure(figure, file, f"Spread over seeds: {setting}", CAPTION))
    return pictures


def find_columns(lines: Mapping[str, Mapping[Key, Samples]]) -> list[Key]:
    """Splits that have all three metrics, in-domain first: three panels of each."""
    keys = dict.fromkeys(key for samples in lines.values() for key in samples)
    splits = [split for split in dict.fromkeys(split for split, _ in keys) if "/" not in split]
    sets = [[(split, name) for name in names] for split in splits for names in METRICS]
    return [key for columns in sets if all(key in keys for key in columns) for key in columns]


def seed_figure(lines: Mapping[str, Mapping[Key, Samples]], columns: Sequence[Key]) -> Figure:
    """A panel for each column with a line for each method."""
    titles = [f"{metric_name(metric).title}, {_place(split)}" for split, metric in columns]
    figure, panels = lined_figure(list(lines), titles, num_columns=3)
    for key, axes in zip(columns, panels, strict=True):
        for place, samples in enumerate(lines.values()):
            if key in samples:
                _draw(axes, place, samples[key])
        axes.margins(x=0.06)
        axes.locator_params(axis="x", nbins=4)
    return figure


def _place(split: str) -> str:
    return "in-domain" if split == "iid" else split


def _draw(axes: Axes, place: int, samples: Samples) -> None:
    values = list(samples.values())
    dots: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": 2.2, "markeredgewidth": 0}
    axes.plot(values, [place] * len(values), color=GREY, alpha=0.6, **dots)
    spread: dict[str, Any] = {"xerr": deviation(samples) or 0.0, "elinewidth": 0.9}
    spread |= {"capsize": 1.8, "capthick": 0.9}
    axes.errorbar(mean(samples), place, color=DARK_BLUE, marker="D", markersize=2.6, **spread)
