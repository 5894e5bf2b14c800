"""Surfaces on toy data: class probability above, uncertainty below, a column for each method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.special import entr
from torch import Tensor

from density_softmax.data import ArraySource
from density_softmax.data.toy import GRID_EXTENT, GRID_SIZE, Toy
from density_softmax.report.figures import Drawing
from density_softmax.report.frame import Setting, line_of, seeds_of
from density_softmax.report.names import file_stem
from density_softmax.report.style import (
    BLUE,
    INK,
    ORANGE,
    PAGE,
    PROBABILITY,
    RED,
    RIGHT,
    UNCERTAINTY,
    add_axes,
    add_legend,
    panel_figure,
)
from density_softmax.types import Data

Array = npt.NDArray[np.float64]

# Enough to show where the data lie, few enough to see what is below them.
NUM_POINTS = 60
# Inches left of the panels, between two of them, between rows, and of the foot on a page and in
# a column.
LEFT, GAP, ROW_GAP, FOOT, HIGH_FOOT = 0.18, 0.05, 0.08, 0.36, 0.6
POINTS, BOUNDARY = 2.0, 3.0  # what is drawn over what
# Kinds of points: told apart by shape as well as by colour; the last number is a relative size.
MARKS = {"class 0": ("o", BLUE, 1.0), "class 1": ("^", ORANGE, 1.15), "OOD": ("D", RED, 0.9)}


class Measure(NamedTuple):
    """An uncertainty as a function of p = p(y = 1 | x), and its largest value."""

    name: str
    formula: str
    of: Callable[[Array], Array]
    largest: float


class Panel(NamedTuple):
    """What one method says about the plane.

    Attributes:
        label: the method and its variant.
        probability: p(y = 1 | x) on the grid, the lowest row first, (GRID_SIZE, GRID_SIZE).
        points: inputs of class 0, of class 1, and out of distribution (OOD), each (points, 2).
    """

    label: str
    probability: Array
    points: tuple[Array, Array, Array]


def _entropy(p: Array) -> Array:
    """In bits; 0 at p = 0 and at p = 1."""
    p = np.clip(p, 0, 1)
    bits: Array = (entr(p) + entr(1 - p)) / math.log(2)
    return bits


MEASURES = {
    "variance": Measure("Variance", "p (1 − p)", lambda p: p * (1 - p), 0.25),
    "entropy": Measure("Entropy", "H(p) in bits", _entropy, 1.0),
    "margin": Measure("Uncertainty", "1 − 2 |p − ½|", lambda p: 1 - 2 * np.abs(p - 0.5), 1.0),
}


def draw(setting: Setting) -> Iterator[Drawing]:
    """The first seed of each method on toy data: a figure for each measure.

    Args:
        setting: the runs to compare.
    """
    runs = setting.predicted("grid")
    data = setting.runs[0].recipe.data
    if not runs or not isinstance(data, Toy):
        return
    panels = [
        surface_panel(line_of(run).label, run.prediction("grid")[0].probs, data.load(run.data_seed))
        for run in runs
    ]
    others = [path for path in runs[0].variant if path.startswith("data.") and path != "data.shape"]
    for key, measure in MEASURES.items():
        name = measure.name.lower()
        yield Drawing(
            surface_figure(panels, measure),
            file_stem(*([setting.name] if others else []), data.shape, key),
            f"{data.shape.replace('_', ' ').capitalize()}: {name} {measure.formula}",
            f"Top: class probability p(y = 1 | x). Bottom: its {name}, {measure.formula}. Circles "
            "and triangles are training points, diamonds are out-of-distribution points that no "
            f"method has seen; about {NUM_POINTS} of each are drawn. {seeds_of(runs)}",
        )


def surface_panel(label: str, probs: Tensor, data: Data) -> Panel:
    """What a method says about the plane of toy data.

    Args:
        label: the name of the method.
        probs: its class probabilities on the grid, (GRID_SIZE², 2).
        data: the toy data, of which some points are drawn.
    """
    probability = probs[:, 1].double().cpu().numpy().reshape(GRID_SIZE, GRID_SIZE)
    (ood,) = (split.source for split in data.splits if split.role == "ood")
    assert isinstance(data.train, ArraySource)
    assert isinstance(ood, ArraySource)
    x, y = data.train.x.double().numpy(), data.train.y.numpy()
    points = _thin(x[y == 0]), _thin(x[y == 1]), _thin(ood.x.double().numpy())
    return Panel(label, probability, points)


def surface_figure(panels: Sequence[Panel], measure: Measure) -> Figure:
    """Draw the panels, in as many rows as they need, with one legend and two scales.

    Args:
        panels: one for each method.
        measure: the uncertainty to draw.
    """
    left, right, bottom, top = GRID_EXTENT
    made = panel_figure(
        [panel.label for panel in panels],
        height=lambda width: 2 * width * (top - bottom) / (right - left) + GAP,
        most_columns=6,
        left=LEFT,
        gap=GAP,
        row_gap=ROW_GAP,
        foot=ROW_GAP + (FOOT if len(panels) > 2 else HIGH_FOOT),
    )
    width = made.axes[0].get_position().width * made.figure.get_size_inches()[0]
    for upper, panel in zip(made.axes, panels, strict=True):
        lower = _split(made.figure, upper)
        _draw_surface(upper, panel.probability, PROBABILITY, 1.0)
        _draw_boundary(upper, panel.probability)
        _draw_surface(lower, measure.of(panel.probability), UNCERTAINTY, measure.largest)
        for axes in (upper, lower):
            _draw_points(axes, panel.points, 1.0 + 0.9 * width)
        if upper in made.left:
            upper.set_ylabel("probability", labelpad=3)
            lower.set_ylabel(measure.name.lower(), labelpad=3)
    _draw_foot(made.figure, measure)
    return made.figure


def _thin(x: Array) -> Array:
    return x[:: max(1, len(x) // NUM_POINTS)]


def _split(figure: Figure, axes: Axes) -> Axes:
    """Leave the axes their upper half; returns new ones in the lower half."""
    box, gap = axes.get_position(), GAP / figure.get_size_inches()[1]
    height = (box.height - gap) / 2
    axes.set_position((box.x0, box.y1 - height, box.width, height))
    return figure.add_axes((box.x0, box.y0, box.width, height))


def _draw_surface(axes: Axes, values: Array, colors: Colormap, largest: float) -> None:
    options: dict[str, Any] = {"origin": "lower", "interpolation": "bilinear", "aspect": "auto"}
    axes.imshow(values, extent=GRID_EXTENT, cmap=colors, vmin=0, vmax=largest, **options)
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


def _draw_points(axes: Axes, points: Sequence[Array], size: float) -> None:
    for x, marks in zip(points, MARKS.values(), strict=True):
        axes.plot(x[:, 0], x[:, 1], **_style(*marks, size))
    axes.set_xlim(GRID_EXTENT[:2])
    axes.set_ylim(GRID_EXTENT[2:])
    # Image and points become one picture in vector files, which would be large otherwise.
    axes.set_rasterization_zorder(POINTS + 0.5)


def _style(marker: str, color: str, relative: float, size: float) -> dict[str, Any]:
    """Arguments of `plot`."""
    edge = {"markeredgecolor": INK, "markeredgewidth": 0.1 * size, "zorder": POINTS}
    face = {"marker": marker, "markersize": size * relative, "markerfacecolor": color}
    return {"linestyle": "", **face, **edge}


def _draw_foot(figure: Figure, measure: Measure) -> None:
    """The two scales and, between or below them, what the points are."""
    wide, height = figure.get_size_inches()[0] == PAGE, figure.get_size_inches()[1]
    _draw_scale(figure, 1 / 7 if wide else 1 / 4, "p(y = 1 | x)", PROBABILITY, 1.0)
    _draw_scale(figure, 6 / 7 if wide else 3 / 4, measure.formula, UNCERTAINTY, measure.largest)
    handles = [Line2D([], [], label=name, **_style(*marks, 4)) for name, marks in MARKS.items()]
    handles.append(Line2D([], [], color=INK, linewidth=0.7, label="p = ½"))
    spacing = {"handletextpad": 0.3, "columnspacing": 1.4}
    anchor = (_across(figure, 0.5), 0.08 / height if wide else 0)
    add_legend(figure, handles, len(handles), bbox_to_anchor=anchor, **spacing)


def _draw_scale(figure: Figure, share: float, label: str, colors: Colormap, largest: float) -> None:
    full, height = figure.get_size_inches()
    width, top = 1.3, height - (FOOT if full == PAGE else HIGH_FOOT) + 0.01
    axes = add_axes(figure, _across(figure, share) * full - width / 2, top, width, 0.07)
    mappable = ScalarMappable(Normalize(0, largest), colors)
    bar = figure.colorbar(mappable, cax=axes, orientation="horizontal")
    bar.set_ticks([0, largest / 2, largest], labels=[f"{largest * part:g}" for part in (0, 0.5, 1)])
    bar.set_label(label, labelpad=1)


def _across(figure: Figure, share: float) -> float:
    """A position between the left and right ends of the panels, as a share of the whole width."""
    width = figure.get_size_inches()[0]
    return (LEFT + share * (width - LEFT - RIGHT)) / width
