"""How figures look: sizes for a two-column page, fonts, colours that the colour-blind tell apart."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from density_softmax.storage import StorageError

__all__ = [
    "BLUE",
    "COLUMN",
    "INK",
    "ORANGE",
    "PAGE",
    "PROBABILITY",
    "RED",
    "UNCERTAINTY",
    "Picture",
    "add_axes",
    "new_figure",
    "paper_style",
    "save_figure",
]

# Widths in inches of a column and of the page in two-column papers.
COLUMN, PAGE = 3.3, 6.9

INK = "#1f2328"
BLUE, ORANGE, RED = "#8ecdfa", "#ffb46b", "#ff3d8b"

# Blue to orange through a light grey: told apart by every kind of colour vision, and as light
# on the one side as on the other.
PROBABILITY = LinearSegmentedColormap.from_list(
    "blue_orange",
    ["#27659f", "#639bc8", "#accce3", "#f5f4f1", "#f3c79d", "#dd914f", "#b55f1d"],
)
# Without the glaring end of cividis.
UNCERTAINTY = LinearSegmentedColormap.from_list(
    "mild_cividis", matplotlib.colormaps["cividis"](np.linspace(0.0, 0.94, 64))
)

RC = {
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
    "figure.dpi": 200,
    "savefig.dpi": 200,
    "svg.fonttype": "path",
    "svg.hashsalt": "density-softmax",
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class Picture:
    """A figure on disk: `file` without ending, as .svg, .pdf and .png."""

    file: Path
    title: str
    caption: str


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


def save_figure(figure: Figure, file: Path) -> None:
    """Write `file`.svg, .pdf and .png; the same figure gives the same bytes."""
    metadata: dict[str, dict[str, str | None]] = {
        "svg": {"Date": None},
        "pdf": {"CreationDate": None},
        "png": {},
    }
    for ending, entries in metadata.items():
        stream = io.BytesIO()
        figure.savefig(stream, format=ending, metadata=entries)
        place = file.with_name(f"{file.name}.{ending}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(stream.getvalue())
        except OSError as error:
            raise StorageError(
                f"{place}: cannot be written ({error}); free some space or choose another place"
            ) from None
