"""What methods, variants and metrics are called where people read them, and in which order."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

__all__ = [
    "DENSITIES",
    "Better",
    "MetricName",
    "break_lines",
    "changed_part",
    "file_stem",
    "fit_labels",
    "line_name",
    "line_order",
    "method_name",
    "metric_name",
    "metric_order",
    "setting_name",
    "split_variant",
    "variant_of_data",
    "variant_of_line",
]

Better = Literal["higher", "lower"]

# File systems allow 255 bytes; a variant may be longer.
LONGEST_STEM = 150

# In the order of the tables: the classifier that all are compared to, its controls, the others.
METHODS = {
    "deterministic": "ERM",
    "temperature_scaling": "ERM + temperature scaling",
    "constant_temperature": "ERM + penalty + constant temperature",
    "mc_dropout": "MC Dropout",
    "mean_field": "Mean-Field VI",
    "rank1_bnn": "Rank-1 BNN",
    "posterior_network": "Posterior Network",
    "natural_posterior_network": "Natural Posterior Network",
    "heteroscedastic": "Heteroscedastic",
    "sngp": "SNGP",
    "mimo": "MIMO",
    "duq": "DUQ",
    "ddu": "DDU",
    "due": "DUE",
    "batch_ensemble": "BatchEnsemble",
    "deep_ensemble": "Deep Ensemble",
    "density_softmax": "Density-Softmax",
}

# Methods whose epistemic uncertainty is minus the logarithm of a density, and of which.
DENSITIES = {
    "posterior_network": "log Σ N p(u | c)",
    "natural_posterior_network": "log N p(u)",
    "ddu": "log p(z)",
    "density_softmax": "log p(z)",
}


class MetricName(NamedTuple):
    """A metric in a header: its usual name, and which direction is better (None: neither)."""

    title: str
    better: Better | None


METRICS = {
    "nll": MetricName("NLL", "lower"),
    "accuracy": MetricName("Accuracy", "higher"),
    "ece": MetricName("ECE", "lower"),
    "mece": MetricName("mECE", "lower"),
    "brier": MetricName("Brier", "lower"),
    "aurc": MetricName("AURC", "lower"),
    "auroc": MetricName("AUROC", "higher"),
    "aupr": MetricName("AUPR", "higher"),
    "fpr95": MetricName("FPR95", "lower"),
    "confidence": MetricName("Confidence", None),
    "params": MetricName("Parameters", "lower"),
    "latency_ratio": MetricName("Latency", "lower"),
    "latency_spread": MetricName("Spread", None),
    "train_seconds": MetricName("Training s", "lower"),
    "peak_memory": MetricName("Peak MB", "lower"),
}


def method_name(method: str) -> str:
    """A method's usual name; unknown ones in title case."""
    return METHODS.get(method) or method.replace("_", " ").title()


def line_name(method: str, variant: str) -> str:
    """A method and how it deviates from its recipe, if it does."""
    name = method_name(method)
    return name if variant == "default" else f"{name} ({variant})"


def line_order(method: str, variant: str) -> tuple[int, str, bool, str]:
    """Sorts methods as in `METHODS`, unknown ones last, each followed by its variants."""
    known = list(METHODS)
    place = known.index(method) if method in known else len(known)
    return place, method, variant != "default", variant


def split_variant(variant: str) -> list[str]:
    """The `path=value` assignments of a variant; none if it is `default`."""
    # A comma may also stand inside a value such as [1, 2]: only one before a path divides.
    return [] if variant == "default" else re.split(r", (?=[A-Za-z_][\w.]*=)", variant)


def changed_part(assignment: str) -> str:
    """The first name of a path: `data` of `data.shape=two_ovals`, and of `data=images`."""
    return re.split(r"[.=]", assignment)[0]


def variant_of_data(variant: str) -> str:
    """The part of a variant that changes the data, empty if there is none."""
    return ", ".join(a for a in split_variant(variant) if changed_part(a) == "data")


def variant_of_line(variant: str) -> str:
    """The rest of a variant, `default` if there is none."""
    rest = [a for a in split_variant(variant) if changed_part(a) != "data"]
    return ", ".join(rest) or "default"


def setting_name(recipe: str, variant_of_data: str) -> str:
    """A recipe and how its data deviate, if they do: figures compare within, not across.

    Data of another kind that must be set whole are JSON, of which the signs go without saying.
    """
    changes = [a.removeprefix("data.") for a in split_variant(variant_of_data or "default")]
    shown = [re.sub(r'"kind": |[{}"]', "", a) if a.startswith("data={") else a for a in changes]
    return f"{recipe} ({', '.join(shown)})" if shown else recipe


def file_stem(*words: str) -> str:
    """The words as a file name without ending; what is too long for one ends in a checksum."""
    stem = re.sub(r"[^\w.]+", "-", " ".join(words)).strip("-.")
    if len(stem) > LONGEST_STEM:
        stem = f"{stem[:LONGEST_STEM]}-{hashlib.sha256(stem.encode()).hexdigest()[:8]}"
    return stem


def fit_labels(labels: Sequence[str], num_letters: int) -> list[str]:
    """The labels with at most so many letters; dots stand for what is left out.

    In a variant that is too long, what the fewest others have is named first.
    """
    long = [label for label in labels if len(label) > num_letters]
    common = Counter(change for label in long for change in _changes(label))
    shown = []
    for label in labels:
        if label in long and (changes := _changes(label)):
            name = label.partition(" (")[0]
            label = f"{name} ({', '.join(sorted(changes, key=common.__getitem__))})"
        shown.append(label if len(label) <= num_letters else f"{label[: num_letters - 1]}…")
    return shown


def _changes(label: str) -> list[str]:
    """The assignments of a variant in the label of a line."""
    return split_variant(label.partition(" (")[2].removesuffix(")") or "default")


def break_lines(label: str, num_letters: int) -> list[str]:
    """A label in lines of at most so many letters; long words break after `=`, `.` and `_`.

    A point inside a number does not break it.
    """
    pieces: list[str] = []
    for word in re.findall(r"\S+ ?", label):
        fits = len(word.rstrip()) <= num_letters
        pieces += [word] if fits else re.findall(r"(?:[^=._]|(?<=\d)\.(?=\d))*[=._]?", word)
    lines = [""]
    for piece in pieces:
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > num_letters:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines if line]


def metric_name(metric: str) -> MetricName:
    """What a header calls the metric of a row; what follows its colon is left to notes."""
    name = metric.partition(":")[0]
    if name in METRICS:
        return METRICS[name]
    if name[:1] == "c" and name[1:] in METRICS:  # a mean over shifts
        title, better = METRICS[name[1:]]
        return MetricName(f"c{title}", better)
    return MetricName(name, None)


def metric_order(metric: str) -> int:
    """Sorts metrics as in `METRICS`, means over shifts like what they are means of."""
    name, known = metric.partition(":")[0], list(METRICS)
    name = name if name in METRICS else name[1:]
    return known.index(name) if name in METRICS else len(known)
