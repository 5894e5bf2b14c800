"""Differences between methods, with intervals of a paired bootstrap over test samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from statistics import fmean

import torch
from torch import Tensor

from density_softmax import metrics
from density_softmax.errors import UserError, choices
from density_softmax.report.columns import Cell, Column
from density_softmax.report.frame import Key, Line, Setting, line_of, settings_of
from density_softmax.report.names import file_stem, method_name, metric_name, readable, set_name
from density_softmax.report.tables import Table, TableLine
from density_softmax.runs.run import Run
from density_softmax.types import Row

NUM_RESAMPLES = 1000
SCORES = ("entropy", "epistemic")
# What is written of a difference, before the name of its metric.
DIFFERENCE, LOW, HIGH = "difference:", "difference_low:", "difference_high:"
STD = "difference_std:"
REMARK = (
    "Each number minus that of {against} with the same seed, ± its standard deviation over "
    "{number:,} resamples of the test samples, which all methods and corruptions share. Bold: the "
    "95 % interval of the resamples excludes 0. Of several seeds, differences, deviations and the "
    "bounds of the intervals are means, so that an interval is no narrower than that of the mean "
    "difference. Networks are not resampled: what another seed would change, a test over seeds "
    "has to say."
)

Values = Mapping[Key, Tensor]
BySeed = dict[Key, list[float]]  # what each seed gives


def difference_rows(runs: Sequence[Run], against: str) -> list[Row]:
    """How far each run is from that of a method with the same seed, and between which bounds.

    Rows `difference:METRIC`, `difference_low:METRIC`, `difference_high:METRIC` and
    `difference_std:METRIC`, of runs on the same data. Each run has its own, so that those of
    several machines add up.

    Args:
        runs: finished ones that have kept their predictions.
        against: the registry key of the method, in its recipe's settings.
    """
    rows: list[Row] = []
    for setting in settings_of(runs):
        lines: dict[Line, dict[int, Run]] = {}
        for run in setting.runs:
            lines.setdefault(line_of(run), {})[run.seed] = run
        if (own := lines.pop(Line(against, ()), None)) is None:
            kinds = choices(against, [run.kind for run in setting.runs])
            raise UserError(f"{setting.name}: no run of '{against}' to compare with; {kinds}")
        for seed, other in own.items():
            same = [found[seed] for found in lines.values() if seed in found]
            known = _resampled(other, setting) if same else {}
            for run in same:
                rows += _rows(run, other, _resampled(run, setting), known)
    return rows


def _rows(run: Run, other: Run, mine: Values, its: Values) -> Iterator[Row]:
    """The rows of a run from the other one, and from the resamples of both."""
    own, others = ({(r.split, r.metric): r.value for r in each.rows()} for each in (run, other))
    for key, values in mine.items():
        split, metric = key
        drawn = values - its[key]
        low, high = metrics.interval(drawn)
        found = {DIFFERENCE: own[key] - others[key], LOW: low, HIGH: high, STD: float(drawn.std())}
        yield from run.make_rows({split: {f"{name}{metric}": v for name, v in found.items()}})


def _resampled(run: Run, setting: Setting) -> Values:
    """By split and metric, what each resample of the test samples gives, (resamples,) each."""
    if not run.has_prediction("iid"):
        raise UserError(
            f"{run.path}: has no predictions, which --against compares; copy its predictions/ as "
            "well, or omit --against"
        )
    splits = setting.splits
    found = {
        (split, metric): values
        for split in ("iid", *splits.shifted)
        for metric, values in _labelled(run, split).items()
    }
    for data, levels in splits.corrupted.items():
        each = [_labelled(run, split) for level in levels.values() for split in level]
        for metric in each[0]:
            found[data, f"c{metric}"] = torch.stack([values[metric] for values in each]).mean(0)
    inside = metrics.detection_scores(run.prediction("iid")[0])
    for split in splits.ood:
        outside = metrics.detection_scores(run.prediction(split)[0])
        for score in SCORES:
            scores = inside[score], outside[score]
            weights = _weights(len(scores[0])), _weights(len(scores[1]), 1)
            found[split, f"auroc:{score}"] = metrics.resampled_auroc(*scores, *weights)
    return found


def _labelled(run: Run, split: str) -> dict[str, Tensor]:
    """NLL and ECE of every resample of a labelled split."""
    prediction, y = run.prediction(split)
    probs, weights = prediction.probs, _weights(len(y))
    truth = probs.gather(1, y[:, None])[:, 0].clamp_min(torch.finfo(torch.float32).tiny)
    return {
        "nll": metrics.resampled_means(-truth.log(), weights),
        "ece": metrics.resampled_ece(probs, y, weights),
    }


@cache
def _weights(num_samples: int, seed: int = 0) -> Tensor:
    """Sets of the same size are taken for versions of the same samples."""
    return metrics.resample_weights(num_samples, NUM_RESAMPLES, seed)


def build_difference_tables(
    settings: Iterable[Setting], rows: Sequence[Row], against: str
) -> list[Table]:
    """For each recipe and data a table of the differences from a method.

    Args:
        settings: the runs that are compared.
        rows: as `difference_rows` gives them for these runs.
        against: the registry key of that method.
    """
    found: dict[tuple[str, str, str], BySeed] = {}
    for row in rows:
        values = found.setdefault(row[:3], {})
        values.setdefault((row.split, row.metric), []).append(row.value)
    tables = [_table(setting, found, against) for setting in settings]
    return [table for table in tables if table.lines]


def _table(setting: Setting, found: Mapping[tuple[str, str, str], BySeed], against: str) -> Table:
    """The table of one setting, from the differences by recipe, method and variant."""
    names = {(r.recipe.name, r.kind, r.variant_text): str(line_of(r).label) for r in setting.runs}
    lines = {label: found[name] for name, label in names.items() if name in found}
    columns, other = _columns(lines.values()), method_name(against)
    return Table(
        name=file_stem(setting.name, "differences"),
        title=readable(f"{setting.name}: differences from {other}"),
        remark=REMARK.format(against=other, number=NUM_RESAMPLES),
        columns=columns,
        lines=tuple(_line(label, values, columns) for label, values in lines.items()),
        role="differences",
    )


def _columns(lines: Iterable[BySeed]) -> tuple[Column, ...]:
    found = dict.fromkeys(key for values in lines for key in values)
    keys = [(split, name) for split, name in found if name.startswith(DIFFERENCE)]
    return tuple(_column((split, name.removeprefix(DIFFERENCE))) for split, name in keys)


def _column(key: Key) -> Column:
    title, better = metric_name(key[1])
    score = key[1].partition(":")[2]
    words = "" if key[0] == "iid" else set_name(key[0]), score and f"by {score}"
    arrow = {"higher": " ↑", "lower": " ↓", None: ""}[better]
    return Column(title + arrow, ", ".join(filter(None, words)), key, better, decimals=4)


def _line(label: str, values: BySeed, columns: Sequence[Column]) -> TableLine:
    seeds = max(map(len, values.values()))
    return TableLine(label, seeds, tuple(_cell(values, *column.key) for column in columns))


def _cell(values: BySeed, split: str, metric: str) -> Cell | None:
    if (split, f"{DIFFERENCE}{metric}") not in values:
        return None
    names = (DIFFERENCE, LOW, HIGH, STD)
    mean, low, high, std = (fmean(values[split, f"{name}{metric}"]) for name in names)
    return Cell(mean, std, best=low > 0 or high < 0)
