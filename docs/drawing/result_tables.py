"""Writes the tables of README and documentation from the rows under docs/results.

    python docs/drawing/result_tables.py [--check]
    python docs/drawing/result_tables.py --keep NAME ROWS

A table stands in a page between `<!-- table: NAME -->` and `<!-- end of table -->`; `TABLES` says
which rows, lines and columns it has. --check changes nothing and fails where a page is not what
its rows say. --keep takes from the file ROWS, such as a report's rows.csv, what the tables of
docs/results/NAME.csv show, and replaces that file.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from density_softmax.methods import MethodConfig, kinds_of
from density_softmax.runs.rows import read_rows, write_rows
from density_softmax.types import Row

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PLACE = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
MISSING = "–"

Format = Callable[[float], str]


class Line(NamedTuple):
    """A line of a table: the rows of a method whose variant begins with some words.

    Attributes:
        label: what the page calls it.
        method: the registry key.
        variant: how its variant begins; `default` and `layers=[]` are whole variants.
        detects: whether it has a score of its own; another's is not shown twice.
    """

    label: str
    method: str
    variant: str = "default"
    detects: bool = True


class Column(NamedTuple):
    """A column of a table: a metric on a split, and how its numbers are printed."""

    title: str
    split: str
    metric: str
    form: Format


class Table(NamedTuple):
    """A table of a page.

    Attributes:
        rows: the name of a file under docs/results, without ending.
        recipe: of its rows.
        lines: in their order; those without rows are left out.
        columns: in their order.
    """

    rows: str
    recipe: str
    lines: Sequence[Line]
    columns: Sequence[Column]


def three(value: float) -> str:
    """Three decimals."""
    return f"{value:.3f}"


def share(value: float) -> str:
    """Per cent, with a typographic minus."""
    return f"{round(100 * value):d} %".replace("-", "−")


def kilobytes(value: float) -> str:
    """Thousands of bytes."""
    return "<1" if value < 1000 else f"{value / 1000:,.0f}"


def title(kind: str) -> str:
    """What tables call a method; § marks one that keeps training data."""
    config = MethodConfig.members[kind]
    return f"{config.title} §" if config.stores_data else config.title


CALIBRATION = (
    Column("NLL ↓", "iid", "nll", three),
    Column("ECE ↓", "iid", "ece", three),
    Column("cNLL ↓", "cifar10-c", "cnll", three),
    Column("cECE ↓", "cifar10-c", "cece", three),
)
DETECTION = (
    Column("AUROC CIFAR-100 ↑", "cifar100", "auroc:epistemic", three),
    Column("AUROC SVHN ↑", "svhn", "auroc:epistemic", three),
)
SCOPE = "out of scope"
QUERIES = (
    CALIBRATION[0],
    CALIBRATION[1],
    Column("AUROC ↑", SCOPE, "auroc:epistemic", three),
    Column("AUPR ↑", SCOPE, "aupr:epistemic", three),
    Column("FPR95 ↓", SCOPE, "fpr95:epistemic", three),
)
SHARE = Column("share", "cifar10-c", "oracle_share", share)
STORED = Column("stored, kB", "cost", "stored_bytes", kilobytes)

NETWORK = Line("network as trained", "deterministic")
TEMPERATURE = Line("temperature scaling", "temperature_scaling")
HIGHER = Line(
    "a higher temperature, same budget", "density_softmax", "layers=[], scale=temperature", False
)
PAPER = Line("Density-Softmax, the paper's code", "density_softmax", "density=realnvp")
OURS = Line("**Density-Softmax, `ds.attach`**", "density_softmax")
FORMS = (
    OURS,
    Line("Density-Softmax, no layers", "density_softmax", "layers=[]"),
    Line("Density-Softmax without class-aware experts", "density_softmax", "classes=false"),
    HIGHER,
    PAPER,
)
RIVALS = tuple(
    Line(title(kind), kind)
    for kind in kinds_of("posthoc")
    if kind not in ("deterministic", "temperature_scaling")
)
ORACLE = Line("the best temperature of each shifted set", "temperature_scaling", "oracle")
ALL = (NETWORK, TEMPERATURE, ORACLE, *RIVALS, *FORMS)
SHORT = (NETWORK, TEMPERATURE, Line("Mahalanobis++", "mahalanobis_plus_plus"), OURS)
CALIBRATED = (
    NETWORK,
    TEMPERATURE,
    HIGHER,
    Line(title("laplace"), "laplace"),
    Line(title("density_aware_calibration"), "density_aware_calibration"),
)
ON_QUERIES = ("gen", "knn", "vim", "fdbd", "mahalanobis_plus_plus", "relative_mahalanobis")
DETECTORS = ("max_softmax", "energy", "gen", "vim", "knn", "fdbd", "mahalanobis_plus_plus")

TABLES = {
    "home": Table(
        "posthoc_cifar10",
        "posthoc_cifar10/resnet20",
        (NETWORK, TEMPERATURE, OURS),
        (CALIBRATION[0], CALIBRATION[3], *DETECTION),
    ),
    "readme": Table(
        "posthoc_cifar10", "posthoc_cifar10/resnet20", SHORT, (*CALIBRATION, *DETECTION)
    ),
    **{
        f"calibration-{network}": Table(
            "posthoc_cifar10",
            f"posthoc_cifar10/{network}",
            (*CALIBRATED, PAPER, OURS, ORACLE),
            (*CALIBRATION, SHARE),
        )
        for network in ("resnet20", "resnet32")
    },
    **{
        f"detection-{network}": Table(
            "posthoc_cifar10",
            f"posthoc_cifar10/{network}",
            (*(Line(title(kind), kind) for kind in DETECTORS), *FORMS[1:3], OURS),
            (*DETECTION, STORED),
        )
        for network in ("resnet20", "resnet32")
    },
    **{
        f"posthoc-{network}": Table(
            "posthoc_cifar10",
            f"posthoc_cifar10/{network}",
            ALL,
            (*CALIBRATION, SHARE, *DETECTION, STORED),
        )
        for network in ("resnet20", "resnet32")
    },
    **{
        f"clinc-{head}": Table(
            "posthoc_clinc",
            f"posthoc_clinc/{head}",
            (TEMPERATURE, *(Line(title(kind), kind) for kind in ON_QUERIES), OURS),
            QUERIES,
        )
        for head in ("linear", "hidden")
    },
    "toy": Table(
        "toy",
        "toy",
        tuple(Line(title(kind), kind) for kind in kinds_of("paper")),
        (
            Column("NLL ↓", "iid", "nll", three),
            Column("accuracy ↑", "iid", "accuracy", three),
            Column("ECE ↓", "iid", "ece", three),
            Column("confidence on the cluster ↓", "cluster", "confidence", three),
            Column("AUROC by entropy ↑", "cluster", "auroc:entropy", three),
            Column("by epistemic ↑", "cluster", "auroc:epistemic", three),
        ),
    ),
}


def main() -> None:
    """Write the tables, check them, or keep the rows that they show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--keep", nargs=2, metavar=("NAME", "ROWS"))
    args = parser.parse_args()
    if args.keep:
        keep(args.keep[0], Path(args.keep[1]))
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
    rows = [row for row in kept(table.rows) if row.recipe == table.recipe]
    body = []
    for line in table.lines:
        mine = [r for r in rows if r.method == line.method and is_variant(r.variant, line.variant)]
        if mine:
            body.append([line.label, *(cell(line, mine, c) for c in table.columns)])
    head = ["", *(column.title for column in table.columns)]
    lines = [head, ["---", *("--:" for _ in table.columns)], *body]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def is_variant(variant: str, wanted: str) -> bool:
    """Whether a variant is the wanted one; `layers=[]` alone is not `layers=[], scale=...`."""
    whole = wanted in ("default", "layers=[]")
    return variant == wanted if whole else variant.startswith(wanted)


def cell(line: Line, rows: Sequence[Row], column: Column) -> str:
    """One number of a table."""
    if column in DETECTION and not line.detects:
        return MISSING
    found = [r.value for r in rows if (r.split, r.metric) == (column.split, column.metric)]
    if not found or not all(map(math.isfinite, found)):
        return MISSING
    mean = column.form(statistics.fmean(found))
    return f"{mean} ± {column.form(statistics.stdev(found))}" if found[1:] else mean


@cache
def kept(name: str) -> list[Row]:
    """The rows of a file under docs/results."""
    return read_rows(RESULTS / f"{name}.csv")


def keep(name: str, rows: Path) -> None:
    """Replace docs/results/NAME.csv by the rows of a file that its tables show."""
    tables = [table for table in TABLES.values() if table.rows == name]
    shown = {(c.split, c.metric) for table in tables for c in table.columns}
    recipes = {table.recipe for table in tables}
    chosen = [r for r in read_rows(rows) if r.recipe in recipes and (r.split, r.metric) in shown]
    write_rows(RESULTS / f"{name}.csv", chosen)


if __name__ == "__main__":
    main()
