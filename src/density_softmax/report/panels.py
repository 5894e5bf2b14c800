"""Where panels, titles and legends go: measured in inches, broken into rows that fit a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from density_softmax.report.names import break_lines, fit_labels
from density_softmax.report.style import COLUMN, LOOKS, PAGE, Look, add_axes, new_figure

__all__ = ["Blocks", "Panels", "block_figure", "panel_figure", "tidy"]

# Inches of a line of text and of a letter.
LINE, LETTER = 0.108, 0.056
TITLE_GAP = 0.05
RIGHT = 0.1
# A variant may name every entry of a config: tables have room for that, titles and legends not.
MOST_TITLE_LINES, MOST_LEGEND_LETTERS = 4, 60


@dataclass(frozen=True)
class Panels:
    """A figure of like panels, in rows from the upper left."""

    figure: Figure
    axes: tuple[Axes, ...]
    num_columns: int

    def is_left(self, number: int) -> bool:
        """Whether no panel is to the left of this one."""
        return number % self.num_columns == 0

    def is_lowest(self, number: int) -> bool:
        """Whether no panel is below this one."""
        return number + self.num_columns >= len(self.axes)


@dataclass(frozen=True)
class Blocks:
    """A figure of blocks, each with the same panels and a legend of its own."""

    figure: Figure
    axes: tuple[tuple[Axes, ...], ...]


def panel_figure(
    titles: Sequence[str],
    *,
    height: float | None,
    most_columns: int = 4,
    left: float = 0.38,
    gap: float = 0.44,
    row_gap: float = 0.31,
    foot: float = 0.5,
) -> Panels:
    """A panel below each title, in one column of a paper where that is enough, else on its page.

    Args:
        titles: of the panels.
        height: of a panel; None makes it square.
        most_columns: panels in a row.
        left: room for what stands left of the first panel.
        gap: between two panels of a row.
        row_gap: between a panel and the title below it.
        foot: room below the last row.
    """
    num_columns = math.ceil(len(titles) / math.ceil(len(titles) / most_columns))
    width = COLUMN if num_columns <= 2 else PAGE
    inner = (width - left - RIGHT - (num_columns - 1) * gap) / num_columns
    height = inner if height is None else height
    num_letters = int((inner + min(gap / 2, RIGHT)) / LETTER)
    fitting = fit_labels(titles, num_letters * MOST_TITLE_LINES)
    broken = [_shorten(title, num_letters) for title in fitting]
    rows = [broken[n : n + num_columns] for n in range(0, len(broken), num_columns)]
    heads = [LINE * max(map(len, row)) + TITLE_GAP for row in rows]
    full = sum(heads) + len(rows) * height + (len(rows) - 1) * row_gap + foot
    figure, axes = new_figure(width, full), []
    for number, title in enumerate(broken):
        row, column = divmod(number, num_columns)
        top = sum(heads[: row + 1]) + row * (height + row_gap)
        axes.append(add_axes(figure, left + column * (inner + gap), top, inner, height))
        axes[-1].set_title("\n".join(title), loc="left", pad=3, linespacing=1.1)
    return Panels(figure, tuple(axes), num_columns)


def block_figure(
    groups: Sequence[Sequence[str]],
    titles: Sequence[str],
    *,
    num_columns: int,
    height: float,
    legend: Literal["lines", "marks", "areas"] = "lines",
    left: float = 0.38,
    gap: float = 0.44,
    below: float = 0.34,
) -> Blocks:
    """For each group of labels the panels with these titles, then the labels as a legend.

    Args:
        groups: labels of the lines that share panels, at most as many as there are looks.
        titles: of the panels of every block.
        num_columns: panels in a row.
        height: of a panel.
        legend: whether its entries are lines, lines with marks, or areas.
        left: room for what stands left of the first panel.
        gap: between two panels of a row.
        below: room for what stands below a panel.
    """
    width = PAGE if num_columns > 1 or len(titles) > 2 or legend == "areas" else COLUMN
    inner = (width - left - RIGHT - (num_columns - 1) * gap) / num_columns
    row_height = LINE + TITLE_GAP + height + below
    num_rows = math.ceil(len(titles) / num_columns)
    every = [label for labels in groups for label in labels]
    shown = dict(zip(every, fit_labels(every, MOST_LEGEND_LETTERS), strict=True))
    groups = [[shown[label] for label in labels] for labels in groups]
    legends = [_legend_shape(labels, width) for labels in groups]
    tops = [n * num_rows * row_height + sum(h for _, h in legends[:n]) for n in range(len(groups))]
    figure = new_figure(width, tops[-1] + num_rows * row_height + legends[-1][1])
    blocks = []
    for top, labels, (num_in_row, _) in zip(tops, groups, legends, strict=True):
        axes = []
        for number, title in enumerate(titles):
            row, column = divmod(number, num_columns)
            place = left + column * (inner + gap), top + row * row_height + LINE + TITLE_GAP
            axes.append(add_axes(figure, *place, inner, height))
            axes[-1].set_title(title, loc="left", pad=3)
        _draw_legend(figure, top + num_rows * row_height, labels, num_in_row, legend)
        blocks.append(tuple(axes))
    return Blocks(figure, tuple(blocks))


def tidy(axes: Axes, *, grid: str = "both") -> None:
    """A light grid and no frame above and to the right."""
    axes.grid(axis=grid, linewidth=0.3, alpha=0.5)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _shorten(label: str, num_letters: int) -> list[str]:
    """A label in lines; dots stand for what would be too many."""
    lines, last = break_lines(label, num_letters), MOST_TITLE_LINES - 1
    if len(lines) <= MOST_TITLE_LINES:
        return lines
    return [*lines[:last], f"{lines[last][: num_letters - 1]}…"]


def _legend_shape(labels: Sequence[str], width: float) -> tuple[int, float]:
    """Entries in a row, and height of all rows."""
    entry = 0.5 + LETTER * max(map(len, labels))
    num_in_row = max(1, min(len(labels), int((width - 0.1) / entry)))
    return num_in_row, 0.13 * math.ceil(len(labels) / num_in_row) + 0.1


def _draw_legend(
    figure: Figure, top: float, labels: Sequence[str], num_in_row: int, kind: str
) -> None:
    handles: list[Artist] = [
        Line2D([], [], **(_area(look) if kind == "areas" else look.line(marks=kind == "marks")))
        for _, look in zip(labels, LOOKS, strict=False)
    ]
    figure.legend(
        handles,
        labels,
        loc="upper center",
        bbox_to_anchor=(0.5, 1 - top / figure.get_size_inches()[1]),
        ncols=num_in_row,
        borderaxespad=0,
        handletextpad=0.5,
        columnspacing=1.2,
        labelspacing=0.3,
    )


def _area(look: Look) -> dict[str, Any]:
    return {"color": look.color, "linestyle": "", "marker": "s", "markersize": 5}
