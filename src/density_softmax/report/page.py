"""A report as files: tables as text, CSV, LaTeX and HTML, and one page that holds everything."""

from __future__ import annotations

import base64
import io
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from density_softmax.config import to_dict
from density_softmax.errors import UserError
from density_softmax.files import write_text
from density_softmax.files.tables import csv_writer
from density_softmax.report.columns import Cell, Column, cell_texts
from density_softmax.report.differences import build_difference_tables, difference_rows
from density_softmax.report.frame import frame_of, line_of, settings_of
from density_softmax.report.names import (
    break_lines,
    distinct_stem,
    heading,
    method_name,
    readable,
    set_name,
)
from density_softmax.report.paper import paper_penalties, paper_results
from density_softmax.report.requirements import build_requirement_tables
from density_softmax.report.selection import LeftOut, Runs, sort_runs
from density_softmax.report.tables import Table, build_penalty_tables, build_tables, fold
from density_softmax.report.verdict import verdict_of
from density_softmax.runs.rows import write_rows
from density_softmax.runs.run import Run, find_runs
from density_softmax.types import Row

if TYPE_CHECKING:
    from density_softmax.report.figures import Picture

# As many columns as fit beside a method's name in a terminal of about 120 letters.
TERMINAL_COLUMNS = 8
# Figures are shown larger than printed, in CSS pixels per inch.
PIXELS_PER_INCH = 165
MISSING = "–"
# The figures that a page opens with, by the ends of their file names, the first that there is.
LEADS = ("-variance", "-severity", "-iid", "-risk-coverage")
# Figures of one kind that a section shows one after another; further ones are folded.
MOST_ALIKE = 2
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "−": "$-$",
    "λ": r"$\lambda$",
    "→": r"$\to$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "[": "{[}",  # behind the end of a line it would begin a length
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}
# The last sign that every LaTeX reads as UTF-8 text; others are written as their numbers.
LAST_SIGN = "\u00ff"


def write_report(
    runs: Sequence[Path], out: Path, *, against: str | None = None, progress: bool = False
) -> Path:
    """Report on the runs at or below the given paths; returns the page's path.

    Writes index.html, rows.csv, tables/ (`results.txt` with the numbers to look at first, and
    each table as CSV, LaTeX and text) and figures/ (SVG, PDF and PNG).

    Args:
        runs: run directories, or folders that hold some.
        out: a folder, which may hold an older report.
        against: the registry key of a method; differences of all others from it, with intervals
            over the images of the test sets, become rows and a table.
        progress: whether to show a bar while figures are drawn.
    """
    from density_softmax.report.figures import write_figures

    if (out / "recipe.json").exists():
        raise UserError(
            f"{out}: is a run, whose files a report would replace; choose another --out"
        )
    found = sort_runs(find_runs(runs))
    settings = settings_of(found.finished)
    paper = paper_results()
    quotes = {each.name: paper[each.recipe] for each in settings if each.recipe in paper}
    tables = build_tables(frame_of(found.finished), quotes)
    tables += build_penalty_tables(found.finished, paper_penalties())
    tables += build_requirement_tables(found.finished)
    rows = [row for run in found.finished for row in run.rows()]
    if against is not None:
        differences = difference_rows(found.finished, against)
        tables += build_difference_tables(settings, differences, against)
        rows += differences
    write_rows(out / "rows.csv", rows)
    _write_tables(tables, found.left_out, out / "tables")
    figures = write_figures(found.finished, out / "figures", progress=progress)
    page = out / "index.html"
    write_text(page, render_page(found, tables, figures))
    return page


def results_text(out: Path) -> str:
    """The tables to look at first, of a report that was written.

    Args:
        out: its folder.
    """
    return (out / "tables" / "results.txt").read_text(encoding="utf-8")


def run_summary(rows: Sequence[Row]) -> RichTable:
    """The rows of one run for a terminal; of shifted sets only the means.

    Args:
        rows: of one run.
    """
    table = RichTable("split", "metric", box=box.SIMPLE_HEAD)
    table.add_column("value", justify="right")
    shown = [row for row in rows if "/" not in row.split]
    for row, following in zip(shown, [*shown[1:], None], strict=True):
        last = following is None or following.split != row.split
        value = f"{row.value:{',.0f' if row.value.is_integer() else ',.4g'}}"
        names = Text(set_name(row.split)), Text(readable(row.metric))
        table.add_row(*names, value, end_section=last)
    return table


def as_rich(table: Table, *, narrow: bool = False) -> RichTable:
    """For a terminal. The best are starred as well as bold: a log file has no bold.

    Args:
        table: the results.
        narrow: whether deviations stand below their means.
    """
    rich = RichTable(box=box.SIMPLE_HEAD, title_style="bold", caption_style="dim")
    rich.title = Text(table.title)
    rich.caption = Text(table.caption.replace("Bold:", "Bold, *:"), justify="left")
    rich.add_column("Method", overflow="fold")
    rich.add_column("Seeds", overflow="fold", justify="right")
    for column in table.columns:
        note = break_lines(column.note, 11 if narrow else 32)
        rich.add_column(Text("\n".join([column.title, *note])), overflow="fold", justify="right")
    for line in table.lines:
        name = Text("\n".join(break_lines(line.name, 20 if narrow else 32)))
        cells = zip(line.cells, table.columns, strict=True)
        shown = (_rich_cell(cell, column, "\n" if narrow else " ") for cell, column in cells)
        rich.add_row(name, str(line.num_seeds), *shown)
    return rich


def as_text(table: Table, *, narrow: bool = False) -> str:
    """As in a terminal that is wide enough, but without styles.

    Args:
        table: the results.
        narrow: whether deviations stand below their means.
    """
    stream = io.StringIO()
    Console(file=stream, width=10_000, color_system=None).print(as_rich(table, narrow=narrow))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def as_csv(table: Table) -> str:
    """All digits; the deviation of each column in a column of its own.

    Args:
        table: the results.
    """
    stream = io.StringIO()
    write = csv_writer(stream)
    names = [" ".join(filter(None, (column.title, column.note))) for column in table.columns]
    write([["Method", "Seeds", *(part for n in names for part in (n, f"{n} std"))]])
    for line in table.lines:
        cells = zip(line.cells, table.columns, strict=True)
        values = (value for cell, column in cells for value in _csv_cell(cell, column))
        write([[line.name, line.num_seeds, *values]])
    return stream.getvalue()


def as_latex(table: Table) -> str:
    """A booktabs `tabular` for LaTeX's input command.

    Args:
        table: the results.
    """
    heads = [["Method", "Seeds", *(_latex(column.title) for column in table.columns)]]
    if any(column.note for column in table.columns):
        heads.append(["", "", *(_latex(column.note) for column in table.columns)])
    body = [
        [_latex(line.name), str(line.num_seeds), *map(_latex_cell, line.cells, table.columns)]
        for line in table.lines
    ]
    head, lines = ([" & ".join(row) + r" \\" for row in rows] for rows in (heads, body))
    comments = f"% {table.title}\n% {table.caption}\n% Needs \\usepackage{{booktabs}}."
    begin = f"\\begin{{tabular}}{{lr{'r' * len(table.columns)}}}\n\\toprule"
    end = "\\bottomrule\n\\end{tabular}\n"
    return "\n".join([comments, begin, *head, "\\midrule", *lines, end])


def as_html(table: Table) -> str:
    """A table that the page's script sorts by any column.

    Args:
        table: the results.
    """
    return render("table.html.j2", table=table)


def render_page(
    runs: Runs, tables: Sequence[Table], figures: Mapping[str, Sequence[Picture]]
) -> str:
    """The whole page as HTML: the verdict, a picture, the results, and the rest folded.

    Args:
        runs: those reported on, and those left out.
        tables: in their order.
        figures: by the title of their section.
    """
    finished = runs.finished
    lead = lead_picture(figures)
    shown = {name: [p for p in pictures if p is not lead] for name, pictures in figures.items()}
    return render(
        "page.html.j2",
        verdicts=[verdict_of(table) for table in tables if table.role == "results"],
        lead=lead,
        num_runs=len(finished),
        num_seeds=len({run.seed for run in finished}),
        methods=list(dict.fromkeys(method_name(run.kind) for run in finished)),
        recipes=list(dict.fromkeys(set_name(run.recipe.name) for run in finished)),
        left_out=[each.text for each in runs.left_out],
        results=[table for table in tables if table.role == "results"],
        tables=[table for table in tables if table.role not in ("results", "each shift")],
        shifts=[table for table in tables if table.role == "each shift"],
        figures={name: series_of(pictures) for name, pictures in shown.items() if pictures},
        commands=[shlex.join(run.command()) for run in finished],
        environments=_environments(finished),
        settings=_recipes(finished),
    )


def lead_picture(figures: Mapping[str, Sequence[Picture]]) -> Picture | None:
    """The figure that a page opens with: what says most about the runs.

    Args:
        figures: by the title of their section.
    """
    pictures = [picture for each in figures.values() for picture in each]
    for ending in LEADS:
        for picture in pictures:
            if picture.file.name.endswith(ending):
                return picture
    return pictures[0] if pictures else None


def series_of(pictures: Sequence[Picture]) -> list[tuple[list[Picture], list[Picture]]]:
    """The pictures by what drew them: those to show, and further ones of the same kind.

    Args:
        pictures: of one section, in their order.
    """
    kinds = dict.fromkeys(picture.kind for picture in pictures)
    series = [[picture for picture in pictures if picture.kind == kind] for kind in kinds]
    return [(each[:MOST_ALIKE], each[MOST_ALIKE:]) for each in series]


def _write_tables(tables: Sequence[Table], left_out: Sequence[LeftOut], folder: Path) -> None:
    taken = {"results"}  # by the text with all that is to be looked at first
    for table in tables:
        stem = distinct_stem(table.name, taken)
        for ending, render in (("csv", as_csv), ("tex", as_latex), ("txt", as_text)):
            write_text(folder / f"{stem}.{ending}", render(table))
    shown = [table for table in tables if table.role in ("results", "penalty", "differences")]
    pieces = [piece for table in shown for piece in fold(table, TERMINAL_COLUMNS)]
    results = [as_text(piece, narrow=True) for piece in pieces]
    missing = [f"not shown: {each.text}\n" for each in left_out]
    write_text(folder / "results.txt", "\n".join([*results, *missing]))


def render(name: str, **values: Any) -> str:
    """A template of this folder with its values.

    Args:
        name: of the template.
        values: by the names that it uses.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__name__.rpartition(".")[0], "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "texts": cell_texts,
        "heading": heading,
        "pixels_per_inch": PIXELS_PER_INCH,
        "base64": lambda content: base64.b64encode(content).decode("ascii"),
    }
    return environment.get_template(name).render(values).strip() + "\n"


def _csv_cell(cell: Cell | None, column: Column) -> tuple[str, str]:
    if cell is None:
        return "", ""
    if column.decimals is None:
        return cell_texts(cell, column)
    return repr(cell.mean), "" if cell.std is None else repr(cell.std)


def _rich_cell(cell: Cell | None, column: Column, gap: str) -> Text:
    if cell is None:
        return Text(MISSING)
    mean, std = cell_texts(cell, column)
    mean = f"*{mean}" if cell.best else mean
    return Text(f"{mean}{gap}±{std}" if std else mean, style="bold" if cell.best else "")


def _latex(words: str) -> str:
    known = (LATEX.get(s, s if s <= LAST_SIGN else f"{{[}}U+{ord(s):04X}]") for s in words)
    return "".join(known)


def _latex_cell(cell: Cell | None, column: Column) -> str:
    if cell is None:
        return "--"
    mean, std = (text.replace(",", "{,}") for text in cell_texts(cell, column))
    if column.decimals is None:
        return mean
    mean = mean.replace("~", "{\\sim}")
    mean = f"\\mathbf{{{mean}}}" if cell.best else mean
    return f"${mean} \\pm {std}$" if std else f"${mean}$"


def _environments(runs: Sequence[Run]) -> list[list[tuple[str, str]]]:
    """Every environment once, with the number of its runs, as pairs of name and value."""
    found: dict[str, int] = {}
    for run in runs:
        text = json.dumps(run.environment())
        found[text] = found.get(text, 0) + 1
    return [[("runs", str(number)), *_flat(json.loads(text))] for text, number in found.items()]


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        elif isinstance(value, list):
            yield name, ", ".join(map(str, value)) or "none"
        else:
            yield name, str(value)


def _recipes(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Every recipe once, as a line that says whose it is, and as JSON."""
    found: dict[str, tuple[str, list[str]]] = {}
    for setting in settings_of(runs):
        for run in setting.runs:
            text = json.dumps(to_dict(run.recipe), indent=2)
            head = f"{setting.name}: {line_of(run).label}; seeds "
            found.setdefault(text, (head, []))[1].append(str(run.seed))
    return [(head + ", ".join(seeds), text) for text, (head, seeds) in found.items()]
