"""The figure of surfaces: class probability above, uncertainty below, a column for each method."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from density_softmax.data.toy import GRID_EXTENT, GRID_SIZE
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
    Marks("OOD", "D", RED, 0.95),
)


@dataclass(frozen=True)
class Layout:
    """Where everything goes, in inches: panels in blocks of two rows, then a foot.

    Attributes:
        labels: of the panels.
    """

    labels: tuple[str, ...]

    left, right, top, gap, block_gap = 0.18, 0.03, 0.02, 0.05, 0.1
    foot, line = 0.6, 0.108
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
    def height(self) -> float:
        """The sum of all blocks and the foot."""
        blocks = self.num_blocks * (self.block_height + self.block_gap) - self.block_gap
        return self.top + blocks + self.foot

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
        num_letters = int(self.panel[0] / 0.056)
        return [textwrap.wrap(label, num_letters) for label in self.labels]

    @property
    def title_height(self) -> float:
        """Room for the longest title."""
        return self.line * max(map(len, self.titles)) + 0.04

    @property
    def block_height(self) -> float:
        """A title and two rows."""
        return self.title_height + 2 * self.panel[1] + self.gap

    def place(self, number: int, row: int) -> tuple[float, float, float, float]:
        """Left, top, width and height of a panel, in the upper or lower row of its block."""
        block, column = divmod(number, self.num_columns)
        width, height = self.panel
        top = self.top + block * (self.block_height + self.block_gap) + self.title_height
        left = self.left + column * (width + self.gap)
        return left, top + row * (height + self.gap), width, height


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
    """The line p = ½, if both classes are predicted anywhere."""
    if probability.min() < 0.5 < probability.max():
        left, right, bottom, top = GRID_EXTENT
        xs, ys = np.linspace(left, right, GRID_SIZE), np.linspace(bottom, top, GRID_SIZE)
        axes.contour(xs, ys, probability, levels=[0.5], colors=INK, linewidths=0.7)


def _draw_points(axes: Axes, points: Sequence[Array], panel_width: float) -> None:
    """Points as pixels even in vector files, which would grow with every panel otherwise."""
    size = 1.1 + 0.9 * panel_width
    for marks, x in zip(MARKS, points, strict=True):
        axes.plot(x[:, 0], x[:, 1], **_style(marks, size), rasterized=True)
    axes.set_xlim(GRID_EXTENT[:2])
    axes.set_ylim(GRID_EXTENT[2:])


def _style(marks: Marks, size: float) -> dict[str, object]:
    return {
        "linestyle": "",
        "marker": marks.marker,
        "markersize": size * marks.size,
        "markerfacecolor": marks.color,
        "markeredgecolor": "white",
        "markeredgewidth": 0.1 * size,
    }


def _draw_foot(figure: Figure, layout: Layout, measure: Measure) -> None:
    """The two scales side by side, and below them what the points are."""
    inner = layout.width - layout.left - layout.right
    width, top = min(1.35, 0.44 * inner), layout.height - layout.foot + 0.09
    scales = (("p(y = 1 | x)", PROBABILITY, 1.0), (measure.formula, UNCERTAINTY, measure.largest))
    for quarter, (label, colors, largest) in zip((1, 3), scales, strict=True):
        left = layout.left + inner * quarter / 4 - width / 2
        axes = add_axes(figure, left, top, width, 0.07)
        mappable = ScalarMappable(Normalize(0, largest), colors)
        bar = figure.colorbar(mappable, cax=axes, orientation="horizontal")
        bar.set_ticks([0, largest / 2, largest])
        bar.set_label(label, labelpad=1.5)
    handles = [Line2D([], [], label=marks.name, **_style(marks, 4.5)) for marks in MARKS]  # type: ignore[arg-type]
    handles.append(Line2D([], [], color=INK, linewidth=0.7, label="p = ½"))
    figure.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=((layout.left + inner / 2) / layout.width, 0),
        ncols=len(handles),
        borderaxespad=0.1,
        handletextpad=0.3,
        columnspacing=1.4,
    )
