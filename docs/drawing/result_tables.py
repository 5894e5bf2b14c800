"""Writes the tables of README and documentation from the rows under docs/results.

    python docs/drawing/result_tables.py [--check]
    python docs/drawing/result_tables.py --keep NAME ROWS [--commit HASH]

A table stands in a page between `<!-- table: NAME -->` and `<!-- end of table -->`; `TABLES` in
table_layouts.py says which rows, lines and columns it has. --check changes nothing and fails where
a page is not what its rows say. --keep takes from the file ROWS, such as a report's rows.csv, what
the tables of docs/results/NAME.csv show, and replaces that file. --commit says at which commit the
runs were made, which docs/results/commits.csv keeps and the page says below the table; rows of the
same commit that ROWS lacks then stay, as the runs of a grid may be on several machines.

The rows of a grid of runs come from its report, which finds all runs below a folder:

    density-softmax report runs/digits --out report --against density_softmax
    python docs/drawing/result_tables.py --keep digits report/rows.csv --commit HASH
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import statistics
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from table_layouts import DETECTION, TABLES, Column, Line, Table, is_itself

from density_softmax.metrics import paired_t_test
from density_softmax.report.paper import paper_value
from density_softmax.runs.rows import read_rows, write_rows
from density_softmax.types import Row

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PLACE = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
MISSING = "–"


def main() -> None:
    """Write the tables, check them, or keep the rows that they show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--keep", nargs=2, metavar=("NAME", "ROWS"))
    parser.add_argument("--commit", help="at which the runs were made, with --keep")
    args = parser.parse_args()
    if args.keep:
        keep(args.keep[0], Path(args.keep[1]), args.commit)
    changed = [page for page in pages() if (text := page.read_text("utf-8")) != written(text)]
    for page in changed:
        print(f"{page.relative_to(ROOT)}: {'not what its rows say' if args.check else 'written'}")
        if not args.check:
            page.write_text(written(page.read_text("utf-8")), encoding="utf-8")
    sys.exit(1 if args.check and changed else 0)


