"""Every figure of a report, a module each, whose `draw` yields what there is data for."""

from __future__ import annotations

import io
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from density_softmax.engine.progress import Bars
from density_softmax.files import write_bytes
from density_softmax.report.frame import settings_of
from density_softmax.report.names import distinct_stem
from density_softmax.report.style import paper_style
from density_softmax.runs.run import Run

# Sections of the page, and the modules here that draw what they show. Each has a function
# `draw(setting: Setting) -> Iterator[Drawing]`.
SECTIONS = {
    "Surfaces": ("surfaces",),
    "Calibration": ("reliability",),
    "Shift": ("corruptions", "shifts"),
    "Uncertainty": ("entropies", "likelihoods"),
    "Selective prediction": ("coverage",),
    "Seeds": ("seeds",),
    "Cost": ("costs",),
    "Feature maps": ("feature_maps",),
    "Training curves": ("curves",),
}
# The page shows figures this many pixels wide: sharp on every screen, and still small as WebP.
PREVIEW = 1400


class Drawing(NamedTuple):
    """A figure before it is saved: its file name without ending, what it shows, how to read it."""

    figure: Figure
    stem: str
    title: str
    caption: str


class Picture(NamedTuple):
    """A saved figure.

    Attributes:
        file: its path without ending.
        title: what it shows.
        caption: how to read it.
        preview: a WebP for the page.
        width: in inches.
        kind: the module that drew it; figures of one kind look alike.
    """

    file: Path
    title: str
    caption: str
    preview: bytes
    width: float
    kind: str = ""


def write_figures(
    runs: Iterable[Run], folder: Path, *, progress: bool = False
) -> dict[str, list[Picture]]:
    """Draw everything, in one style; returns the pictures by section, none of them empty.

    Args:
        runs: in the order of their lines.
        folder: where the files go.
        progress: whether to show a bar.
    """
    settings, found, taken = settings_of(runs), dict[str, list[Picture]](), set[str]()
    with Bars(progress) as bars, paper_style():
        bar = bars.add("figures", sum(map(len, SECTIONS.values())))
        for section, names in SECTIONS.items():
            bar.note(section.lower())
            for name in names:
                module = import_module(f"{__name__}.{name}")
                for drawing in (drawing for each in settings for drawing in module.draw(each)):
                    stem = distinct_stem(drawing.stem, taken)
                    picture = save_figure(drawing._replace(stem=stem), folder)
                    found.setdefault(section, []).append(picture._replace(kind=name))
                bar.advance()
        bar.note("")
    return found


def save_figure(drawing: Drawing, folder: Path) -> Picture:
    """Write a figure as .svg, .pdf and .png; the same figure gives the same bytes.

    Args:
        drawing: what to write.
        folder: where the files go.
    """
    figure, file = drawing.figure, folder / drawing.stem
    width = figure.get_size_inches()[0]
    for ending, metadata in (("svg", {"Date": None}), ("pdf", {"CreationDate": None}), ("png", {})):
        content = _draw(figure, ending, metadata=metadata)
        write_bytes(file.with_name(f"{file.name}.{ending}"), content)
    preview = _draw(figure, "webp", dpi=PREVIEW / width, pil_kwargs={"quality": 75})
    return Picture(file, drawing.title, drawing.caption, preview, width)


def _draw(figure: Figure, ending: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format=ending, **options)
    return stream.getvalue()
