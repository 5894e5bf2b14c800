"""Reports: tables and figures from the results of runs, and a page that holds them all.

Names are imported when first used: pandas and matplotlib take a while, and `train` needs neither.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from density_softmax.errors import UserError

if TYPE_CHECKING:
    from density_softmax.report.figures.costs import cost_figure
    from density_softmax.report.figures.surfaces import MEASURES, surface_figure, surface_panel
    from density_softmax.report.page import (
        as_csv,
        as_html,
        as_latex,
        as_rich,
        as_text,
        results_text,
        run_summary,
        write_report,
    )
    from density_softmax.report.style import paper_style
    from density_softmax.report.tables import Table, build_tables

__all__ = [
    "MEASURES",
    "Table",
    "as_csv",
    "as_html",
    "as_latex",
    "as_rich",
    "as_text",
    "build_tables",
    "cost_figure",
    "paper_style",
    "results_text",
    "run_summary",
    "surface_figure",
    "surface_panel",
    "write_report",
]

_HOMES = {
    "figures.costs": ("cost_figure",),
    "figures.surfaces": ("MEASURES", "surface_figure", "surface_panel"),
    "style": ("paper_style",),
    "tables": ("Table", "build_tables"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Whoever will write a report learns what it needs before hours of training.
    if name == "write_report" and find_spec("pandas") is None:
        raise UserError("reports need pandas: pip install 'density-softmax[report]'")
    home = next((home for home, names in _HOMES.items() if name in names), "page")
    return getattr(import_module(f"{__name__}.{home}"), name)
