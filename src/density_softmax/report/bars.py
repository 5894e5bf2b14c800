"""A line of a figure for each method, in panels side by side: dots for seeds, bars for costs."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from density_softmax.report.names import fit_labels
from density_softmax.report.panels import LETTER, LINE, RIGHT, TITLE_GAP, tidy
from density_softmax.report.style import PAGE, add_axes, new_figure

__all__ = ["lined_figure"]

# Room for one method, for what is below the panels, and letters of a label.
ROW, BELOW, MOST_LETTERS = 0.15, 0.34, 40


def lined_figure(
    labels: Sequence[str], titles: Sequence[str], num_columns: int, *, row: float = ROW
) -> tuple[Figure, list[Axes]]:
    """Panels whose vertical axes have the labels in common, the first label uppermost."""
    shown = fit_labels(labels, MOST_LETTERS)
    left = 0.12 + LETTER * max(map(len, shown))
    inner = (PAGE - left - (num_columns - 1) * 0.14 - RIGHT) / num_columns
    height = row * len(labels) + 0.06
    row_height = LINE + TITLE_GAP + height + BELOW
    num_rows = -(-len(titles) // num_columns)
    figure, panels = new_figure(PAGE, num_rows * row_height), []
    for number, title in enumerate(titles):
        line, column = divmod(number, num_columns)
        top = line * row_height + LINE + TITLE_GAP
        axes = add_axes(figure, left + column * (inner + 0.14), top, inner, height)
        axes.set_title(title, loc="left", pad=3)
        axes.set_yticks(range(len(labels)), shown if column == 0 else [])
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        tidy(axes, grid="x")
        panels.append(axes)
    return figure, panels
