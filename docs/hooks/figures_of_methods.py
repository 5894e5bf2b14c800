"""`<!-- figures of the methods -->` becomes one table of what other places hold.

The measured columns come from the tables of docs/methods.md, the paper's from the figures that
the reports show: a number lives once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from density_softmax.methods import kinds_of
from density_softmax.methods.base import MethodConfig
from density_softmax.report.paper import paper_value

PLACE = "<!-- figures of the methods -->"
# The tables of the toy data, by their name in docs/drawing or by the first cell of their head.
TOYS = (("toy", "two moons"), ("toy-ovals", "two ovals"))
MARK = re.compile(r"<!-- table: (\S+) -->")
# Columns of the toy tables, and what they are called side by side.
MEASURED = {"confidence on the cluster": "confidence", "by epistemic": "AUROC"}

Table = dict[str, dict[str, str]]  # by the first cell of a row, then by column


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the table in its place."""
    if PLACE not in markdown:
        return markdown
    source = Path(config.docs_dir) / "methods.md"
    found = list(tables(source.read_text(encoding="utf-8")))
    try:
        lines = [row(found, MethodConfig.members[kind]) for kind in kinds_of("paper")]
    except LookupError as error:
        raise PluginError(f"{source}: {error.args[0]}, which {Path(__file__).name} reads") from None
    head = list(lines[0])
    body = [head, ["---"] * len(head), *([line[name] for name in head] for line in lines)]
    return markdown.replace(PLACE, "\n".join(f"| {' | '.join(cells)} |" for cells in body))


def row(found: list[tuple[str, Table]], config: type[MethodConfig]) -> dict[str, str]:
    """Everything about a method, by column."""
    name, key, cells = config.title, config.kind, {"method": f"`{config.kind}`"}
    for column, short in MEASURED.items():
        both = (next(iter(columns(found, name, column, toy).values())) for toy in TOYS)
        means = (value.partition(" ±")[0] for value in both)
        cells[f"{short}: moons / ovals"] = "&nbsp;/&nbsp;".join(means)
    cells |= columns(found, name, "latency")
    for metric, column, digits in (("cnll", "cNLL", 2), ("cece", "cECE", 3)):
        value = paper_value("cifar10", key, metric, "cifar10-c")
        cells[f"paper: {column}"] = "–" if value is None else f"{value:.{digits}f}"
    return cells


def columns(
    found: list[tuple[str, Table]], name: str, prefix: str, titles: tuple[str, ...] = ()
) -> dict[str, str]:
    """The columns that begin with `prefix`, from the first table that has them for a method."""
    for title, table in found:
        cells = table.get(name, {}) if not titles or title in titles else {}
        chosen = {column: cell for column, cell in cells.items() if column.startswith(prefix)}
        if chosen:
            return chosen
    raise LookupError(f"no table {' or '.join(titles)} has a column '{prefix}' for {name}")


def tables(markdown: str) -> Iterator[tuple[str, Table]]:
    """The tables of a page by the mark before them, or else by the first cell of their head."""
    for mark, (head, *rows) in groups(markdown):
        lines = {cells[0].strip("*"): dict(zip(head, cells, strict=True)) for cells in rows}
        yield mark or head[0], lines


def groups(markdown: str) -> Iterator[tuple[str, list[list[str]]]]:
    """Of each table the mark before it and its rows as cells, without the line below the head."""
    mark, rows = "", list[list[str]]()
    for line in [*markdown.splitlines(), ""]:
        if found := MARK.match(line):
            mark = found[1]
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            yield mark, [rows[0], *rows[2:]]
            mark, rows = "", []
