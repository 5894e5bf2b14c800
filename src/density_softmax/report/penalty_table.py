"""The table of λ: what the gradient penalty, and the training of the head after it, are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from density_softmax.report.ablations import Penalty, penalty_of
from density_softmax.report.names import method_name, variant_of_data
from density_softmax.report.runs import Run, by_setting, rows_of
from density_softmax.report.samples import Key
from density_softmax.report.sections import Section, find_keys, headline
from density_softmax.report.tables import Quotes, Table, build_table

__all__ = ["build_penalty_tables"]

REMARK = (
    "λ is the weight of the gradient penalty (Eq. 4); without Eq. 6 the head is not trained "
    "again on scaled logits."
)


def build_penalty_tables(
    runs: Sequence[Run], quotes: Mapping[str, Quotes] | None = None
) -> list[Table]:
    """For each recipe, data and method of which runs differ in λ or in the head, a table."""
    tables = []
    for setting, members in by_setting(runs).items():
        for method, variants in _by_penalty(members).items():
            keys = find_keys(rows_of([run for each in variants.values() for run in each]))
            name = f"penalty-{method}" if method != "density_softmax" else "penalty"
            title = f"{method_name(method)} by the weight λ of its penalty"
            columns = headline(keys, ("iid", "shift"))
            section = Section("penalty", name, title, columns, REMARK)
            lines = {penalty.name: _samples(variants[penalty]) for penalty in sorted(variants)}
            changed = bool(variant_of_data(members[0].variant))
            quoted = {} if changed else (quotes or {}).get(members[0].key[0], {})
            tables.append(build_table(section, setting, lines, quoted))
    return tables


def _by_penalty(runs: Sequence[Run]) -> dict[str, dict[Penalty, list[Run]]]:
    """By method, the runs of each penalty; methods with one penalty alone make no table."""
    found: dict[str, dict[Penalty, list[Run]]] = {}
    for run in runs:
        penalty = penalty_of(run)
        if penalty is not None:
            found.setdefault(run.method, {}).setdefault(penalty, []).append(run)
    return {method: variants for method, variants in found.items() if len(variants) > 1}


def _samples(runs: Sequence[Run]) -> dict[Key, dict[int, float]]:
    found: dict[Key, dict[int, float]] = {}
    for row in rows_of(runs):
        found.setdefault((row.split, row.metric), {})[row.seed] = row.value
    return found
