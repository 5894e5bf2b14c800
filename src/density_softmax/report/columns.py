"""Columns of a table: how their numbers are printed, and which of them is the best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from density_softmax.metrics import NOISY, is_noisy, paired_t_test
from density_softmax.report.frame import Key, Spread
from density_softmax.report.names import Better

if TYPE_CHECKING:
    import pandas as pd

MIN_SEEDS = 3
LEVEL = 0.05
# Metrics between 0 and 1, printed with as many decimals everywhere.
SHARES = ("accuracy", "ece", "mece", "brier", "auroc", "aupr", "fpr95", "confidence")
SHARE_DECIMALS = 3
# Columns whose numbers are all below are printed as powers of ten.
TINY = 1e-4
BUSY = (
    f"~: the interquartile range over rounds exceeds {NOISY:.0%} of this latency; the machine was "
    "too busy to measure it. `density-softmax latency RUNS` measures it again."
)


@dataclass(frozen=True)
class Column:
    """A metric on a split.

    Attributes:
        title: the metric, with an arrow towards better values.
        note: what else a reader must know, such as the score that detects.
        key: the split and metric of its rows.
        better: which direction is an improvement; None where neither is.
        decimals: how many to print, the same in all lines; None prints yes and no.
        quoted: whether its numbers are the paper's, not ours.
    """

    title: str
    note: str
    key: Key
    better: Better | None
    decimals: int | None
    quoted: bool = False


@dataclass(frozen=True)
class Cell:
    """A mean over seeds.

    Attributes:
        mean: the number; of yes and no, 1 and 0.
        std: its sample standard deviation; None for a single seed.
        best: whether it is better than the second best of its column.
        noisy: whether the machine was too busy for it to be believed.
    """

    mean: float
    std: float | None
    best: bool = False
    noisy: bool = False


def how_to_read(num_seeds: int) -> str:
    """What the numbers of a table are, and what bold means in it.

    Args:
        num_seeds: the most that a line has.
    """
    if num_seeds <= 1:
        return "One seed, so differences are not tested and nothing is bold."
    mean = "Mean ± sample standard deviation over seeds."
    if num_seeds < MIN_SEEDS:
        return f"{mean} Differences are tested from {MIN_SEEDS} seeds on, so nothing is bold."
    return (
        f"{mean} Bold: better than the second best, by more than the digits shown and by a paired "
        f"t-test over at least {MIN_SEEDS} seeds at {LEVEL:.0%}."
    )


def find_decimals(metric: str, spreads: Iterable[Spread]) -> int:
    """How many decimals a column prints.

    Shares have three. Other numbers have three or so digits of the largest mean, but no more than
    two of the smallest deviation, and no decimals where all are whole.

    Args:
        metric: as in rows.
        spreads: of all lines.
    """
    if _is_share(metric):
        return SHARE_DECIMALS
    finite = [each for each in spreads if math.isfinite(each.mean)]
    means = [abs(each.mean) for each in finite]
    if all(value.is_integer() and value > 1 for value in means):
        return 0
    largest = max(means, default=0.0)
    if TINY <= largest < 1:
        decimals = 2 - math.floor(math.log10(largest))
    else:
        limits = ((3, 10), (2, 100), (1, 1000))
        decimals = next((each for each, limit in limits if largest < limit), 0)
    deviations = [each.std for each in finite if each.std]
    if largest < TINY or not deviations:
        return decimals
    return min(decimals, max(0, 1 - math.floor(math.log10(min(deviations)))))


def cell_texts(cell: Cell, column: Column) -> tuple[str, str]:
    """Mean and deviation as printed, the latter perhaps empty.

    Args:
        cell: the numbers.
        column: where they stand.
    """
    if column.decimals is None:
        return "yes" if cell.mean else "no", ""
    form, mean = f",.{column.decimals}f", cell.mean
    if not _is_share(column.key[1]) and 0 < abs(mean) < 0.5 * 10**-column.decimals:
        form = ".1e"  # far smaller than the others of its column, but not 0
    elif math.isfinite(mean):
        mean = round(mean, column.decimals) + 0.0  # not −0
    sign = "~" if cell.noisy else ""
    return f"{sign}{mean:{form}}", "" if cell.std is None else f"{cell.std:{form}}"


def make_cells(
    frame: pd.DataFrame, spreads: Mapping[str, Spread], column: Column, noisy: set[str]
) -> dict[str, Cell]:
    """The cells of a column by line, the best of them marked.

    Args:
        frame: the rows of the column, a line for each seed.
        spreads: their means and deviations, by line.
        column: where they stand.
        noisy: lines that were measured on a busy machine; beside them nothing is best.
    """
    cells = {name: Cell(*spread, noisy=name in noisy) for name, spread in spreads.items()}
    best = None if noisy else _best(frame, cells, column)
    return {name: Cell(c.mean, c.std, name == best, c.noisy) for name, c in cells.items()}


def noisy_lines(frame: pd.DataFrame, key: Key) -> set[str]:
    """The lines whose latency cannot be believed; none if the column is no latency.

    Args:
        frame: results on the same data.
        key: the split and metric of the column.
    """
    metric, _, size = key[1].partition(":")
    if metric != "latency_ratio":
        return set()
    spreads = frame[frame["metric"] == f"latency_spread:{size}"].set_index("run")["value"]
    ratios = frame[frame["metric"] == key[1]]
    measured = zip(ratios["line"], ratios["run"], ratios["value"], strict=True)
    return {line for line, run, ratio in measured if is_noisy(ratio, spreads.get(run, 0.0))}


def is_better(a: Sequence[float], b: Sequence[float], better: Better) -> bool:
    """Whether a is better than b by a paired t-test.

    Args:
        a: a value for each seed.
        b: those of the same seeds.
        better: which direction is an improvement.
    """
    if len(a) < MIN_SEEDS or not all(map(math.isfinite, [*a, *b])):
        return False
    gain = sum(a) - sum(b)
    return (gain > 0 if better == "higher" else gain < 0) and paired_t_test(a, b) < LEVEL


def _best(frame: pd.DataFrame, cells: Mapping[str, Cell], column: Column) -> str | None:
    """The line that is better than the second best, if the test over common seeds says so."""
    finite = [name for name, cell in cells.items() if math.isfinite(cell.mean)]
    if column.better is None or len(finite) < 2:
        return None
    first, second, *_ = sorted(
        finite, key=lambda name: cells[name].mean, reverse=column.better == "higher"
    )
    if cell_texts(cells[first], column)[0] == cell_texts(cells[second], column)[0]:
        return None
    pairs = frame.pivot_table("value", "seed", "line", aggfunc="last")[[first, second]].dropna()
    return first if is_better(list(pairs[first]), list(pairs[second]), column.better) else None


def _is_share(metric: str) -> bool:
    name = metric.partition(":")[0]
    return name in SHARES or (name[:1] == "c" and name[1:] in SHARES)
