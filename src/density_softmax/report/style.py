"""How figures look: sizes for two-column papers, fonts, colours for every kind of vision, panels.

Panels, titles and legends are measured in inches and broken into rows that fit a page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.lines import Line2D

from density_softmax.report.names import Label, break_lines, fit_labels, readable

# Widths in inches of a column and of the page in two-column papers.
COLUMN, PAGE = 3.3, 6.9
# Inches of a line of text, of a letter, and of one method where each has a row of its own.
LINE, LETTER, ROW = 0.108, 0.056, 0.15
TITLE_GAP, RIGHT, BELOW = 0.05, 0.1, 0.34
# A variant may name every entry of a config: tables have room for that, figures do not.
MOST_TITLE_LINES, MOST_LEGEND_LETTERS, MOST_ROW_LETTERS = 4, 60, 40

INK, GREY = "#1f2328", "#8a929a"
BLUE, ORANGE, RED = "#8ecdfa", "#ffb46b", "#ff3d8b"
DARK_BLUE, DARK_ORANGE = "#1f5f9e", "#c2560a"

# Blue to orange through a light grey: told apart by every kind of colour vision, and as light
# on the one side as on the other.
PROBABILITY = LinearSegmentedColormap.from_list(
    "blue_orange",
    ["#2c6ba8", "#669ecb", "#aecee5", "#f5f4f1", "#f4c89d", "#df924e", "#bb631d"],
)
# Cividis without its glaring end.
UNCERTAINTY = LinearSegmentedColormap.from_list(
    "mild_cividis", matplotlib.colormaps["cividis"](np.linspace(0.0, 0.94, 64))
)
# Levels of a shift: from light to dark, which a grey print keeps.
LEVELS = LinearSegmentedColormap.from_list(
    "light_to_dark", ["#f2b880", "#dd8448", "#b5512c", "#7c2a25", "#3d1220"]
)

RC: Any = {
    "font.family": "DejaVu Sans",
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize", "legend.fontsize"), 6.5),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 6),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.5),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 2),
    **dict.fromkeys(("xtick.major.pad", "ytick.major.pad"), 1.5),
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("figure.dpi", "savefig.dpi"), 200),
    "legend.frameon": False,
    "lines.linewidth": 1.0,
    "hatch.linewidth": 0.4,
    "svg.fonttype": "path",
    "svg.hashsalt": "density-softmax",
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class Look:
    """How one of several lines is told apart: by colour, by dashes and by marks."""

    color: str
    dashes: Any
    marker: str

    def line(self, *, marks: bool = False) -> dict[str, Any]:
        """Arguments of `plot`."""
        found: dict[str, Any] = {"color": self.color, "linestyle": self.dashes}
        return {**found, "marker": self.marker, "markersize": 2.6} if marks else found

    def area(self) -> dict[str, Any]:
        """Arguments of `plot` for a square in a legend."""
        return {"color": self.color, "linestyle": "", "marker": "s", "markersize": 5}


# The colours of Okabe and Ito, which every kind of colour vision tells apart, except their
# yellow, which is too light for paper.
LOOKS = (
    Look(INK, "-", "o"),
    Look("#0072b2", (0, (4, 1)), "s"),
    Look("#d55e00", (0, (2, 0.8)), "^"),
    Look("#009e73", (0, (5, 1, 1, 1)), "D"),
    Look("#cc79a7", (0, (1, 0.8)), "v"),
    Look("#56b4e9", "-", "P"),
    Look("#e69f00", (0, (4, 1)), "X"),
    Look("#7f6a55", (0, (2, 0.8)), "*"),
)


@dataclass(frozen=True)
class Panels:
    """A figure of panels of the same size, in rows from the upper left."""

    figure: Figure
    axes: tuple[Axes, ...]
    num_columns: int

    @property
    def left(self) -> tuple[Axes, ...]:
        """Those with no panel to their left."""
        return self.axes[:: self.num_columns]

    @property
    def lowest(self) -> tuple[Axes, ...]:
        """Those with no panel below them."""
        return self.axes[-self.num_columns :]


@contextmanager
def paper_style() -> Iterator[None]:
    """Figures made, and saved, inside look as this module says."""
    with matplotlib.rc_context(RC):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, without any global state.

    Args:
        width: in inches.
        height: in inches.
    """
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def add_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a position in inches.

    Args:
        figure: to which they are added.
        left: from the left edge of the figure.
        top: from the upper edge of the figure.
        width: of the axes.
        height: of the axes.
    """
    x, y = figure.get_size_inches()
    return figure.add_axes((left / x, 1 - (top + height) / y, width / x, height / y))


def panel_figure(
    titles: Sequence[str],
    *,
    height: float | Callable[[float], float],
    most_columns: int = 4,
    left: float = 0.38,
    gap: float = 0.44,
    row_gap: float = 0.31,
    foot: float = 0.5,
) -> Panels:
    """A panel below each title, in one column of a paper where that is enough, else on its page.

    Args:
        titles: of the panels.
        height: of a panel, or a function of its width.
        most_columns: panels in a row.
        left: room for what stands left of the first panel.
        gap: between two panels of a row.
        row_gap: between a panel and the title below it.
        foot: room below the last row.
    """
    num_columns = math.ceil(len(titles) / math.ceil(len(titles) / most_columns))
    width = COLUMN if num_columns <= 2 else PAGE
    inner = (width - left - RIGHT - (num_columns - 1) * gap) / num_columns
    height = height(inner) if callable(height) else height
    num_letters = int((inner + min(gap / 2, RIGHT)) / LETTER)
    fitting = fit_labels(list(map(_drawable, titles)), num_letters * MOST_TITLE_LINES)
    broken = [_shorten(title, num_letters) for title in fitting]
    rows = [broken[n : n + num_columns] for n in range(0, len(broken), num_columns)]
    heads = [LINE * max(map(len, row)) + TITLE_GAP for row in rows]
    full = sum(heads) + len(rows) * height + (len(rows) - 1) * row_gap + foot
    figure, axes = new_figure(width, full), []
    for number, title in enumerate(broken):
        row, column = divmod(number, num_columns)
        top = sum(heads[: row + 1]) + row * (height + row_gap)
        axes.append(add_axes(figure, left + column * (inner + gap), top, inner, height))
        axes[-1].set_title(_literal("\n".join(title)), loc="left", pad=3, linespacing=1.1)
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
) -> tuple[Figure, list[list[Axes]]]:
    """For each group of labels the panels with these titles, then the labels as a legend.

    Args:
        groups: labels of the lines that share panels, at most as many as there are looks.
        titles: of the panels of every block.
        num_columns: panels in a row.
        height: of a panel.
        legend: whether its entries are lines, lines with marks, or areas.
        left: room for what stands left of the first panel.
        gap: between two panels of a row.
    """
    width = PAGE if num_columns > 1 or len(titles) > 2 or legend == "areas" else COLUMN
    inner = (width - left - RIGHT - (num_columns - 1) * gap) / num_columns
    row_height = LINE + TITLE_GAP + height + BELOW
    panels_height = math.ceil(len(titles) / num_columns) * row_height
    every = [label for labels in groups for label in labels]
    fitting = fit_labels(list(map(_drawable, every)), MOST_LEGEND_LETTERS)
    shown = dict(zip(every, fitting, strict=True))
    legends = [_legend_shape([shown[label] for label in labels], width) for labels in groups]
    tops = [n * panels_height + sum(h for _, h in legends[:n]) for n in range(len(groups))]
    figure = new_figure(width, tops[-1] + panels_height + legends[-1][1])
    blocks = []
    for top, labels, (num_in_row, _) in zip(tops, groups, legends, strict=True):
        axes = []
        for number, title in enumerate(titles):
            row, column = divmod(number, num_columns)
            corner = left + column * (inner + gap), top + row * row_height + LINE + TITLE_GAP
            axes.append(add_axes(figure, *corner, inner, height))
            axes[-1].set_title(_one_line(title, inner), loc="left", pad=3)
        handles = [_handle(look, legend) for _, look in zip(labels, LOOKS, strict=False)]
        names = [_literal(shown[label]) for label in labels]
        anchor = (0.5, 1 - (top + panels_height) / figure.get_size_inches()[1])
        spacing = {"handletextpad": 0.5, "columnspacing": 1.2, "labelspacing": 0.3}
        spacing |= {"borderaxespad": 0, "ncols": num_in_row}
        figure.legend(handles, names, loc="upper center", bbox_to_anchor=anchor, **spacing)
        blocks.append(axes)
    return figure, blocks


def lined_figure(
    labels: Sequence[str], titles: Sequence[str], num_columns: int, *, row: float = ROW
) -> tuple[Figure, list[Axes]]:
    """Panels whose vertical axes have the labels in common, the first label uppermost.

    Args:
        labels: of the rows.
        titles: of the panels.
        num_columns: panels side by side.
        row: the height of a row.
    """
    shown = fit_labels(list(map(_drawable, labels)), MOST_ROW_LETTERS)
    left = 0.12 + LETTER * max(map(len, shown))
    inner = (PAGE - left - (num_columns - 1) * 0.14 - RIGHT) / num_columns
    height = row * len(labels) + 0.06
    row_height = LINE + TITLE_GAP + height + BELOW
    figure, panels = new_figure(PAGE, -(-len(titles) // num_columns) * row_height), []
    for number, title in enumerate(titles):
        line, column = divmod(number, num_columns)
        top = line * row_height + LINE + TITLE_GAP
        axes = add_axes(figure, left + column * (inner + 0.14), top, inner, height)
        axes.set_title(_one_line(title, inner), loc="left", pad=3)
        axes.set_yticks(range(len(labels)), list(map(_literal, shown)) if column == 0 else [])
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        tidy(axes, grid="x")
        panels.append(axes)
    return figure, panels


def add_legend(figure: Figure, handles: Sequence[Artist], num_in_row: int, **options: Any) -> None:
    """A legend at the foot of a figure, labels cut to fit it.

    Args:
        figure: to which it is added.
        handles: its entries, with labels.
        num_in_row: entries side by side.
        options: of matplotlib's legend.
    """
    labels = [_drawable(str(handle.get_label())) for handle in handles]
    num_columns = min(num_in_row, len(handles))
    room = int((figure.get_size_inches()[0] / num_columns - 0.4) / LETTER)
    longest = sorted(map(len, labels))[-num_columns:]
    fitting = fit_labels(labels, room) if sum(longest) > room * num_columns else labels
    for handle, label in zip(handles, fitting, strict=True):
        handle.set_label(_literal(label))
    options = {"loc": "lower center", "borderaxespad": 0.1, **options}
    figure.legend(handles=list(handles), ncols=num_in_row, **options)


def tidy(axes: Axes, *, grid: Literal["both", "x", "y"] = "both") -> None:
    """A light grid and no frame above and to the right.

    Args:
        axes: what to change.
        grid: along which axis.
    """
    axes.grid(axis=grid, linewidth=0.3, alpha=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _drawable(text: str) -> str:
    """The text without signs that the font lacks: their numbers stand for them.

    Boxes in their place would all look the same.
    """
    if isinstance(text, Label):
        return Label(_drawable(text.name), [_drawable(change) for change in text.changes])
    known = _font_signs()
    return "".join(s if ord(s) in known else f"[U+{ord(s):04X}]" for s in readable(text))


@cache
def _font_signs() -> frozenset[int]:
    """What the font of all figures can draw."""
    properties = FontProperties(family=RC["font.family"])
    return frozenset(get_font(findfont(properties)).get_charmap())


def _literal(text: str) -> str:
    """The text with its dollar signs, between which matplotlib would see a formula."""
    return text.replace("$", r"\$")


def _shorten(label: str, num_letters: int) -> list[str]:
    """A label in lines; dots stand for what would be too many."""
    lines, last = break_lines(label, num_letters), MOST_TITLE_LINES - 1
    if len(lines) <= MOST_TITLE_LINES:
        return lines
    return [*lines[:last], f"{lines[last][: num_letters - 1]}…"]


def _one_line(title: str, width: float) -> str:
    """A title as wide as its panel, as it is drawn."""
    (fitting,) = fit_labels([_drawable(title)], int((width + RIGHT) / LETTER))
    return _literal(fitting)


def _legend_shape(labels: Sequence[str], width: float) -> tuple[int, float]:
    """Entries in a row, and height of all rows."""
    entry = 0.5 + LETTER * max(map(len, labels))
    num_in_row = max(1, min(len(labels), int((width - 0.1) / entry)))
    return num_in_row, 0.13 * math.ceil(len(labels) / num_in_row) + 0.1


def _handle(look: Look, kind: str) -> Line2D:
    return Line2D([], [], **(look.area() if kind == "areas" else look.line(marks=kind == "marks")))
