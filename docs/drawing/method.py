"""Draws the method: its three trainings and its prediction (Figure 2 of the paper).

    python docs/drawing/method.py [--out FOLDER]

writes method.svg to docs/images.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

from density_softmax.report.style import (
    BLUE,
    DARK_BLUE,
    DARK_ORANGE,
    GREY,
    INK,
    ORANGE,
    add_axes,
    new_figure,
    paper_style,
)

IMAGES = Path(__file__).parent.parent / "images"
WIDTH, GAP, LEGEND = 5.2, 0.1, 0.3  # inches
BOX = 0.28  # the height of one
TRAINED, FROZEN = (ORANGE, DARK_ORANGE), ("#eceff1", GREY)
LAST = 3.8  # where the words on the right begin


class Place(NamedTuple):
    """Where something is, in inches from the lower left corner of its panel."""

    x: float
    y: float
    half: float  # its width, to the left and to the right


# The upper row is the classifier, the lower one the density.
X, F, Z = Place(0.2, 0.62, 0.1), Place(0.84, 0.62, 0.33), Place(1.46, 0.62, 0.1)
G, P, S = Place(2.18, 0.9, 0.33), Place(2.18, 0.34, 0.33), Place(3.0, 0.34, 0.3)
TIMES, SOFTMAX = Place(3.0, 0.9, 0.11), Place(3.5, 0.9, 0.11)


def main() -> None:
    """Draw and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=IMAGES, help="the folder to write to")
    out: Path = parser.parse_args().out
    panels = {representation: 0.85, density: 0.85, head: 1.35, prediction: 1.65}
    with paper_style():
        figure = new_figure(WIDTH, sum(panels.values()) + GAP * len(panels) + LEGEND)
        top = 0.0
        for draw, height in panels.items():
            draw(empty_axes(figure, top, height))
            top += height + GAP
        legend(empty_axes(figure, top, LEGEND))
        figure.savefig(out / "method.svg", metadata={"Date": None})
    print(out / "method.svg")


def representation(axes: Axes) -> None:
    """Eq. 4: encoder and head."""
    frame(axes, "1  representation", "Eq. 4")
    axes.set_ylim(F.y - 0.3, F.y + 0.55)
    g, softmax = G._replace(y=F.y), TIMES._replace(y=F.y)
    encoder(axes, TRAINED)
    box(axes, g, "head  g", TRAINED)
    circle(axes, softmax, "σ")
    arrow(axes, Z, g)
    arrow(axes, g, softmax)
    says(axes, softmax, "cross entropy\n+ λ (‖∂f/∂x‖ − 1)²")


def density(axes: Axes) -> None:
    """Eq. 5 and Algorithm 2: density and scale."""
    frame(axes, "2  density and scale", "Eq. 5, Algorithm 2")
    axes.set_ylim(F.y - 0.3, F.y + 0.55)
    p, s = P._replace(y=F.y), S._replace(y=F.y)
    encoder(axes, FROZEN)
    box(axes, p, "density  p", TRAINED)
    box(axes, s, "scale  s", TRAINED)
    arrow(axes, Z, p)
    arrow(axes, p, s)
    says(axes, s, "likelihood of z,\nthen one pass for s")


def head(axes: Axes) -> None:
    """Eq. 6: the head, once more."""
    frame(axes, "3  head", "Eq. 6, can be left out")
    whole(axes, head_look=TRAINED)
    says(axes, SOFTMAX, "cross entropy")


def prediction(axes: Axes) -> None:
    """Eq. 7: one pass, three answers."""
    frame(axes, "Prediction", "Eq. 7, one pass")
    axes.set_ylim(-0.12, 1.53)
    whole(axes, head_look=FROZEN)
    says(axes, SOFTMAX, "probabilities", DARK_BLUE)
    branch(axes, G, up=0.26, text="aleatoric: H(σ(g(z)))")
    branch(axes, P, up=-0.26, text="epistemic: −log p(z)")


def branch(axes: Axes, place: Place, up: float, text: str) -> None:
    """What is read off a part on the way."""
    side, y = place.y + math.copysign(BOX / 2 + 0.02, up), place.y + up
    x = [place.x, place.x, LAST - 0.05]
    axes.plot(x, [side, y, y], color=DARK_BLUE, linewidth=0.8, linestyle=(0, (2, 1.5)))
    axes.text(LAST, y, text, va="center", fontsize=8, color=DARK_BLUE)


