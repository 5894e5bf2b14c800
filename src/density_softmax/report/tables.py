"""Tables of results: a line per method and variant, mean ± standard deviation over seeds."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from density_softmax.report.columns import (
    BUSY,
    Cell,
    Column,
    find_decimals,
    how_to_read,
    make_cells,
    noisy_lines,
)
from density_softmax.report.frame import (
    Key,
    Line,
    Penalty,
    Setting,
    Shifts,
    Spread,
    find_keys,
    find_shifts,
    frame_of,
    over_seeds,
    penalties,
    roles_of,
    settings_of,
    with_shared_means,
)
from density_softmax.report.names import (
    divide,
    file_stem,
    metric_name,
    readable,
    set_name,
)
from density_softmax.report.paper import REMARK as PAPER
from density_softmax.report.paper import Quotes, paper_shifts
from density_softmax.runs.run import Run

if TYPE_CHECKING:
    import pandas as pd

Role = Literal["results", "penalty", "iid", "shift", "ood", "each shift", "cost", "training"]

DETECTION = (
    "For AUROC, AUPR and FPR95, OOD is the positive class, and the header names the score. AUPR "
    "depends on the ratio of the two sets' sizes."
)
LATENCY = "Latency is relative to ERM with the same encoder, both measured in turn."
PENALTY = (
    "λ is the weight of the gradient penalty (Eq. 4); without Eq. 6 the head is not trained "
    "again on scaled logits."
)
VARIANTS = "In parentheses: settings that differ from the recipe's."
# What a setting means that the name alone does not say.
RULES = {
    "scale=max": "scale=max multiplies logits by p / max p, the rule in the paper's text.",
    "scale=range": "scale=range is the rule in the paper's code.",
}
TOTAL = ("cost", "train_seconds")

# The numbers to look at first, by role of the split.
HEADLINE = {
    "iid": ("nll", "accuracy", "ece"),
    "shift": ("nll", "accuracy", "ece", "cnll", "caccuracy", "cece"),
    "ood": ("confidence", "auroc:entropy", "auroc:epistemic"),
    "cost": ("params", "latency_ratio:1"),
}


@dataclass(frozen=True)
class TableLine:
    """A method and variant, and its cell in each column; None where it has no rows."""

    name: str
    num_seeds: int
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Table:
    """Comparable results, ready to be rendered.

    Attributes:
        name: a file name without ending.
        title: what is compared, on which data.
        remark: what must be known beside `how_to_read`.
        columns: the header.
        lines: the methods.
        role: what kind of table it is; `results` has the numbers to look at first.
    """

    name: str
    title: str
    remark: str
    columns: tuple[Column, ...]
    lines: tuple[TableLine, ...]
    role: str

    @property
    def caption(self) -> str:
        """How its numbers are read."""
        if self.role in ("needs", "differences"):
            return self.remark
        most = max((line.num_seeds for line in self.lines), default=0)
        return f"{how_to_read(most)} {self.remark}".strip()


@dataclass(frozen=True)
class _Section:
    """Which columns a table has: by split and metric, a note for the header."""

    role: Role
    name: str
    title: str
    columns: dict[Key, str]
    remark: str = ""


def build_tables(frame: pd.DataFrame, quotes: Mapping[str, Quotes] | None = None) -> list[Table]:
    """For each recipe and data the results at a glance, then a table for each role and set.

    Args:
        frame: results of any runs, see `frame_of`.
        quotes: by setting, what the paper reports with the same data: shown beside the results.
    """
    tables = []
    for setting, part in frame.groupby("setting", sort=False):
        quoted = (quotes or {}).get(setting, {})
        shifts, part = find_shifts(part), with_shared_means(part)
        for section in _sections(
            find_keys(part), {key for line in quoted.values() for key in line}
        ):
            beside = quoted if section.role == "results" else {}
            tables.append(_table(section, setting, part, shifts, beside))
    return tables


def build_penalty_tables(
    runs: Sequence[Run], quotes: Mapping[str, Quotes] | None = None
) -> list[Table]:
    """For each recipe, data and method whose runs differ in λ or in the head, a table.

    Args:
        runs: any runs.
        quotes: by recipe, what its paper reports by λ: shown beside ours.
    """
    return [
        _penalty_table(setting, line, variants, quotes or {})
        for setting in settings_of(runs)
        for line, variants in penalties(setting.runs, heads=True).items()
        if len(variants) > 1
    ]


def fold(table: Table, most_columns: int) -> list[Table]:
    """The table in pieces that fit a terminal; quotes stay beside ours.

    Args:
        table: of any width.
        most_columns: of a piece.
    """
    units: list[list[int]] = []
    for number, column in enumerate(table.columns):
        units = [*units[:-1], [*units[-1], number]] if column.quoted else [*units, [number]]
    pieces = divide(units, max(1, most_columns // max(map(len, units))))
    return [
        replace(
            _piece(table, [number for unit in piece for number in unit]),
            title=f"{table.title} ({n} of {len(pieces)})" if pieces[1:] else table.title,
        )
        for n, piece in enumerate(pieces, 1)
    ]


def _penalty_table(
    setting: Setting,
    line: Line,
    variants: Mapping[Penalty, Sequence[Run]],
    quotes: Mapping[str, Quotes],
) -> Table:
    runs = [run for each in variants.values() for run in each]
    names = [penalty.name for penalty, each in variants.items() for _ in each]
    frame = frame_of(runs)
    frame = frame.assign(line=frame["run"].map(dict(enumerate(names))))
    # Both `penalty=none` and a weight of 0 are λ = 0.
    frame = frame.drop_duplicates(["line", "seed", "split", "metric"], keep="last")
    shifts, frame = find_shifts(frame), with_shared_means(frame)
    columns = _headline(find_keys(frame), ("iid", "shift"))
    title = f"{line.label} by the weight λ of its penalty"
    name = file_stem("penalty", *line.words[1:])
    section = _Section("penalty", name, title, columns, PENALTY)
    quoted = {} if line.changes else quotes.get(setting.recipe, {})
    return _table(section, setting.name, frame, shifts, quoted)


def _sections(keys: Sequence[Key], quoted: Container[Key]) -> Iterator[_Section]:
    """The headline, then a section for each role and set; every column is in one of these."""
    of_split = roles_of(keys)
    roles: dict[Role, dict[Key, str]] = {}
    for key in keys:
        training = key[0] == "cost" and key[1].startswith(("train_seconds", "peak_memory"))
        roles.setdefault("training" if training else of_split[key[0]], {})[key] = _note(key)
    if columns := _headline(keys, tuple(HEADLINE), quoted):
        detects = any(metric.startswith(("auroc:", "aupr:")) for _, metric in columns)
        yield _Section("results", "results", "results", columns, DETECTION if detects else "")
    if "iid" in roles:
        yield _Section("iid", "iid", "in-domain test set", roles["iid"])
    for name, columns in _by_set(roles.get("shift", {})):
        means = any(metric == "cnll" for _, metric in columns)
        of = "mean over the shifts of" if means else "shifted set"
        yield _Section("shift", f"shift-{name}", f"{of} {set_name(name)}", columns)
    for name, columns in _by_set(roles.get("ood", {})):
        title = f"detection of {set_name(name)} as out-of-distribution (OOD)"
        yield _Section("ood", f"ood-{name}", title, columns, DETECTION)
    yield from _each_shift(roles.get("each shift", {}))
    if "cost" in roles:
        total = {TOTAL: _note(TOTAL)} if TOTAL in roles.get("training", {}) else {}
        title = "cost of prediction and of training" if total else "cost of prediction"
        yield _Section("cost", "cost", title, roles["cost"] | total, LATENCY)
    if "training" in roles:
        yield _Section("training", "training", "cost of training by stage", roles["training"])


def _headline(
    keys: Sequence[Key], wanted: Sequence[str], quoted: Container[Key] = ()
) -> dict[Key, str]:
    """The columns to look at first of these roles, and those beside which quotes stand.

    Sets other than the in-domain one are named.
    """
    roles, columns = roles_of(keys), {}
    splits = list(dict.fromkeys(split for split, _ in keys))
    for role in wanted:
        order = (*HEADLINE[role], *(metric for _, metric in keys if metric not in HEADLINE[role]))
        chosen = [key for key in keys if key[1] in HEADLINE[role] or key in quoted]
        for key in sorted(chosen, key=lambda k: (splits.index(k[0]), order.index(k[1]))):
            if roles[key[0]] == role:
                name = set_name(key[0]) if role in ("shift", "ood") else ""
                columns[key] = ", ".join(filter(None, (name, _note(key))))
    return columns


def _by_set(columns: Mapping[Key, str]) -> list[tuple[str, dict[Key, str]]]:
    names = dict.fromkeys(split for split, _ in columns)
    return [(name, {k: note for k, note in columns.items() if k[0] == name}) for name in names]


def _each_shift(keys: Mapping[Key, str]) -> Iterator[_Section]:
    """Splits `<set>/<type>/<severity>`: a section for each set and metric."""
    groups: dict[Key, dict[Key, str]] = {}
    for split, metric in keys:
        data, _, shift = split.partition("/")
        groups.setdefault((data, metric), {})[split, metric] = shift.replace("/", " ")
    for (data, metric), columns in groups.items():
        title = f"{metric_name(metric).title} on each shift of {set_name(data)}"
        yield _Section("each shift", f"shift-{data}-{metric}", title, columns)


def _note(key: Key) -> str:
    """What follows the colon of a metric, in words."""
    metric, _, detail = key[1].partition(":")
    if metric == "latency_ratio":
        return f"batch {detail}, ERM = 1"
    if metric == "latency_spread":
        return f"batch {detail}, between quartiles"
    if metric == "train_seconds" and not detail:
        return "all stages"
    return f"by {detail}" if metric in ("auroc", "aupr", "fpr95") else detail


def _table(
    section: _Section,
    setting: str,
    frame: pd.DataFrame,
    shifts: Mapping[str, Shifts],
    quotes: Quotes,
) -> Table:
    """The table of a section, means being of shared shifts; quotes stand beside ours."""
    lines = list(dict.fromkeys(frame["line"]))
    noisy = {key: noisy_lines(frame, key) for key in section.columns}
    wanted = [key in section.columns for key in zip(frame["split"], frame["metric"], strict=True)]
    frame = frame[wanted]
    groups = dict(list(frame.groupby(["split", "metric"], sort=False)))
    columns: list[Column] = []
    cells: list[list[Cell | None]] = []
    for key, note in section.columns.items():
        spreads = over_seeds(groups[key], "line")
        columns.append(_column(section, key, note, spreads))
        found = make_cells(groups[key], spreads, columns[-1], noisy[key])
        cells.append([found.get(name) for name in lines])
        alike = key[0] not in shifts or set(shifts[key[0]].shared) == paper_shifts(key[0])
        quoted = [quotes.get(name, {}).get(key) if alike else None for name in lines]
        if any(value is not None for value in quoted):
            columns.append(_quoted(columns[-1]))
            cells.append([None if value is None else Cell(value, None) for value in quoted])
    seeds = frame.groupby("line")["seed"].nunique().to_dict()
    remark = [section.remark, *_variants(lines), *_left_out(section, shifts)]
    remark += [BUSY] if any(noisy.values()) else []
    remark += [PAPER] if any(column.quoted for column in columns) else []
    return Table(
        name=file_stem(setting, section.name),
        title=readable(f"{setting}: {section.title}"),
        remark=readable(" ".join(filter(None, remark))),
        columns=tuple(columns),
        lines=tuple(
            TableLine(name, seeds.get(name, 0), each)
            for name, each in zip(lines, zip(*cells, strict=True), strict=True)
        ),
        role=section.role,
    )


def _piece(table: Table, chosen: Sequence[int]) -> Table:
    columns = tuple(table.columns[number] for number in chosen)
    cells = [tuple(line.cells[number] for number in chosen) for line in table.lines]
    lines = (replace(line, cells=each) for line, each in zip(table.lines, cells, strict=True))
    return replace(table, columns=columns, lines=tuple(lines))


def _variants(lines: Sequence[str]) -> list[str]:
    """What the settings in parentheses mean, where there are any."""
    if not any(line.endswith(")") for line in lines):
        return []
    return [VARIANTS, *(text for rule, text in RULES.items() if any(rule in x for x in lines))]


def _left_out(section: _Section, shifts: Mapping[str, Shifts]) -> list[str]:
    """What means over shifts leave out, so that those of all lines are of the same."""
    headline = section.role in ("results", "penalty")
    splits = {split for split, _ in section.columns}
    return [
        f"Means over {set_name(data)} cover the {len(shared)} shifts that all runs have, and leave "
        f"out {len(partial)} that only some have."
        for data, (shared, partial) in shifts.items()
        if partial and (headline or data in splits)
    ]


def _column(section: _Section, key: Key, note: str, spreads: Mapping[str, Spread]) -> Column:
    title, better = metric_name(key[1])
    if key[1] == "confidence" and roles_of(section.columns)[key[0]] == "ood":
        better = "lower"  # to be confident about what is out of distribution is wrong
    arrow = {"higher": " ↑", "lower": " ↓", None: ""}[better]
    decimals = find_decimals(key[1], spreads.values())
    return Column(title + arrow, readable(note), key, better, decimals)


def _quoted(ours: Column) -> Column:
    """The column beside ours; its note names the metric, since its title does not."""
    metric = ours.title.partition(" ")[0]
    note = ", ".join(filter(None, (metric, ours.note)))
    return Column("paper", note, ours.key, None, ours.decimals, quoted=True)
