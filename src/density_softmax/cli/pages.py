"""Pages in one file that commands write, without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from density_softmax.decide.explain import column_effects, meaning_of
from density_softmax.errors import UserError
from density_softmax.files import write_text
from density_softmax.serve.gallery import Entry, Gallery, shares
from density_softmax.serve.stream import Served

# Of the experts: told apart by most colour-blind people, on light and dark paper.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")

# Tables with more columns are shown without their effects, which cost some passes for each.
MOST_COLUMNS = 100


def render(template: str, **values: Any) -> str:
    """A template of `report` with its values.

    Args:
        template: its name.
        values: what it shows; text is escaped.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("density_softmax.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)


def write_gallery(gallery: Gallery, model: Served, source: Path, page: Path) -> None:
    """A page of the most and the least typical inputs.

    Args:
        gallery: what was collected.
        model: the model, which tells what the columns of a table add.
        source: where the inputs are, for the heading.
        page: the file to write.
    """
    found = [gallery.least_typical, gallery.most_typical]
    effects = [_effects(gallery, model, entries) for entries in found]
    sections = [
        ("Least typical", "The inputs that are most unlike the training data, strangest first."),
        ("Most typical", "The inputs that are most like the training data."),
    ]
    shown = [
        (*texts, [_shown(gallery, *pair) for pair in zip(entries, own, strict=True)])
        for texts, entries, own in zip(sections, found, effects, strict=True)
    ]
    text = render(
        "gallery.html.j2",
        title=f"The most and the least typical of {source.name or source}",
        about=_about(gallery, bool(effects[0] and effects[0][0])),
        experts=[(name, meaning_of(name)) for name in model.card.experts],
        colours=COLOURS,
        columns=list(gallery.columns()),
        sections=shown,
    )
    write_text(page, text)


def _effects(gallery: Gallery, model: Served, entries: Sequence[Entry]) -> list[list[float]]:
    """What each column of a table adds to the most typical row's uncertainty; else nothing."""
    nothing: list[list[float]] = [[] for _ in entries]
    shape = gallery.card.input_shape
    if len(shape) != 1 or shape[0] > MOST_COLUMNS or not entries:
        return nothing
    x, typical = np.stack([entry.x for entry in entries]), gallery.most_typical[0].x
    with np.errstate(invalid="ignore"):  # of rows too far away to compute with
        effects = column_effects(lambda x: model.predict(x).epistemic, x, typical)
    found: list[list[float]] = effects.tolist()
    return found


def _about(gallery: Gallery, effects: bool) -> str:
    bad = f", {gallery.num_bad:,} of them unreadable and left out" if gallery.num_bad else ""
    told = (
        " A cell is red if its column makes the row stranger than the most typical row here, and "
        "blue if less strange; point at it for the number. These numbers and the uncertainty of "
        "the most typical row add up to the row's uncertainty."
        if effects
        else ""
    )
    flagged = " Those in red are above the threshold." if gallery.card.thresholds else ""
    return (
        f"{gallery.num_inputs:,} inputs{bad}. Uncertainty here is epistemic: how unlike the "
        f"training data an input is. It has no unit.{flagged}{told}"
    )


def _shown(gallery: Gallery, entry: Entry, effects: Sequence[float]) -> dict[str, Any]:
    """What the template shows of an input."""
    record, experts = entry.record, gallery.card.experts
    told = zip(experts, entry.contributions, strict=True)
    return {
        "name": record.input,
        "label": record.label,
        "confidence": f"{record.confidence:.0%}",
        "epistemic": f"{record.epistemic:.4g}",
        "out": record.flag == "out",
        "image": gallery.thumbnail(entry),
        "told": ", ".join(f"{name} {value:.3g}" for name, value in told),
        "widths": [f"{share:.1f}%" for share in shares(entry.contributions)],
        "cells": _cells(gallery, entry, effects) if gallery.columns() else [],
    }


def _cells(gallery: Gallery, entry: Entry, effects: Sequence[float]) -> list[tuple[str, str, str]]:
    """Of each column: the value, what it adds, and a colour for that."""
    values = [f"{value:.4g}" for value in gallery.values(entry)]
    if not effects:
        return [(value, "", "") for value in values]
    largest = max((abs(e) for e in effects if math.isfinite(e)), default=0.0) or 1.0
    return [
        (value, f"{effect:+.3g}", _tint(effect / largest))
        for value, effect in zip(values, effects, strict=True)
    ]


def _tint(share: float) -> str:
    """Red or blue over any paper, stronger for larger shares; none for small ones."""
    if not abs(share) >= 0.05:
        return ""
    colour = "238, 102, 119" if share > 0 else "68, 119, 170"
    return f"rgba({colour}, {0.6 * min(abs(share), 1.0):.2f})"


def check_page(page: Path | None, inputs: Sequence[Path]) -> None:
    """Refuse a name for a page that would do harm, before anything is predicted.

    Args:
        page: the file to write.
        inputs: what is read or written besides.
    """
    if page is None:
        return
    if page.suffix not in (".html", ".htm"):
        raise UserError(f"--page {page}: choose a name that ends in .html")
    if page.is_dir() or any(page.exists() and p.exists() and page.samefile(p) for p in inputs):
        raise UserError(f"--page {page}: is a folder or the input; choose another name")
