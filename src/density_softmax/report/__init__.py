"""Reports: tables and figures from the results of runs, and a page that holds them all.

Names are imported when first used: pandas and matplotlib take a while, and `train` needs neither.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from density_softmax.errors import UserError
from density_softmax.lazy import lazy_names

if TYPE_CHECKING:
    from density_softmax.report.comparison import Comparison as Comparison
    from density_softmax.report.figures.costs import cost_figure as cost_figure
    from density_softmax.report.figures.surfaces import MEASURES as MEASURES
    from density_softmax.report.figures.surfaces import surface_figure as surface_figure
    from density_softmax.report.figures.surfaces import surface_panel as surface_panel
    from density_softmax.report.page import as_csv as as_csv
    from density_softmax.report.page import as_html as as_html
    from density_softmax.report.page import as_latex as as_latex
    from density_softmax.report.page import as_rich as as_rich
    from density_softmax.report.page import as_text as as_text
    from density_softmax.report.page import results_text as results_text
    from density_softmax.report.page import run_summary as run_summary
    from density_softmax.report.page import write_report as write_report
    from density_softmax.report.style import paper_style as paper_style
    from density_softmax.report.tables import Table as Table
    from density_softmax.report.tables import build_tables as build_tables

_, _find = lazy_names(__name__, __file__)


def __getattr__(name: str) -> Any:
    # Said before hours of training, not after them.
    if name == "write_report" and find_spec("pandas") is None:
        raise UserError("reports need pandas: pip install 'density-softmax[report]'")
    return _find(name)
