"""The table of λ: what the gradient penalty, and the training of the head after it, are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from density_softmax.report.ablations import Line, Penalty, penalty_groups
from density_softmax.report.names import file_stem, line_name, variant_of_data
from density_softmax.report.runs import Run, by_setting, rows_of
from density_softmax.report.samples import Key, with_shared_means
from density_softmax.report.sections import Section, find_keys, headline
from density_softmax.report.splits import find_shifts
from density_softmax.report.tables import Quotes, Table, build_table
from density_softmax.types import Row

__all__ = ["build_penalty_tables"]

REMARK = (
    "λ is the weight of the gradient penalty (Eq. 4); without Eq. 6 the head is not trained "
    "again on scaled logits."
)


def build_penalty_tables(
    runs: Sequence[Run], quotes: Mapping[str, Quotes] | None = None
) -> list[Table]:
    """For each recipe, data and method of which runs differ in λ or in the head, a table."""
    return [
        _table(setting, line, variants, quotes or {})
        for setting, members in by_setting(runs).items()
        for line, variants in penalty_groups(members).items()
        if len(variants) > 1
    ]


def _table(
    setting: str,
    line: Line,
    variants: Mapping[Penalty, Sequence[Run]],
    quotes: Mapping[str, Quotes],
) -> Table:
    runs = [run for each in variants.values() for run in each]
    rows = rows_of(runs)
    shifts, rows = find_shifts(rows), with_shared_means(rows)
    columns = headline(find_keys(rows), ("iid", "shift"))
    name = file_stem("penalty", *line.words[1:])
    title = f"{line_name(*line)} by the weight λ of its penalty"
    section = Section("penalty", name, title, columns, REMARK)
    lines = {penalty.name: _samples(rows, each) for penalty, each in variants.items()}
    changed = variant_of_data(runs[0].variant) or line.variant != "default"
    quoted = {} if changed else quotes.get(runs[0].key[0], {})
    return build_table(section, setting, lines, quoted, shifts)


def _samples(rows: Sequence[Row], runs: Sequence[Run]) -> dict[Key, dict[int, float]]:
    """The rows of these runs by split and metric, and by seed."""
    keys, found = {run.key for run in runs}, dict[Key, dict[int, float]]()
    for row in (row for row in rows if row[:4] in keys):
        found.setdefault((row.split, row.metric), {})[row.seed] = row.value
    return found
