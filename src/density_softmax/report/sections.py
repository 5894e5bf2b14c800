"""Which tables there are, and which columns each has, by the role of the data present."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from density_softmax.report.names import metric_name, metric_order
from density_softmax.report.samples import Key
from density_softmax.report.splits import find_detected, role_of_split
from density_softmax.types import Row

__all__ = ["HEADLINE", "Role", "Section", "find_keys", "find_sections", "headline"]

Role = Literal["results", "penalty", "iid", "shift", "ood", "each shift", "cost", "training"]

DETECTION = (
    "AUROC, AUPR and FPR95: OOD is the positive class, the score that detects is named in the "
    "header; AUPR depends on the ratio of the two sets."
)
LATENCY = "Latency relative to ERM with the same encoder, measured in turn with it."
TOTAL = ("cost", "train_seconds")

# The figures to look at first.
HEADLINE = {
    "iid": ("nll", "accuracy", "ece"),
    "shift": ("nll", "accuracy", "ece", "cnll", "caccuracy", "cece"),
    "ood": ("auroc:confidence", "auroc:epistemic", "aupr:confidence", "aupr:epistemic"),
    "cost": ("params", "latency_ratio:1"),
}


@dataclass(frozen=True)
class Section:
    """A table to be: its columns and what it says about them.

    Attributes:
        role: what its data are for; `results` has the headline of all roles.
        name: the end of its file name.
        title: what is compared.
        columns: split and metric of each, with a note for its header.
        remark: what must be known to read it.
    """

    role: Role
    name: str
    title: str
    columns: dict[Key, str]
    remark: str = ""


def find_keys(rows: Sequence[Row]) -> list[Key]:
    """The columns that rows can fill: splits as they come, metrics in their usual order."""
    splits = list(dict.fromkeys(row.split for row in rows))
    keys = dict.fromkeys((row.split, row.metric) for row in rows)
    return sorted(keys, key=lambda key: (splits.index(key[0]), metric_order(key[1])))


def find_sections(keys: Sequence[Key]) -> Iterator[Section]:
    """The headline, then a section for each role and set; every column is in one of these."""
    roles: dict[Role, list[Key]] = {}
    detected = find_detected(keys)
    for key in keys:
        roles.setdefault(_role(key, detected), []).append(key)
    yield from _results(keys)
    if "iid" in roles:
        yield Section("iid", "iid", "in-domain test set", dict.fromkeys(roles["iid"], ""))
    yield from _shifts(roles.get("shift", []))
    yield from _ood(roles.get("ood", []))
    yield from _each_shift(roles.get("each shift", []))
    if "cost" in roles:
        total = [TOTAL] if TOTAL in roles.get("training", []) else []
        columns = {key: _note(key) for key in [*roles["cost"], *total]}
        title = "cost of prediction and of training" if total else "cost of prediction"
        yield Section("cost", "cost", title, columns, LATENCY)
    if "training" in roles:
        columns = {key: _note(key) for key in roles["training"]}
        yield Section("training", "training", "cost of training by stage", columns)


def headline(keys: Sequence[Key], wanted: Sequence[str]) -> dict[Key, str]:
    """The columns to look at first of these roles; sets other than the in-domain one are named."""
    detected, columns = find_detected(keys), {}
    for role in HEADLINE:
        for key in keys:
            if role in wanted and _role(key, detected) == role and key[1] in HEADLINE[role]:
                place = key[0] if role in ("shift", "ood") else ""
                columns[key] = ", ".join(filter(None, (place, _note(key))))
    return columns


def _role(key: Key, detected: set[str]) -> Role:
    split, metric = key
    if split == "cost" and metric.startswith(("train_seconds", "peak_memory")):
        return "training"
    return role_of_split(split, detected)


def _results(keys: Sequence[Key]) -> Iterator[Section]:
    columns = headline(keys, tuple(HEADLINE))
    if columns:
        detects = any(metric.startswith(("auroc:", "aupr:")) for _, metric in columns)
        yield Section("results", "results", "results", columns, DETECTION if detects else "")


def _shifts(keys: Sequence[Key]) -> Iterator[Section]:
    for split in dict.fromkeys(split for split, _ in keys):
        columns = {key: "" for key in keys if key[0] == split}
        means = any(metric == "cnll" for _, metric in columns)
        title = f"mean over the shifts of {split}" if means else f"shifted set {split}"
        yield Section("shift", f"shift-{split}", title, columns)


def _ood(keys: Sequence[Key]) -> Iterator[Section]:
    for split in dict.fromkeys(split for split, _ in keys):
        columns = {key: _note(key) for key in keys if key[0] == split}
        title = f"detection of {split} as out-of-distribution (OOD)"
        yield Section("ood", f"ood-{split}", title, columns, DETECTION)


def _each_shift(keys: Sequence[Key]) -> Iterator[Section]:
    """Splits `<set>/<type>/<severity>`: a section for each set and metric."""
    groups: dict[Key, dict[Key, str]] = {}
    for split, metric in keys:
        data, _, shift = split.partition("/")
        groups.setdefault((data, metric), {})[split, metric] = shift.replace("/", " ")
    for (data, metric), columns in groups.items():
        title = f"{metric_name(metric).title} on each shift of {data}"
        yield Section("each shift", f"shift-{data}-{metric}", title, columns)


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
