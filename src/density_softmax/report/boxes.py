"""Box plots over the types of a shift: how each method fares as it becomes more severe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from density_softmax.report.names import file_stem, metric_name
from density_softmax.report.panels import block_figure, tidy
from density_softmax.report.runs import Run, by_setting, rows_of
from density_softmax.report.samples import Key, Samples, mean, samples_by_line
from density_softmax.report.splits import find_splits
from density_softmax.report.style import INK, LOOKS, Picture, save_figure
from density_softmax.report.wrapping import with_reference

__all__ = ["Boxes", "box_figure", "find_boxes", "write_boxes"]

# Values of a line by severity; severity 0 is the in-domain test set.
Boxes = Mapping[int, Sequence[float]]

METRICS = ("nll", "accuracy", "ece", "mece")
CAPTION = (
    "Boxes show quartiles over the types of the shift that all runs have, whiskers the least and "
    "the largest; a diamond is the in-domain test set. Each value is the mean over all seeds of "
    "the method."
)


def write_boxes(runs: Sequence[Run], folder: Path) -> list[Picture]:
    """For each corrupted set a figure of all metrics or, with many methods, one for each."""
    pictures = []
    for setting, members in by_setting(runs).items():
        rows = rows_of(members)
        lines = samples_by_line(rows)
        for data, levels in find_splits(rows).corrupted.items():
            found = {m: find_boxes(lines, levels, m) for m in METRICS}
            found = {metric: boxes for metric, boxes in found.items() if boxes}
            wraps = any(len(with_reference(list(boxes))) > 1 for boxes in found.values())
            for chosen in [{m: boxes} for m, boxes in found.items()] if wraps else [found]:
                words = [metric_name(metric).title for metric in chosen]
                stem = file_stem(setting, data, "boxes", *(chosen if wraps else ()))
                title = f"{', '.join(words)} over the shifts of {data}: {setting}"
                pictures.append(save_figure(box_figure(chosen), folder / stem, title, CAPTION))
    return pictures


def find_boxes(
    lines: Mapping[str, Mapping[Key, Samples]], levels: Mapping[int, Sequence[str]], metric: str
) -> dict[str, Boxes]:
    """By line, what there is of a metric at each severity; lines without any are left out."""
    found: dict[str, Boxes] = {}
    for name, samples in lines.items():
        splits = {0: ["iid"], **levels}
        keys = {severity: [(split, metric) for split in each] for severity, each in splits.items()}
        values = {
            s: [mean(samples[key]) for key in each if key in samples] for s, each in keys.items()
        }
        if any(values[severity] for severity in levels):
            found[name] = values
    return found


def box_figure(metrics: Mapping[str, Mapping[str, Boxes]]) -> Figure:
    """A panel for each metric with the boxes of all lines side by side; many lines wrap."""
    lines = list(next(iter(metrics.values())))
    groups = with_reference(lines)
    titles = [_title(metric) for metric in metrics]
    blocks = block_figure(groups, titles, num_columns=1, height=1.15, legend="areas", left=0.42)
    for group, panels in zip(groups, blocks.axes, strict=True):
        for boxes, axes in zip(metrics.values(), panels, strict=True):
            _draw(axes, [boxes.get(name, {}) for name in group])
        panels[-1].set_xlabel("severity", labelpad=1)
    return blocks.figure


def _title(metric: str) -> str:
    title, better = metric_name(metric)
    return f"{title} ({better} is better)"


def _draw(axes: Axes, lines: Sequence[Boxes]) -> None:
    width = 0.84 / len(lines)
    severities = sorted({severity for boxes in lines for severity in boxes})
    for number, (boxes, look) in enumerate(zip(lines, LOOKS, strict=False)):
        shift = (number - (len(lines) - 1) / 2) * width
        places = {s: severities.index(s) + shift for s, values in boxes.items() if values}
        shifted = [s for s in places if s > 0]
        axes.boxplot(
            [boxes[s] for s in shifted],
            positions=[places[s] for s in shifted],
            widths=0.82 * width,
            whis=(0, 100),
            manage_ticks=False,
            patch_artist=True,
            boxprops={"facecolor": look.color, "edgecolor": INK, "linewidth": 0.4},
            medianprops={"color": "white", "linewidth": 0.8},
            whiskerprops={"color": look.color, "linewidth": 0.7},
            capprops={"color": look.color, "linewidth": 0.7},
        )
        if 0 in places:
            mark: dict[str, Any] = {
                "marker": "D",
                "markersize": 3,
                "markeredgecolor": INK,
                "markeredgewidth": 0.4,
            }
            axes.plot([places[0]], [boxes[0][0]], color=look.color, linestyle="", **mark)
    axes.set_xticks(range(len(severities)), ["test" if s == 0 else str(s) for s in severities])
    axes.set_xlim(-0.5, len(severities) - 0.5)
    for border in range(1, len(severities)):
        axes.axvline(border - 0.5, color=INK, linewidth=0.3, alpha=0.4)
    axes.tick_params(axis="x", length=0)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    tidy(axes, grid="y")
