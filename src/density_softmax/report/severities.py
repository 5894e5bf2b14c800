"""Means over the types of a shift against its severity, with their spread over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from density_softmax.report.names import file_stem, metric_name
from density_softmax.report.panels import block_figure, tidy
from density_softmax.report.runs import Run, by_setting, rows_of
from density_softmax.report.samples import Key, Samples, deviation, mean, samples_by_line
from density_softmax.report.splits import find_splits
from density_softmax.report.style import LOOKS, Picture, save_figure
from density_softmax.report.wrapping import with_reference

__all__ = ["mean_over_types", "severity_figure", "write_severities"]

METRICS = ("nll", "accuracy", "ece")
CAPTION = (
    "Mean over seeds of the mean over the types of the shift that all runs have; bars: one "
    "standard deviation over seeds to either side, none where there is one seed. Lines are set "
    "apart sideways."
)

# By severity, 0 being the in-domain test set, the mean over types of each seed.
Levels = Mapping[int, Samples]


def write_severities(runs: Sequence[Run], folder: Path) -> list[Picture]:
    """A figure for each corrupted set."""
    pictures = []
    for setting, members in by_setting(runs).items():
        rows = rows_of(members)
        lines = samples_by_line(rows)
        for data, levels in find_splits(rows).corrupted.items():
            found = {
                name: {metric: mean_over_types(samples, levels, metric) for metric in METRICS}
                for name, samples in lines.items()
            }
            file = folder / file_stem(setting, data, "severity")
            title = f"Means over the shifts of {data} by severity: {setting}"
            pictures.append(save_figure(severity_figure(found), file, title, CAPTION))
    return pictures


def mean_over_types(
    samples: Mapping[Key, Samples], levels: Mapping[int, Sequence[str]], metric: str
) -> dict[int, dict[int, float]]:
    """By severity and seed; a seed counts where it has all types."""
    found = {}
    for severity, splits in {0: ["iid"], **levels}.items():
        values = [samples.get((split, metric), {}) for split in splits]
        seeds = sorted(set.intersection(*(set(each) for each in values)))
        if seeds:
            found[severity] = {s: float(np.mean([each[s] for each in values])) for s in seeds}
    return found


def severity_figure(lines: Mapping[str, Mapping[str, Levels]]) -> Figure:
    """A panel for each metric with a line for each method; many methods wrap."""
    groups = with_reference(list(lines))
    titles = [metric_name(metric).title for metric in METRICS]
    blocks = block_figure(groups, titles, num_columns=3, height=1.5, legend="marks", gap=0.42)
    for group, panels in zip(groups, blocks.axes, strict=True):
        for metric, axes in zip(METRICS, panels, strict=True):
            _draw(axes, [lines[name][metric] for name in group])
    return blocks.figure


def _draw(axes: Axes, lines: Sequence[Levels]) -> None:
    severities = sorted({severity for levels in lines for severity in levels})
    for number, (levels, look) in enumerate(zip(lines, LOOKS, strict=False)):
        shift = 0.05 * (number - (len(lines) - 1) / 2)
        places = [severities.index(severity) + shift for severity in levels]
        heights = [mean(samples) for samples in levels.values()]
        spreads = [deviation(samples) or 0.0 for samples in levels.values()]
        bars: dict[str, Any] = {"elinewidth": 0.7, "capsize": 1.2, "capthick": 0.7}
        axes.errorbar(places, heights, spreads, linewidth=0.8, **bars, **look.line(marks=True))
    axes.set_xticks(range(len(severities)), ["test" if s == 0 else str(s) for s in severities])
    axes.set_xlabel("severity", labelpad=1)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    tidy(axes, grid="y")