def legend(axes: Axes) -> None:
    """What the colours mean."""
    y = LEGEND / 2
    entries = ((1.0, "trained or fitted", TRAINED), (2.75, "frozen", FROZEN))
    for x, text, (face, edge) in entries:
        axes.add_patch(Rectangle((x - 0.2, y - 0.06), 0.2, 0.12, facecolor=face, edgecolor=edge))
        axes.text(x + 0.08, y, text, va="center", fontsize=8)
    circle(axes, Place(3.85, y, 0.08), "")
    axes.text(4.0, y, "no weights", va="center", fontsize=8)


def empty_axes(figure: Figure, top: float, height: float) -> Axes:
    """A panel in inches."""
    axes = add_axes(figure, 0, top, WIDTH, height)
    axes.set(xlim=(0, WIDTH), ylim=(0, height))
    axes.axis("off")
    return axes


def frame(axes: Axes, title: str, equation: str) -> None:
    """The panel's border and title."""
    border = FancyBboxPatch(
        (0.006, 0.02),
        0.988,
        0.96,
        boxstyle="round,pad=0,rounding_size=0.012",
        mutation_aspect=3,
        facecolor="white",
        edgecolor="#d5dade",
        linewidth=0.8,
        transform=axes.transAxes,
    )
    axes.add_patch(border)
    corner: Any = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "top"}
    axes.annotate(title, (0, 1), (9, -7), fontsize=9, weight="bold", **corner)
    axes.annotate(equation, (1, 1), (-9, -7), fontsize=8, color=GREY, ha="right", **corner)


def encoder(axes: Axes, look: tuple[str, str]) -> None:
    """From x to z."""
    axes.text(X.x, X.y, "x", fontsize=10, style="italic", ha="center", va="center")
    box(axes, F, "encoder  f", look)
    axes.text(Z.x, Z.y, "z", fontsize=10, style="italic", ha="center", va="center")
    arrow(axes, X, F)
    arrow(axes, F, Z)


def whole(axes: Axes, head_look: tuple[str, str]) -> None:
    """Everything from x to the softmax of the scaled logits."""
    encoder(axes, FROZEN)
    box(axes, G, "head  g", head_look)
    box(axes, P, "density  p", FROZEN)
    box(axes, S, "scale  s", FROZEN)
    circle(axes, TIMES, "×")
    circle(axes, SOFTMAX, "σ")
    for start, end in ((Z, G), (Z, P), (P, S), (G, TIMES), (TIMES, SOFTMAX)):
        arrow(axes, start, end)
    tip = (TIMES.x, TIMES.y - TIMES.half)
    axes.add_patch(_arrow((S.x, S.y + BOX / 2 + 0.02), tip))


def box(axes: Axes, place: Place, text: str, look: tuple[str, str]) -> None:
    """A part with weights or constants."""
    face, edge = look
    axes.add_patch(
        FancyBboxPatch(
            (place.x - place.half, place.y - BOX / 2),
            2 * place.half,
            BOX,
            boxstyle="round,pad=0.02,rounding_size=0.05",
            facecolor=face,
            edgecolor=edge,
            linewidth=0.9,
        )
    )
    axes.text(place.x, place.y, text, ha="center", va="center", fontsize=8)


def circle(axes: Axes, place: Place, text: str) -> None:
    """An operation without weights."""
    axes.add_patch(
        Circle((place.x, place.y), place.half, facecolor=BLUE, edgecolor=DARK_BLUE, linewidth=0.9)
    )
    axes.text(place.x, place.y, text, ha="center", va="center", fontsize=9)


def says(axes: Axes, place: Place, text: str, color: str = DARK_ORANGE) -> None:
    """What comes out on the right."""
    axes.add_patch(_arrow((place.x + place.half + 0.03, place.y), (LAST - 0.05, place.y)))
    axes.text(LAST, place.y, text, va="center", fontsize=8, color=color)


def arrow(axes: Axes, start: Place, end: Place) -> None:
    """From the right side of one thing to the left side of another."""
    axes.add_patch(_arrow((start.x + start.half + 0.03, start.y), (end.x - end.half - 0.03, end.y)))


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> FancyArrowPatch:
    return FancyArrowPatch(
        start,
        end,
        arrowstyle="-|>,head_length=3,head_width=1.6",
        color=INK,
        linewidth=0.8,
        shrinkA=0,
        shrinkB=0,
    )


if __name__ == "__main__":
    main()
