"""`<!-- figures of the methods -->` becomes one table of what other places hold.

The measured columns come from the tables of docs/methods.md, the paper's from the figures that
the reports show: a number lives once.
"""

from __future__ import annotations

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
TOYS = ("two moons", "two ovals")
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
        both = (columns(found, name, column, toy)[column] for toy in TOYS)
        cells[f"{short}: moons / ovals"] = "&nbsp;/&nbsp;".join(both)
    cells |= columns(found, name, "latency")
    for metric, column, digits in (("cnll", "cNLL", 2), ("cece", "cECE", 3)):
        value = paper_value("cifar10", key, metric, "cifar10-c")
        cells[f"paper: {column}"] = "–" if value is None else f"{value:.{digits}f}"
    return cells


def columns(
    found: list[tuple[str, Table]], name: str, prefix: str, title: str | None = None
) -> dict[str, str]:
    """The columns that begin with `prefix`, from the first table that has them for a method."""
    for first, table in found:
        cells = table.get(name, {}) if title in (None, first) else {}
        chosen = {column: cell for column, cell in cells.items() if column.startswith(prefix)}
        if chosen:
            return chosen
    raise LookupError(f"no table '{title or 'of anything'}' has a column '{prefix}' for {name}")


def tables(markdown: str) -> Iterator[tuple[str, Table]]:
    """The tables of a page, with the first cell of their head."""
    for head, *rows in groups(markdown):
        yield head[0], {cells[0]: dict(zip(head, cells, strict=True)) for cells in rows}


def groups(markdown: str) -> Iterator[list[list[str]]]:
    """The rows of each table, split into cells, without the line below the head."""
    rows: list[list[str]] = []
    for line in [*markdown.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            yield [rows[0], *rows[2:]]
            rows = []
