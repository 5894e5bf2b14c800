"""One table, four renderings: terminal text, CSV, LaTeX and HTML."""

from __future__ import annotations

import csv
import html
import io

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from density_softmax.report.names import break_lines
from density_softmax.report.tables import HOW_TO_READ, Cell, Column, Line, Table

__all__ = ["as_csv", "as_html", "as_latex", "as_rich", "as_text"]

MISSING = "–"
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
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def as_rich(table: Table, *, narrow: bool = False) -> RichTable:
    """For a terminal; a narrow one gets deviations below their means.

    The best are starred as well as bold: a log file has no bold.
    """
    rich = RichTable(box=box.SIMPLE_HEAD, title_style="bold", caption_style="dim")
    rich.title = Text(table.title)
    rich.caption = Text(_caption(table).replace("Bold:", "Bold, *:"), justify="left")
    rich.add_column("Method", overflow="fold")
    rich.add_column("Seeds", overflow="fold", justify="right")
    gap = "\n" if narrow else " "
    for column in table.columns:
        note = break_lines(column.note, 11 if narrow else 32)
        rich.add_column(Text("\n".join([column.title, *note])), overflow="fold", justify="right")
    for line in table.lines:
        name = Text("\n".join(break_lines(line.name, 20 if narrow else 32)))
        cells = (_rich_cell(*each, gap) for each in zip(line.cells, table.columns, strict=True))
        rich.add_row(name, str(line.num_seeds), *cells)
    return rich


def as_text(table: Table, *, narrow: bool = False) -> str:
    """As in a terminal that is wide enough, but without styles."""
    stream = io.StringIO()
    Console(file=stream, width=10_000, color_system=None).print(as_rich(table, narrow=narrow))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def as_csv(table: Table) -> str:
    """All digits; the deviation of each column in a column of its own."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = [" ".join(filter(None, (column.title, column.note))) for column in table.columns]
    writer.writerow(["Method", "Seeds", *(part for n in names for part in (n, f"{n} std"))])
    for line in table.lines:
        cells = [part for cell in line.cells for part in _numbers(cell)]
        writer.writerow([line.name, line.num_seeds, *cells])
    return stream.getvalue()


def as_latex(table: Table) -> str:
    """A booktabs `tabular` for LaTeX's input command."""
    titles = ["Method", "Seeds", *(_latex(column.title) for column in table.columns)]
    notes = ["", "", *(_latex(column.note) for column in table.columns)]
    return "\n".join(
        [
            f"% {table.title}",
            f"% {_caption(table)}",
            "% Needs \\usepackage{booktabs}.",
            f"\\begin{{tabular}}{{lr{'r' * len(table.columns)}}}",
            "\\toprule",
            *([_latex_row(titles), _latex_row(notes)] if any(notes) else [_latex_row(titles)]),
            "\\midrule",
            *(_latex_line(line, table) for line in table.lines),
            "\\bottomrule",
            "\\end{tabular}",
            "",
        ]
    )


def as_html(table: Table) -> str:
    """A table that the page's script sorts by any column."""
    heads = [_html_head("Method"), _html_head("Seeds")]
    heads += [_html_head(column.title, column.note) for column in table.columns]
    lines = "\n".join(_html_line(line, table) for line in table.lines)
    return (
        '<div class="scroll">\n<table class="sortable">\n'
        f"<caption><div><b>{_title(table)}</b> {html.escape(table.remark)}</div></caption>\n"
        f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table>\n</div>"
    )


def _caption(table: Table) -> str:
    return f"{HOW_TO_READ} {table.remark}".strip()


def _figure(cell: Cell, column: Column) -> tuple[str, str]:
    """Mean and deviation as people read them."""
    form = f",.{column.decimals}f"
    if column.better != "higher" and 0 < abs(cell.mean) < 0.5 * 10**-column.decimals:
        form = ".1e"  # far smaller than the others of its column, but not 0
    return f"{cell.mean:{form}}", "" if cell.std is None else f"{cell.std:{form}}"


def _rich_cell(cell: Cell | None, column: Column, gap: str) -> Text:
    if cell is None:
        return Text(MISSING)
    mean, std = _figure(cell, column)
    mean = f"*{mean}" if cell.best else mean
    return Text(f"{mean}{gap}±{std}" if std else mean, style="bold" if cell.best else "")


def _numbers(cell: Cell | None) -> tuple[str, str]:
    if cell is None:
        return "", ""
    return repr(cell.mean), "" if cell.std is None else repr(cell.std)


def _latex(words: str) -> str:
    return "".join(LATEX.get(sign, sign) for sign in words)


def _latex_row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_line(line: Line, table: Table) -> str:
    cells = zip(line.cells, table.columns, strict=True)
    return _latex_row([_latex(line.name), str(line.num_seeds), *(_latex_cell(*c) for c in cells)])


def _latex_cell(cell: Cell | None, column: Column) -> str:
    if cell is None:
        return "--"
    mean, std = (figure.replace(",", "{,}") for figure in _figure(cell, column))
    mean = f"\\mathbf{{{mean}}}" if cell.best else mean
    return f"${mean} \\pm {std}$" if std else f"${mean}$"


def _title(table: Table) -> str:
    return html.escape(table.title[:1].upper() + table.title[1:]) + "."


def _html_head(title: str, note: str = "") -> str:
    small = f"<small>{html.escape(note)}</small>" if note else ""
    button = f'<button type="button">{html.escape(title)}{small}</button>'
    return f'<th scope="col" aria-sort="none">{button}</th>'


def _html_line(line: Line, table: Table) -> str:
    cells = "".join(
        _html_cell(cell, column) for cell, column in zip(line.cells, table.columns, strict=True)
    )
    head = f'<th scope="row">{html.escape(line.name)}</th>'
    return f'<tr>{head}<td data-value="{line.num_seeds}">{line.num_seeds}</td>{cells}</tr>'


def _html_cell(cell: Cell | None, column: Column) -> str:
    if cell is None:
        return f"<td>{MISSING}</td>"
    mean, std = _figure(cell, column)
    mean = f"<strong>{mean}</strong>" if cell.best else mean
    std = f' <span class="std">± {std}</span>' if std else ""
    kind = ' class="quoted"' if column.quoted else ""
    return f'<td{kind} data-value="{cell.mean!r}">{mean}{std}</td>'