def pages() -> list[Path]:
    """README and the pages of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def written(text: str) -> str:
    """A page with its tables as the rows say."""
    return PLACE.sub(lambda found: f"{found[1]}\n{markdown(TABLES[found[2]])}\n{found[4]}", text)


def markdown(table: Table) -> str:
    """A table in Markdown; where there are several seeds, mean ± standard deviation."""
    found = {line: rows_of(table, line) for line in table.lines}
    several = len({row.seed for rows in found.values() for row in rows}) > 1
    body = [
        [line.label, *seeds(rows, several), *(cell(line, rows, c) for c in table.columns)]
        for line, rows in found.items()
        if rows
    ]
    head = ["", *(["seeds"] if several else []), *(column.title for column in table.columns)]
    lines = [head, ["---", *("--:" for _ in head[1:])], *body]
    text = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    return f"{text}\n{origin(table)}\n"


def origin(table: Table) -> str:
    """A line below a table: where its rows come from, and what is missing."""
    missing = [
        line.label.strip("*")
        for line in table.lines
        if not rows_of(table, line) and not is_itself(table, line)
    ]
    text = f"`{table.command}`, commit {commits()[table.rows][:7]}."
    return f"*{text} Not run yet: {', '.join(missing)}.*" if missing else f"*{text}*"


def rows_of(table: Table, line: Line) -> list[Row]:
    """The kept rows of a line that its table shows."""
    return [row for row in kept(table.rows) if is_shown(row, table, line)]


def is_shown(row: Row, table: Table, line: Line) -> bool:
    """Whether a row is one of those that the numbers of a line are made of."""
    return (
        (row.recipe, row.method) == (table.recipe, line.method)
        and is_variant(table.variant_of(row), line.variant)
        and table.seed in (None, row.seed)
        and any(
            row.metric in parts(column) and fnmatchcase(row.split, column.split or line.split)
            for column in table.columns
            if not column.quoted
        )
    )


def is_variant(variant: str | None, wanted: str) -> bool:
    """Whether a variant is the wanted one, or begins as it does if it ends with a star."""
    if variant is None:
        return False
    return variant.startswith(wanted[:-1]) if wanted.endswith("*") else variant == wanted


def seeds(rows: Sequence[Row], several: bool) -> list[str]:
    """The number of seeds, in a table that has a column for it."""
    return [str(len({row.seed for row in rows}))] if several else []


def cell(line: Line, rows: Sequence[Row], column: Column) -> str:
    """One number of a table."""
    if column in DETECTION and not line.detects:
        return MISSING
    if column.quoted:
        quote = paper_value(column.quoted, line.method, column.metric, column.split)
        return MISSING if quote is None else column.form(quote)
    split = column.split or line.split
    found = values(rows, split, column.metric)
    if "*" in split and found:
        found = [column.over(found)]
    if not found or not all(map(math.isfinite, found)):
        return MISSING
    mean = column.form(statistics.fmean(found))
    if column.metric.startswith("difference:"):
        return with_interval(mean, rows, column) + ("†" if differ(found) else "")
    return f"{mean} ± {column.form(statistics.stdev(found))}" if found[1:] else mean


def with_interval(mean: str, rows: Sequence[Row], column: Column) -> str:
    """A difference and the bounds of its interval, means over seeds; bold if that excludes 0."""
    metric = column.metric.partition(":")[2]
    low, high = (
        statistics.fmean(values(rows, column.split, f"difference_{end}:{metric}"))
        for end in ("low", "high")
    )
    text = f"{mean} [{column.form(low)}, {column.form(high)}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def differ(found: Sequence[float]) -> bool:
    """Whether differences of at least three seeds are not 0, by a t-test at a level of 5 %."""
    return len(found) >= 3 and paired_t_test(found, [0.0] * len(found)) < 0.05


def values(rows: Sequence[Row], split: str, metric: str) -> list[float]:
    """The values of rows of a metric on a split, or on all splits of a pattern."""
    return [row.value for row in rows if row.metric == metric and fnmatchcase(row.split, split)]


@cache
def kept(name: str) -> list[Row]:
    """The rows of a file under docs/results."""
    return read_rows(RESULTS / f"{name}.csv")


def commits() -> dict[str, str]:
    """At which commit the runs behind each file under docs/results were made."""
    with (RESULTS / "commits.csv").open(encoding="utf-8", newline="") as file:
        return {line["rows"]: line["commit"] for line in csv.DictReader(file)}


def keep(name: str, rows: Path, commit: str | None) -> None:
    """Put the rows of a file that tables show into docs/results/NAME.csv.

    Lines of the same commit that the file lacks stay: the runs of a grid may be on many machines.
    """
    lines = [(t, line) for t in TABLES.values() if t.rows == name for line in t.lines]
    chosen = [row for row in read_rows(rows) if any(is_shown(row, *each) for each in lines)]
    if commit is not None and commits().get(name) == commit:
        chosen = merged(read_rows(RESULTS / f"{name}.csv"), chosen)
    write_rows(RESULTS / f"{name}.csv", chosen)
    if commit is not None:
        known = sorted({**commits(), name: commit}.items())
        text = "".join(f"{rows},{each}\n" for rows, each in [("rows", "commit"), *known])
        (RESULTS / "commits.csv").write_text(text, encoding="utf-8")


def merged(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Rows with those of the same runs replaced, in the order of lines and seeds."""
    replaced = {row[:4] for row in new}  # by recipe, method, variant and seed
    rows = [row for row in old if row[:4] not in replaced] + list(new)
    order = {line: number for number, line in enumerate(dict.fromkeys(row[:3] for row in rows))}
    return sorted(rows, key=lambda row: (order[row[:3]], row.seed))


def parts(column: Column) -> tuple[str, ...]:
    """The metrics of the rows that a column shows."""
    kind, _, metric = column.metric.partition(":")
    if kind != "difference":
        return (column.metric,)
    return tuple(f"difference{end}:{metric}" for end in ("", "_low", "_high"))


if __name__ == "__main__":
    main()
