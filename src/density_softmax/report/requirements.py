"""What each method needs and gains: the paper's first table, for the methods of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from density_softmax.report.columns import MIN_SEEDS, Cell, Column, is_better
from density_softmax.report.frame import (
    Setting,
    find_keys,
    line_of,
    roles_of,
    settings_of,
    with_shared_means,
)
from density_softmax.report.names import Better, file_stem, method_name, readable
from density_softmax.report.tables import Table, TableLine
from density_softmax.runs.run import Run

REFERENCE = method_name("deterministic")
# Gains over ERM on shifted sets, by the metrics that decide on them.
GAINS: dict[str, tuple[Better, tuple[str, ...]]] = {
    "Uncertainty quality": ("lower", ("ece", "cece")),
    "Robustness quality": ("higher", ("accuracy", "caccuracy")),
}
NEEDS = {
    "Test-time efficiency": "one pass, one network",
    "Without prior": "",
    "No random draws": "",
    "Encoder unchanged": "",
    "Passes": "",
    "Networks": "",
}
REMARK = (
    "Test-time efficiency: one pass of one encoder. Without prior: no distribution to choose "
    "before training. Encoder unchanged: its layers are those of the plain classifier. Passes: how "
    "often an encoder sees each input."
)
GAIN_REMARK = (
    f" Uncertainty and robustness quality: lower ECE and higher accuracy than {REFERENCE} on every "
    f"shifted set, by a paired t-test over at least {MIN_SEEDS} seeds."
)


def build_requirement_tables(runs: Sequence[Run]) -> list[Table]:
    """For each recipe and data, what its methods need beyond a plain classifier.

    Args:
        runs: in the order of their lines.
    """
    return [_table(setting) for setting in settings_of(runs)]


def _table(setting: Setting) -> Table:
    runs = setting.first_seeds()
    gains = {title: _gains(setting, *each) for title, each in GAINS.items()}
    gains = {title: found for title, found in gains.items() if any(found.values())}
    columns = [_column(title, "than ERM, under shift") for title in gains]
    columns += [_column(title, note) for title, note in NEEDS.items()]
    seeds = setting.frame.groupby("line")["seed"].nunique().to_dict()
    return Table(
        name=file_stem(setting.name, "methods"),
        title=f"{setting.name}: what each method needs",
        remark=REMARK + (GAIN_REMARK if gains else "") + _details(runs),
        columns=tuple(columns),
        lines=tuple(
            TableLine(
                label := str(line_of(run).label),
                seeds[label],
                (*(found.get(label) for found in gains.values()), *_cells(run)),
            )
            for run in runs
        ),
        role="needs",
    )


def _column(title: str, note: str) -> Column:
    counted = title in ("Passes", "Networks")
    return Column(title, note, ("", ""), None, 0 if counted else None)


def _cells(run: Run) -> Iterator[Cell]:
    """A cell for each entry of `NEEDS`."""
    config = run.recipe.method
    needs = config.needs()
    draws = any(each.method.draws_samples for each in (config, *config.ensemble()))
    efficient = needs.passes == needs.networks == 1
    for value in (efficient, not needs.prior, not draws, not needs.inside, *needs[:2]):
        yield Cell(float(value), None)


def _details(runs: Sequence[Run]) -> str:
    """Which priors there are, and what is changed inside encoders, each of them once."""
    needs = {method_name(run.kind): run.recipe.method.needs() for run in runs}
    priors = [f"{name}: {each.prior}" for name, each in needs.items() if each.prior]
    inside = [f"{name}: {each.inside}" for name, each in needs.items() if each.inside]
    entries = (("Priors", priors), ("Inside the encoder", inside))
    texts = [f" {title}: {'; '.join(each)}." for title, each in entries if each]
    return readable("".join(texts))


def _gains(setting: Setting, better: Better, metrics: Sequence[str]) -> dict[str, Cell | None]:
    """By line, whether it is better than ERM on every shifted set; None where that is not known."""
    frame = with_shared_means(setting.frame)
    keys = find_keys(frame)
    roles = roles_of(keys)
    wanted = [key for key in keys if roles[key[0]] == "shift" and key[1] in metrics]
    values = {
        key: part.pivot_table("value", "seed", "line", aggfunc="last")
        for key, part in frame.groupby(["split", "metric"], sort=False)
        if key in wanted
    }
    found: dict[str, Cell | None] = {}
    for line in setting.labels:
        pairs = [
            each[[REFERENCE, line]].dropna()
            for each in values.values()
            if {REFERENCE, line} <= set(each.columns)
        ]
        known = len(pairs) == len(wanted) > 0 and min(map(len, pairs)) >= MIN_SEEDS
        won = [is_better(list(p.iloc[:, 1]), list(p.iloc[:, 0]), better) for p in pairs]
        found[str(line)] = Cell(float(all(won)), None) if known else None
    return found
