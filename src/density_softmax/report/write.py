"""From run directories to a folder with tables, figures and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table as RichTable

from density_softmax.errors import UserError
from density_softmax.files import write_text
from density_softmax.report.figures import write_figures
from density_softmax.report.page import render_page
from density_softmax.report.paper import paper_penalties, paper_results
from density_softmax.report.penalty_table import build_penalty_tables
from density_softmax.report.rendering import as_csv, as_latex, as_text
from density_softmax.report.runs import LeftOut, find_runs
from density_softmax.report.tables import Table, build_tables, fold
from density_softmax.runs.rows import write_rows
from density_softmax.types import Row

__all__ = ["results_text", "run_summary", "write_report"]

# As many figures as fit beside a method's name in a terminal of about 120 letters.
TERMINAL_COLUMNS = 8


def write_report(runs: Sequence[Path], out: Path, *, progress: bool = False) -> Path:
    """Report on the runs at or below the given paths; returns the page's path.

    Writes index.html, rows.csv, tables/ (`results.txt` with the figures to look at first, and
    each table as CSV, LaTeX and text) and figures/ (SVG, PDF and PNG).
    """
    if (out / "recipe.json").exists():
        raise UserError(
            f"{out}: is a run, whose files a report would replace; choose another --out"
        )
    found = find_runs(runs)
    rows = found.rows()
    tables = build_tables(rows, paper_results())
    tables += build_penalty_tables(found.finished, paper_penalties())
    write_rows(out / "rows.csv", rows)
    _write_tables(tables, found.left_out, out / "tables")
    figures = write_figures(found.finished, out / "figures", progress=progress)
    page = out / "index.html"
    write_text(page, render_page(found, tables, figures))
    return page


def results_text(out: Path) -> str:
    """The tables to look at first, of a report that was written to `out`."""
    return (out / "tables" / "results.txt").read_text(encoding="utf-8")


def run_summary(rows: Sequence[Row]) -> RichTable:
    """The rows of one run for a terminal; of shifted sets only the means."""
    table = RichTable("split", "metric", box=box.SIMPLE_HEAD)
    table.add_column("value", justify="right")
    shown = [row for row in rows if "/" not in row.split]
    for row, following in zip(shown, [*shown[1:], None], strict=True):
        last = following is None or following.split != row.split
        form = ",.0f" if row.value.is_integer() else ",.4g"
        table.add_row(row.split, row.metric, f"{row.value:{form}}", end_section=last)
    return table


def _write_tables(tables: Sequence[Table], left_out: Sequence[LeftOut], folder: Path) -> None:
    for table in tables:
        write_text(folder / f"{table.name}.csv", as_csv(table))
        write_text(folder / f"{table.name}.tex", as_latex(table))
        write_text(folder / f"{table.name}.txt", as_text(table))
    shown = [table for table in tables if table.role in ("results", "penalty")]
    parts = [part for table in shown for part in fold(table, TERMINAL_COLUMNS)]
    results = [as_text(part, narrow=True) for part in parts]
    missing = [f"not shown: {each.run.path}: {each.reason}\n" for each in left_out]
    write_text(folder / "results.txt", "\n".join([*results, *missing]))
