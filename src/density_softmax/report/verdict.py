"""What a table of results amounts to: who leads in which measure, and whether a test says so."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from density_softmax.report.columns import Cell, Column, cell_texts
from density_softmax.report.frame import roles_of
from density_softmax.report.names import heading, method_name, set_name
from density_softmax.report.tables import Table

# The measures that a verdict weighs; parameters and mean confidences are for the table alone.
WEIGHED = ("nll", "accuracy", "ece", "auroc", "latency_ratio")
SUBJECT = "density_softmax"
COST = "Cost"


@dataclass(frozen=True)
class Finding:
    """Who leads in one measure.

    Attributes:
        measure: its name, with an arrow towards better values.
        note: what else a reader must know of it.
        leaders: the lines whose printed mean is the best.
        value: that mean as printed.
        tested: whether the lead over the second best is significant.
        ours: what Density-Softmax has where it is among the lines and does not lead; or empty.
    """

    measure: str
    note: str
    leaders: tuple[str, ...]
    value: str
    tested: bool
    ours: str


@dataclass(frozen=True)
class Verdict:
    """What a table of results amounts to.

    Attributes:
        title: which data it is about.
        sentence: how many measures each method leads in.
        groups: findings by the question that they answer.
    """

    title: str
    sentence: str
    groups: dict[str, tuple[Finding, ...]]


def verdict_of(table: Table) -> Verdict:
    """Who leads in which measure of a table of results.

    Args:
        table: one whose role is `results`.
    """
    roles = roles_of(column.key for column in table.columns)
    groups: dict[str, tuple[Finding, ...]] = {}
    for number, column in enumerate(table.columns):
        if (finding := _finding(table, number, column)) is not None:
            question = _question(roles[column.key[0]], column.key[0])
            groups[question] = (*groups.get(question, ()), finding)
    # The latency is relative to ERM, which no method can beat by much.
    findings = [each for name, group in groups.items() for each in group if name != COST]
    return Verdict(heading(table.title.partition(":")[0]), _sentence(table, findings), groups)


def _finding(table: Table, number: int, column: Column) -> Finding | None:
    """None where the column is not weighed, is the paper's, is noisy, or has only one number."""
    split, name = column.key[0], column.key[1].partition(":")[0]
    cells = dict(_finite_cells(table, number))
    if any(cell.noisy for cell in cells.values()):
        return None
    if column.quoted or name.removeprefix("c") not in WEIGHED or len(cells) < 2:
        return None
    assert column.better is not None
    best = (max if column.better == "higher" else min)(cell.mean for cell in cells.values())
    texts = {line: cell_texts(cell, column)[0] for line, cell in cells.items()}
    value = next(texts[line] for line, cell in cells.items() if cell.mean == best)
    leaders = tuple(line for line, text in texts.items() if text == value)
    subject = method_name(SUBJECT)
    ours = texts.get(subject, "") if subject not in leaders else ""
    tested = any(cell.best for cell in cells.values())
    note = ", ".join(part for part in column.note.split(", ") if part != set_name(split))
    return Finding(column.title, note, leaders, value, tested, ours)


def _finite_cells(table: Table, number: int) -> Iterator[tuple[str, Cell]]:
    for line in table.lines:
        cell = line.cells[number]
        if cell is not None and math.isfinite(cell.mean):
            yield line.name, cell


def _question(role: str, split: str) -> str:
    if role == "shift":
        return f"Under shift: {set_name(split)}"
    if role == "ood":
        return f"Detecting {set_name(split)}"
    return "In-domain" if role == "iid" else COST


def _sentence(table: Table, findings: Sequence[Finding]) -> str:
    """Who leads alone, in how many of the measures, and how many leads are significant."""
    if not findings:
        return "There is nothing to compare: only one method has results."
    leads = Counter(each.leaders[0] for each in findings if len(each.leaders) == 1)
    order = [line.name for line in table.lines if line.name in leads]
    order.sort(key=lambda name: -leads[name])
    measures = f"{len(findings)} measure{'s' if findings[1:] else ''}"
    if not leads:
        return f"No method leads alone in any of {measures}."
    parts = [f"{name} in {leads[name]}" for name in order]
    parts[0] = f"{order[0]} leads in {leads[order[0]]} of {measures}"
    significant = sum(each.tested for each in findings)
    level = len(findings) - sum(leads.values())
    shared = f" In {level} the best share the same number." if level else ""
    return f"{', '.join(parts)}.{shared} {_significance(table, significant)}"


def _significance(table: Table, significant: int) -> str:
    if max(line.num_seeds for line in table.lines) < 3:
        return "With fewer than three seeds, no lead is tested."
    return (
        f"{significant or 'None'} of these leads {'is' if significant < 2 else 'are'} significant."
    )
