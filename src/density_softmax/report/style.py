"""How figures look: sizes for two-column papers, fonts, colours for every kind of vision."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from density_softmax.files import StorageError

__all__ = [
    "BLUE",
    "COLUMN",
    "DARK_BLUE",
    "DARK_ORANGE",
    "GREY",
    "INK",
    "LEVELS",
    "LOOKS",
    "ORANGE",
    "PAGE",
    "PROBABILITY",
    "RED",
    "UNCERTAINTY",
    "Look",
    "Picture",
    "add_axes",
    "new_figure",
    "paper_style",
    "save_figure",
]

# Widths in inches of a column and of the page in two-column papers.
COLUMN, PAGE = 3.3, 6.9

INK, GREY = "#1f2328", "#8a929a"
BLUE, ORANGE, RED = "#8ecdfa", "#ffb46b", "#ff3d8b"
DARK_BLUE, DARK_ORANGE = "#1f5f9e", "#c2560a"

# Blue to orange through a light grey: told apart by every kind of colour vision, and as light
# on the one side as on the other.
PROBABILITY = LinearSegmentedColormap.from_list(
    "blue_orange",
    ["#2c6ba8", "#669ecb", "#aecee5", "#f5f4f1", "#f4c89d", "#df924e", "#bb631d"],
)
# Without the glaring end of cividis.
UNCERTAINTY = LinearSegmentedColormap.from_list(
    "mild_cividis", matplotlib.colormaps["cividis"](np.linspace(0.0, 0.94, 64))
)

# Levels of a shift: from light to dark, which a grey print keeps.
LEVELS = LinearSegmentedColormap.from_list(
    "light_to_dark", ["#f2b880", "#dd8448", "#b5512c", "#7c2a25", "#3d1220"]
)

RC: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 6.5,
    "axes.titlesize": 6.5,
    "axes.labelsize": 6.5,
    "axes.linewidth": 0.5,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 6,
    "ytick.labelsize": 6,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2,
    "ytick.major.size": 2,
    "xtick.major.pad": 1.5,
    "ytick.major.pad": 1.5,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "lines.linewidth": 1.0,
    "hatch.linewidth": 0.4,
    "figure.dpi": 200,
    "savefig.dpi": 200,
    "svg.fonttype": "path",
    "svg.hashsalt": "density-softmax",
    "pdf.fonttype": 42,
}


# The page shows figures this many pixels wide: sharp on every screen, and still small as WebP.
PREVIEW = 1400


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


# The colours of Okabe and Ito, which every kind of colour vision tells apart, but for their
# yellow, which paper swallows.
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
class Picture:
    """A figure in a report.

    Attributes:
        file: without ending; there are .svg, .pdf and .png.
        title: what it shows.
        caption: how to read it.
        preview: WebP for the page.
        width: in inches.
    """

    file: Path
    title: str
    caption: str
    preview: bytes
    width: float


@contextmanager
def paper_style() -> Iterator[None]:
    """Figures made, and saved, inside look as this module says."""
    with matplotlib.rc_context(RC):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that size in inches, without any global state."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def add_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place given in inches from the upper left corner."""
    full_width, full_height = figure.get_size_inches()
    return figure.add_axes(
        (
            left / full_width,
            1 - (top + height) / full_height,
            width / full_width,
            height / full_height,
        )
    )


def save_figure(figure: Figure, file: Path, title: str, caption: str) -> Picture:
    """Write `file`.svg, .pdf and .png; the same figure gives the same bytes."""
    width = figure.get_size_inches()[0]
    _write(file, "svg", _draw(figure, "svg", metadata={"Date": None}))
    _write(file, "pdf", _draw(figure, "pdf", metadata={"CreationDate": None}))
    _write(file, "png", _draw(figure, "png"))
    preview = _draw(figure, "webp", dpi=PREVIEW / width, pil_kwargs={"quality": 75})
    return Picture(file, title, caption, preview, width)


def _draw(figure: Figure, ending: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format=ending, **options)
    return stream.getvalue()


def _write(file: Path, ending: str, content: bytes) -> None:
    place = file.with_name(f"{file.name}.{ending}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    except OSError as error:
        raise StorageError(
            f"{place}: cannot be written ({error}); free some space or choose another place"
        ) from None
