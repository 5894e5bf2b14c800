"""Reports: tables and figures from rows and predictions, and a page that holds them all."""

from density_softmax.report.costs import cost_figure
from density_softmax.report.rendering import as_csv, as_html, as_latex, as_rich, as_text
from density_softmax.report.style import paper_style
from density_softmax.report.surface_figure import surface_figure
from density_softmax.report.surfaces import MEASURES, surface_panel
from density_softmax.report.tables import Table, build_tables
from density_softmax.report.write import results_text, run_summary, write_report

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
