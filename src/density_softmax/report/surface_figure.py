"""The figure of surfaces: class probability above, uncertainty below, a column for each method."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from density_softmax.data.toy import GRID_EXTENT, GRID_SIZE
from density_softmax.report.names import break_lines
from density_softmax.report.style import (
    BLUE,
    COLUMN,
    INK,
    ORANGE,
    PAGE,
    PROBABILITY,
    RED,
    UNCERTAINTY,
    add_axes,
    new_figure,
)

__all__ = ["Layout", "Measure", "Panel", "surface_figure"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Measure:
    """An uncertainty as a function of p = p(y = 1 | x), and its largest value."""

    name: str
    formula: str
    of: Callable[[Array], Array]
    largest: float


@dataclass(frozen=True)
class Panel:
    """What one method says about the plane.

    Attributes:
        label: the method and its variant.
        probability: p(y = 1 | x) on the grid, the lowest row first, (GRID_SIZE, GRID_SIZE).
        points: inputs of class 0, of class 1, and out of distribution (OOD), each (points, 2).
    """

    label: str
    probability: Array
    points: tuple[Array, Array, Array]


@dataclass(frozen=True)
class Marks:
    """How a kind of points is drawn: told apart by shape as well as by colour."""

    name: str
    marker: str
    color: str
    size: float


MARKS = (
    Marks("class 0", "o", BLUE, 1.0),
    Marks("class 1", "^", ORANGE, 1.15),
    Marks("OOD", "D", RED, 0.9),
)
POINTS, BOUNDARY = 2.0, 3.0  # what is drawn over what


@dataclass(frozen=True)
class Layout:
    """Where everything goes, in inches: panels in blocks of two rows, then a foot.

    Attributes:
        labels: of the panels.
    """

    labels: tuple[str, ...]

    left, right, top, gap, block_gap = 0.18, 0.03, 0.02, 0.05, 0.08
    line, letter = 0.108, 0.056
    most_columns = 6

    @property
    def num_blocks(self) -> int:
        """How many blocks lie one under the other."""
        return math.ceil(len(self.labels) / self.most_columns)

    @property
    def num_columns(self) -> int:
        """How many panels a block has, the last one perhaps fewer."""
        return math.ceil(len(self.labels) / self.num_blocks)

    @property
    def width(self) -> float:
        """One column of a paper where that is enough, otherwise its page."""
        return COLUMN if self.num_columns <= 2 else PAGE

    @property
    def foot(self) -> float:
        """Height of scales and legend: side by side on a page, in two lines in a column."""
        return 0.36 if self.width == PAGE else 0.6

    @property
    def height(self) -> float:
        """Blocks and foot."""
        return self._block_top(self.num_blocks) + self.foot

    @property
    def panel(self) -> tuple[float, float]:
        """Width and height of a panel; a unit is as long upwards as sideways."""
        free = self.width - self.left - self.right - (self.num_columns - 1) * self.gap
        left, right, bottom, top = GRID_EXTENT
        width = free / self.num_columns
        return width, width * (top - bottom) / (right - left)

    @cached_property
    def titles(self) -> list[list[str]]:
        """The labels, broken into lines no wider than a panel."""
        num_letters = int(self.panel[0] / self.letter)
        return [break_lines(label, num_letters) for label in self.labels]

    def place(self, number: int, row: int) -> tuple[float, float, float, float]:
        """Left, top, width and height of a panel, in the upper or lower row of its block."""
        block, column = divmod(number, self.num_columns)
        width, height = self.panel
        top = self._block_top(block) + self._title_height(block)
        left = self.left + column * (width + self.gap)
        return left, top + row * (height + self.gap), width, height

    def _block_top(self, block: int) -> float:
        rows = block * (2 * self.panel[1] + self.gap + self.block_gap)
        return self.top + rows + sum(map(self._title_height, range(block)))

    def _title_height(self, block: int) -> float:
        """Room for the longest title of a block."""
        titles = self.titles[block * self.num_columns : (block + 1) * self.num_columns]
        return self.line * max(map(len, titles)) + 0.04


def surface_figure(panels: Sequence[Panel], measure: Measure) -> Figure:
    """Draw the panels, in as many blocks as they need, with one legend and two scales."""
    layout = Layout(tuple(panel.label for panel in panels))
    figure = new_figure(layout.width, layout.height)
    for number, panel in enumerate(panels):
        upper = add_axes(figure, *layout.place(number, 0))
        _draw_surface(upper, panel.probability, PROBABILITY, 1.0)
        _draw_boundary(upper, panel.probability)
        upper.set_title("\n".join(layout.titles[number]), pad=2.5, linespacing=1.1)
        lower = add_axes(figure, *layout.place(number, 1))
        _draw_surface(lower, measure.of(panel.probability), UNCERTAINTY, measure.largest)
        for axes in (upper, lower):
            _draw_points(axes, panel.points, layout.panel[0])
        if number % layout.num_columns == 0:
            upper.set_ylabel("probability", labelpad=3)
            lower.set_ylabel(measure.name.lower(), labelpad=3)
    _draw_foot(figure, layout, measure)
    return figure


def _draw_surface(axes: Axes, values: Array, colors: Colormap, largest: float) -> None:
    axes.imshow(
        values,
        extent=GRID_EXTENT,
        origin="lower",
        cmap=colors,
        vmin=0,
        vmax=largest,
        interpolation="bilinear",
        aspect="auto",
    )
    axes.set_xticks([])
    axes.set_yticks([])


def _draw_boundary(axes: Axes, probability: Array) -> None:
    """The line p = ½ between the classes, not the rim of a plain where p is exactly ½."""
    on_plain = np.abs(probability - 0.5) < 1e-6
    if np.unique(probability[~on_plain] > 0.5).size == 2:
        left, right, bottom, top = GRID_EXTENT
        xs, ys = np.linspace(left, right, GRID_SIZE), np.linspace(bottom, top, GRID_SIZE)
        sides = np.ma.masked_where(on_plain, probability)
        axes.contour(xs, ys, sides, levels=[0.5], colors=INK, linewidths=0.7, zorder=BOUNDARY)


def _draw_points(axes: Axes, points: Sequence[Array], panel_width: float) -> None:
    size = 1.0 + 0.9 * panel_width
    for marks, x in zip(MARKS, points, strict=True):
        axes.plot(x[:, 0], x[:, 1], **_style(marks, size))
    axes.set_xlim(GRID_EXTENT[:2])
    axes.set_ylim(GRID_EXTENT[2:])
    # Image and points become one picture in vector files, which would be large otherwise.
    axes.set_rasterization_zorder(POINTS + 0.5)


def _style(marks: Marks, size: float) -> dict[str, Any]:
    return {
        "linestyle": "",
        "marker": marks.marker,
        "markersize": size * marks.size,
        "markerfacecolor": marks.color,
        "markeredgecolor": INK,
        "markeredgewidth": 0.1 * size,
        "zorder": POINTS,
    }


def _draw_foot(figure: Figure, layout: Layout, measure: Measure) -> None:
    """The two scales and, between or below them, what the points are."""
    wide = layout.width == PAGE
    _draw_scale(figure, layout, 1 / 7 if wide else 1 / 4, "p(y = 1 | x)", PROBABILITY, 1.0)
    right = 6 / 7 if wide else 3 / 4
    _draw_scale(figure, layout, right, measure.formula, UNCERTAINTY, measure.largest)
    handles = [Line2D([], [], label=marks.name, **_style(marks, 4)) for marks in MARKS]
    handles.append(Line2D([], [], color=INK, linewidth=0.7, label="p = ½"))
    figure.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(_across(layout, 0.5), 0.08 / layout.height if wide else 0),
        ncols=len(handles),
        borderaxespad=0.1,
        handletextpad=0.3,
        columnspacing=1.4,
    )


def _draw_scale(
    figure: Figure, layout: Layout, place: float, label: str, colors: Colormap, largest: float
) -> None:
    width, top = 1.3, layout.height - layout.foot + 0.01
    left = _across(layout, place) * layout.width - width / 2
    axes = add_axes(figure, left, top, width, 0.07)
    mappable = ScalarMappable(Normalize(0, largest), colors)
    bar = figure.colorbar(mappable, cax=axes, orientation="horizontal")
    bar.set_ticks([0, largest / 2, largest], labels=[f"{largest * part:g}" for part in (0, 0.5, 1)])
    bar.set_label(label, labelpad=1)


def _across(layout: Layout, share: float) -> float:
    """A place between the left and right ends of the panels, as a share of the whole width."""
    inner = layout.width - layout.left - layout.right
    return (layout.left + share * inner) / layout.width
