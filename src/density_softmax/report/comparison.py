"""Post-hoc methods on one trained network: one table, its figure, and a page that holds both."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from density_softmax.files import write_text
from density_softmax.methods.base import MethodConfig
from density_softmax.report.names import Better, file_stem, metric_name
from density_softmax.report.page import MISSING, render
from density_softmax.runs.comparison import Contender
from density_softmax.runs.rows import write_rows
from density_softmax.types import Row

if TYPE_CHECKING:
    import pandas as pd

    from density_softmax.report.figures import Drawing, Picture

Key = tuple[str, str]  # split and metric

HOW_TO_READ = (
    "All methods see the same features of the same network. ↑ higher is better, ↓ lower is "
    "better; * the best of a column. ~ the difference from {default} is within what resampling "
    "the images explains (95 % interval of a paired bootstrap). – not defined by the method: its "
    "probabilities are those of the plain network (ERM). AUROC and FPR95 are by each method's own "
    "score, which is the entropy where it defines probabilities alone; OOD is the positive class."
)
SHARE = (
    "The share of the way is (TS − method) / (TS − oracle) in cNLL, TS being temperature scaling "
    "and the oracle the temperature that each shifted set's own labels ask for, which nobody has."
)
STORED = "Stored is what a method adds to the network; § marks methods that keep training data."


class Column(NamedTuple):
    """A column of the table: where its numbers are, and how they are printed."""

    key: Key
    title: str
    note: str
    better: Better | None


@dataclass(frozen=True)
class Comparison:
    """What `compare` found: print it, ask for `rows` or a data frame, or save the page.

    Attributes:
        rows: every number, in the usual format. `difference:METRIC` is that from the default
            method, `difference_low:` and `difference_high:` are the bounds of its interval.
        contenders: the lines of the table.
        default: the label of the method that the others are compared with.
        conditions: numbers of samples, devices and seconds, by name.
        notes: what is weak about the data, and which methods had to be left out.
    """

    rows: tuple[Row, ...]
    contenders: tuple[Contender, ...]
    default: str
    conditions: Mapping[str, str]
    notes: tuple[str, ...]

    @cached_property
    def values(self) -> dict[tuple[str, str, str, str], float]:
        """Every number by kind, variant, split and metric."""
        return {(r.method, r.variant, r.split, r.metric): r.value for r in self.rows}

    def value(self, contender: Contender, key: Key) -> float | None:
        """A number of a line; None where the method does not define it."""
        return self.values.get((contender.kind, contender.variant, *key))

    def interval(self, contender: Contender, key: Key) -> tuple[float, float] | None:
        """The bounds of a line's difference from the default; None where there are none."""
        split, metric = key
        bounds = [
            self.value(contender, (split, f"difference_{end}:{metric}")) for end in ("low", "high")
        ]
        return None if bounds[0] is None or bounds[1] is None else (bounds[0], bounds[1])

    @property
    def columns(self) -> list[Column]:
        """The columns of the table, those that have numbers."""
        found = dict.fromkeys((row.split, row.metric) for row in self.rows)
        return [_column(key) for key in sorted(filter(_order, found), key=_order)]

    @property
    def table(self) -> RichTable:
        """The table for a terminal."""
        rich = RichTable(box=box.SIMPLE_HEAD, caption_style="dim", title_style="bold")
        rich.caption = Text(self.caption, justify="left")
        rich.add_column("Method", overflow="fold")
        for column in self.columns:
            title = Text("\n".join(filter(None, (column.title, column.note))))
            rich.add_column(title, justify="right", overflow="fold")
        for line, cells in zip(self.contenders, self.cells(), strict=True):
            rich.add_row(Text(line.label), *map(Text, cells))
        return rich

    def cells(self) -> list[list[str]]:
        """The table as text, a list of cells for each line."""
        columns = self.columns
        best = [
            _best(column, [self.value(c, column.key) for c in self._real()]) for column in columns
        ]
        return [
            [self._cell(line, column, first) for column, first in zip(columns, best, strict=True)]
            for line in self.contenders
        ]

    @property
    def caption(self) -> str:
        """How the table is read, and what to know about the data."""
        conditions = "; ".join(f"{name}: {text}" for name, text in self.conditions.items())
        read = HOW_TO_READ.format(default=self.default)
        return "\n".join([read, SHARE, STORED, conditions, *self.notes])

    def __str__(self) -> str:
        """The table as text."""
        stream = io.StringIO()
        Console(file=stream, width=220, color_system=None).print(self.table)
        return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"

    def to_pandas(self) -> pd.DataFrame:
        """The table as a data frame: a line per method, a column per split and metric."""
        import pandas as pd

        columns = {
            f"{column.key[0]} {column.key[1]}": [self.value(c, column.key) for c in self.contenders]
            for column in self.columns
        }
        labels = [contender.label for contender in self.contenders]
        return pd.DataFrame(columns, index=pd.Index(labels, name="method"), dtype="float64")

    def page(self, path: str | Path) -> Path:
        """Write the page alone, as one HTML file; returns its path.

        Args:
            path: the file.
        """
        path = Path(path)
        write_text(path, self._html(self._pictures(path.parent / f"{path.stem}_figures")))
        return path

    def save(self, directory: str | Path) -> Path:
        """Write page, rows, table and figures into a folder; returns the page's path.

        Args:
            directory: the folder, which may hold an older comparison.
        """
        folder = Path(directory)
        write_rows(folder / "rows.csv", self.rows)
        write_text(folder / "table.txt", str(self))
        write_text(folder / "table.csv", self._csv())
        page = folder / "index.html"
        write_text(page, self._html(self._pictures(folder / "figures")))
        return page

    def _csv(self) -> str:
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        columns = self.columns
        writer.writerow(["method", *(" ".join(column.key) for column in columns)])
        for line in self.contenders:
            values = (self.value(line, column.key) for column in columns)
            writer.writerow([line.label, *("" if v is None else repr(v) for v in values)])
        return stream.getvalue()

    def _html(self, pictures: Sequence[Picture]) -> str:
        return render(
            "comparison.html.j2",
            columns=self.columns,
            lines=list(zip(self.contenders, self.cells(), strict=True)),
            values=[[self.value(c, each.key) for each in self.columns] for c in self.contenders],
            caption=self.caption.splitlines(),
            pictures=pictures,
        )

    def _pictures(self, folder: Path) -> list[Picture]:
        from density_softmax.report.figures import save_figure
        from density_softmax.report.style import paper_style

        with paper_style():
            return [save_figure(drawing, folder) for drawing in [comparison_figure(self)]]

    def _real(self) -> list[Contender]:
        """The lines of methods; the oracle is none."""
        return [c for c in self.contenders if not c.variant.startswith("oracle")]

    def _cell(self, line: Contender, column: Column, best: float | None) -> str:
        value = self.value(line, column.key)
        if value is None:
            return MISSING
        text = _text(value, column.key)
        if column.key[1] == "stored_bytes" and MethodConfig.members[line.kind].stores_data:
            text += " §"
        bounds = self.interval(line, column.key)
        alike = bounds is not None and bounds[0] <= 0 <= bounds[1] and line.label != self.default
        return f"{'*' * (value == best)}{text}{'~' * alike}"


