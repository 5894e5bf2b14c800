"""Reports: tables and figures from rows and predictions, and a page that holds them all."""

from density_softmax.report.rendering import as_csv, as_html, as_latex, as_rich, as_text
from density_softmax.report.tables import Table, build_tables
from density_softmax.report.write import results_text, run_summary, write_report

__all__ = [
    "Table",
    "as_csv",
    "as_html",
    "as_latex",
    "as_rich",
    "as_text",
    "build_tables",
    "results_text",
    "run_summary",
    "write_report",
]
