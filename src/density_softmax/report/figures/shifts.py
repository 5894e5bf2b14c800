"""Metrics against the severity of a shift: box plots over its types, and means over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from density_softmax.report.figures import Drawing
from density_softmax.report.frame import Setting, Spread, over_seeds
from density_softmax.report.names import file_stem, metric_name, set_name, with_reference
from density_softmax.report.style import INK, LOOKS, block_figure, tidy

if TYPE_CHECKING:
    import pandas as pd

# By severity, 0 being the in-domain test set: the values of all types, or their mean over seeds.
Boxes = Mapping[int, Sequence[float]]
Means = Mapping[int, Spread]

BOX_METRICS = ("nll", "accuracy", "ece", "mece")
MEAN_METRICS = ("nll", "accuracy", "ece")
BOXES = (
    "Boxes show quartiles over the shift types that all runs have, whiskers the smallest and "
    "largest value; the diamond is the in-domain test set. Each value is a mean over all seeds of "
    "the method."
)
MEANS = (
    "Mean over the shift types that all runs have, averaged over seeds; bars show one standard "
    "deviation over seeds to either side, if there are several. Lines are shifted sideways so that "
    "bars do not overlap."
)
DIAMOND: dict[str, Any] = {"linestyle": "", "marker": "D", "markersize": 3, "markeredgewidth": 0.4}
BARS: dict[str, Any] = {"linewidth": 0.8, "elinewidth": 0.7, "capsize": 1.2, "capthick": 0.7}


def draw(setting: Setting) -> Iterator[Drawing]:
    """For each corrupted set boxes, in a figure for each metric if there are many methods; means.

    Args:
        setting: the runs to compare.
    """
    for data, levels in setting.splits.corrupted.items():
        boxes = {m: _find_boxes(setting.frame, levels, m) for m in BOX_METRICS}
        found = {metric: each for metric, each in boxes.items() if each}
        wraps = any(len(with_reference(list(each))) > 1 for each in found.values())
        for chosen in [{m: each} for m, each in found.items()] if wraps else [found]:
            words = ", ".join(metric_name(metric).title for metric in chosen)
            yield Drawing(
                _box_figure(chosen, setting.labels),
                file_stem(setting.name, data, "boxes", *(chosen if wraps else ())),
                f"{words} over the shifts of {set_name(data)}: {setting.name}",
                BOXES,
            )
        means = {m: _mean_over_types(setting.frame, levels, m) for m in MEAN_METRICS}
        yield Drawing(
            _severity_figure(means, setting.labels),
            file_stem(setting.name, data, "severity"),
            f"Means over the shifts of {set_name(data)} by severity: {setting.name}",
            MEANS,
        )


def _find_boxes(
    frame: pd.DataFrame, levels: Mapping[int, Sequence[str]], metric: str
) -> dict[str, Boxes]:
    """By line, the means over seeds at each severity; lines without any are left out."""
    means = over_seeds(frame[frame["metric"] == metric], "line", "split")
    found: dict[str, Boxes] = {}
    for line in dict.fromkeys(line for line, _ in means):
        values = {
            severity: [means[line, split].mean for split in splits if (line, split) in means]
            for severity, splits in {0: ["iid"], **levels}.items()
        }
        if any(values[severity] for severity in levels):
            found[line] = values
    return found


def _mean_over_types(
    frame: pd.DataFrame, levels: Mapping[int, Sequence[str]], metric: str
) -> dict[str, dict[int, Spread]]:
    """By line and severity, the spread over seeds; a seed counts where it has all types."""
    found: dict[str, dict[int, Spread]] = {}
    for severity, splits in {0: ["iid"], **levels}.items():
        part = frame[(frame["metric"] == metric) & frame["split"].isin(splits)]
        types = part.pivot_table("value", ["line", "seed"], "split", aggfunc="last").dropna()
        if set(splits) <= set(types.columns):
            means = types.mean(axis=1).rename("value").reset_index()
            for line, spread in over_seeds(means, "line").items():
                found.setdefault(line, {})[severity] = spread
    return found


def _box_figure(metrics: Mapping[str, Mapping[str, Boxes]], labels: Sequence[str]) -> Figure:
    """A panel for each metric with the boxes of all lines side by side; many lines wrap."""
    shown = next(iter(metrics.values()))
    groups = with_reference([label for label in labels if label in shown])
    names = [metric_name(metric) for metric in metrics]
    titles = [f"{name.title} ({name.better} is better)" for name in names]
    shape: dict[str, Any] = {"num_columns": 1, "height": 1.15, "left": 0.42}
    figure, blocks = block_figure(groups, titles, legend="areas", **shape)
    for group, panels in zip(groups, blocks, strict=True):
        for boxes, axes in zip(metrics.values(), panels, strict=True):
            _draw_boxes(axes, [boxes.get(name, {}) for name in group])
        panels[-1].set_xlabel("severity", labelpad=1)
    return figure


def _severity_figure(metrics: Mapping[str, Mapping[str, Means]], labels: Sequence[str]) -> Figure:
    """A panel for each metric with a line for each method; many methods wrap."""
    groups, titles = with_reference(labels), [metric_name(metric).title for metric in metrics]
    figure, blocks = block_figure(
        groups, titles, num_columns=3, height=1.5, legend="marks", gap=0.42
    )
    for group, panels in zip(groups, blocks, strict=True):
        for means, axes in zip(metrics.values(), panels, strict=True):
            _draw_means(axes, [means.get(name, {}) for name in group])
    return figure


def _draw_boxes(axes: Axes, lines: Sequence[Boxes]) -> None:
    width = 0.84 / len(lines)
    severities = sorted({severity for boxes in lines for severity in boxes})
    for number, (boxes, look) in enumerate(zip(lines, LOOKS, strict=False)):
        shift = (number - (len(lines) - 1) / 2) * width
        positions = {s: severities.index(s) + shift for s, values in boxes.items() if values}
        shifted = [s for s in positions if s > 0]
        colored = {"color": look.color, "linewidth": 0.7}
        axes.boxplot(
            [boxes[s] for s in shifted],
            positions=[positions[s] for s in shifted],
            widths=0.82 * width,
            whis=(0, 100),
            manage_ticks=False,
            patch_artist=True,
            boxprops={"facecolor": look.color, "edgecolor": INK, "linewidth": 0.4},
            medianprops={"color": "white", "linewidth": 0.8},
            whiskerprops=colored,
            capprops=colored,
        )
        if 0 in positions:
            diamond = {"color": look.color, "markeredgecolor": INK, **DIAMOND}
            axes.plot([positions[0]], [boxes[0][0]], **diamond)
    _label(axes, severities, 4)
    axes.set_xlim(-0.5, len(severities) - 0.5)
    for border in range(1, len(severities)):
        axes.axvline(border - 0.5, color=INK, linewidth=0.3, alpha=0.4)
    axes.tick_params(axis="x", length=0)


def _draw_means(axes: Axes, lines: Sequence[Means]) -> None:
    severities = sorted({severity for means in lines for severity in means})
    for number, (means, look) in enumerate(zip(lines, LOOKS, strict=False)):
        shift = 0.05 * (number - (len(lines) - 1) / 2)
        positions = [severities.index(severity) + shift for severity in means]
        heights = [spread.mean for spread in means.values()]
        errors = [spread.std or 0.0 for spread in means.values()]
        axes.errorbar(positions, heights, errors, **BARS, **look.line(marks=True))
    _label(axes, severities, 5)
    axes.set_xlabel("severity", labelpad=1)


def _label(axes: Axes, severities: Sequence[int], most_ticks: int) -> None:
    axes.set_xticks(range(len(severities)), ["test" if s == 0 else str(s) for s in severities])
    axes.yaxis.set_major_locator(MaxNLocator(most_ticks))
    tidy(axes, grid="y")