def comparison_figure(comparison: Comparison) -> Drawing:
    """A panel for each column with intervals, a dot for each method, a line at the default.

    Args:
        comparison: what to draw.
    """
    from density_softmax.report.figures import Drawing
    from density_softmax.report.style import GREY, INK, LOOKS, lined_figure

    lines = list(comparison.contenders)
    shown = [c for c in comparison.columns if c.better and c.key[0] != "cost"]
    shown = [c for c in shown if not c.key[1].startswith("fpr95")]
    titles = [" ".join(filter(None, (c.title, c.note))) for c in shown]
    figure, panels = lined_figure([line.label for line in lines], titles, num_columns=3)
    default = next(line for line in lines if line.label == comparison.default)
    for column, axes in zip(shown, panels, strict=True):
        base = comparison.value(default, column.key)
        if base is not None:
            axes.axvline(base, color=GREY, linewidth=0.6, linestyle=(0, (4, 2)))
        for row, line in enumerate(lines):
            value = comparison.value(line, column.key)
            if value is None:
                continue
            bounds = comparison.interval(line, column.key)
            if bounds is not None and base is not None:
                axes.plot([base + end for end in bounds], [row, row], color=INK, linewidth=0.7)
            axes.plot([value], [row], **LOOKS[0 if line is default else 1].line(marks=True))
        axes.locator_params(axis="x", nbins=4)
    caption = (
        f"Dots are values, bars the 95 % interval of the difference from {comparison.default} by a "
        "paired bootstrap over images, drawn around its value, the dashed line."
    )
    return Drawing(figure, file_stem("comparison"), "Post-hoc methods on one network", caption)


_SHOWN = ("nll", "ece", "cnll", "cece", "oracle_share", "auroc", "fpr95", "stored_bytes")
_COSTS = ("train_seconds:fit", "latency_ratio:1", "latency_ratio:32")


def _order(key: Key) -> tuple[int | str, ...]:
    """The place of a column in the table; empty if it is not shown."""
    split, metric = key
    name = metric.partition(":")[0]
    if metric in _COSTS:
        return 3, _COSTS.index(metric), ""
    if name not in _SHOWN or (name in ("nll", "ece") and split != "iid"):
        return ()
    group = 1 if name in ("auroc", "fpr95") else 2 if name == "stored_bytes" else 0
    return group, _SHOWN.index(name), split


def _column(key: Key) -> Column:
    split, metric = key
    name, _, detail = metric.partition(":")
    title, better = metric_name(metric)
    note = split if name in ("cnll", "cece", "auroc", "fpr95") else ""
    if name == "train_seconds":
        title = "Fit s"
    if name == "latency_ratio":
        note = f"batch {detail}, ERM = 1"
    arrow = {"higher": " ↑", "lower": " ↓", None: ""}[better]
    return Column(key, title + arrow, note, better)


def _best(column: Column, values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if column.better is None or len(known) < 2 or column.key[0] == "cost":
        return None
    return max(known) if column.better == "higher" else min(known)


def _text(value: float, key: Key) -> str:
    name = key[1].partition(":")[0]
    if name == "stored_bytes":
        units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
        return next((f"{value / u:.3g} {n}" for u, n in units if value >= u), f"{value:.0f} B")
    if name == "oracle_share":
        return f"{value:.0%}"
    if name in ("train_seconds", "latency_ratio"):
        return f"{value:.2f}"
    return f"{value:.4f}" if "nll" in name or "ece" in name else f"{value:.3f}"
