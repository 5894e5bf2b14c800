"""What methods, metrics and splits are called where people read them, and in which order."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, count, pairwise
from typing import Any, Literal, NamedTuple, TypeVar

from density_softmax.files import short_name
from density_softmax.methods import MethodConfig

T = TypeVar("T")
Better = Literal["higher", "lower"]

# What stands where a name has no letter to show.
NAMELESS = "(no name)"


class MetricName(NamedTuple):
    """A metric in a header: its usual name, and which direction is better (None: neither)."""

    title: str
    better: Better | None


_METRICS = {
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
    "oracle_share": MetricName("Share of the way", "higher"),
    "params": MetricName("Parameters", "lower"),
    "stored_bytes": MetricName("Stored", "lower"),
    "latency_ratio": MetricName("Latency", "lower"),
    "latency_spread": MetricName("Spread", None),
    "train_seconds": MetricName("Training s", "lower"),
    "peak_memory": MetricName("Peak MB", "lower"),
}


class Label(str):
    """A method with its changes in parentheses, which `fit_labels` can abbreviate.

    Args:
        name: the method's usual name.
        changes: how it deviates from its recipe, each a printed `path=value`.
    """

    name: str
    changes: tuple[str, ...]

    def __new__(cls, name: str, changes: Sequence[str] = ()) -> Label:
        """The text is `name (change, change)`, or the name alone."""
        label = super().__new__(cls, f"{name} ({', '.join(changes)})" if changes else name)
        label.name, label.changes = name, tuple(changes)
        return label


def method_name(kind: str) -> str:
    """A method's usual name.

    Args:
        kind: the method's registry key.
    """
    return MethodConfig.members[kind].title


def method_order(kind: str) -> tuple[int, str]:
    """A key that sorts methods as in the tables.

    Args:
        kind: the method's registry key.
    """
    return MethodConfig.members[kind].rank, kind


def control_of(kind: str) -> str:
    """The method that has the same network but no density; empty if there is none.

    Args:
        kind: the method's registry key.
    """
    members = MethodConfig.members.items()
    return next((each for each, config in members if config.control_for == kind), "")


def metric_name(metric: str) -> MetricName:
    """What a header calls the metric of a row.

    Args:
        metric: as in rows; what follows its colon is ignored.
    """
    name = metric.partition(":")[0]
    if name in _METRICS:
        return _METRICS[name]
    if name[:1] == "c" and name[1:] in _METRICS:  # a mean over shifts
        title, better = _METRICS[name[1:]]
        return MetricName(f"c{title}", better)
    return MetricName(readable(name), None)


def metric_order(metric: str) -> int:
    """A key that sorts metrics as in the tables, means over shifts like what they are means of.

    Args:
        metric: as in rows.
    """
    name, known = metric.partition(":")[0], list(_METRICS)
    name = name if name in _METRICS else name[1:]
    return known.index(name) if name in _METRICS else len(known)


def setting_name(recipe: str, changed: Mapping[str, Any]) -> str:
    """A recipe and how its data and engine deviate: results are compared within a setting.

    Args:
        recipe: its name.
        changed: by path, such as `data.shape` or `engine.precision`, the values that were changed.
    """
    changes = [f"{path.partition('.')[2] or path}={_words(v)}" for path, v in changed.items()]
    return readable(f"{recipe} ({', '.join(changes)})" if changes else recipe)


def split_name(split: str) -> str:
    """A split in words: `cifar10-c/glass_blur/3` is `cifar10-c, glass blur 3`.

    Args:
        split: as in rows.
    """
    data, _, rest = split.partition("/")
    kind = readable(rest.replace("_", " ").replace("/", " "))
    words = f"{set_name(data)}, {kind}" if rest else set_name(data)
    return "in-domain" if split == "iid" else words


def readable(text: str) -> str:
    """The text on one line, in the order in which it is written.

    A name may hold line breaks, control characters, signs that turn the direction of what follows,
    and bytes that are no text.

    Args:
        text: any name.
    """
    return "".join(sign if sign.isprintable() else " " for sign in text)


def set_name(name: str) -> str:
    """What a data set is called where people read it.

    Args:
        name: as in rows.
    """
    return readable(name) if readable(name).strip() else NAMELESS


def heading(title: str) -> str:
    """The title with a capital letter, unless it begins with an identifier such as cifar100_small.

    Args:
        title: of a table or of a part of a page.
    """
    first = title.partition(" ")[0].removesuffix(":")
    return title[:1].upper() + title[1:] if first.isalpha() else title


def file_stem(*words: str) -> str:
    """The words as a file name without ending; one that is too long ends in a checksum.

    Different words may give the same name: see `distinct_stem`.

    Args:
        words: in their order.
    """
    folded = re.sub(r"[^\w.]+", "-", unicodedata.normalize("NFC", " ".join(words)))
    return short_name(folded.strip("-."))


def distinct_stem(stem: str, taken: set[str]) -> str:
    """The file name with a number behind it if another has it, whether in capitals or not.

    Args:
        stem: a file name without ending.
        taken: names that are there, to which this one is added.
    """
    numbers = (f"-{n}" for n in count(2))
    found = next(f"{stem}{end}" for end in chain([""], numbers) if _folded(stem + end) not in taken)
    taken.add(_folded(found))
    return found


def fit_labels(labels: Sequence[str], num_letters: int) -> list[str]:
    """The labels cut to a length; an ellipsis stands for what is left out.

    A label that is too long names first those of its changes that the fewest others have. Labels
    that would look the same are cut in the middle.

    Args:
        labels: each a `Label` or any other text.
        num_letters: the most letters of a label.
    """
    long = [label for label in labels if len(label) > num_letters]
    common = Counter(c for label in long if isinstance(label, Label) for c in label.changes)
    shown = []
    for label in labels:
        if len(label) > num_letters and isinstance(label, Label):
            label = Label(label.name, sorted(label.changes, key=common.__getitem__))
        shown.append(label)
    cut = [each if len(each) <= num_letters else f"{each[: num_letters - 1]}…" for each in shown]
    ends = [each[len(each) - (num_letters - 1) // 2 :] for each in shown]
    heads = [each[: num_letters // 2] for each in shown]
    alike = Counter(dict(zip(labels, cut, strict=True)).values())
    return [
        short if alike[short] == 1 or len(whole) <= num_letters else f"{head}…{end}"
        for whole, short, head, end in zip(shown, cut, heads, ends, strict=True)
    ]


def break_lines(label: str, num_letters: int) -> list[str]:
    """A label in lines; long words break after `=`, `.` and `_`, but not inside a number.

    What has no such sign breaks anywhere.

    Args:
        label: any text.
        num_letters: the most letters of a line.
    """
    pieces: list[str] = []
    for word in re.findall(r"\S+ ?", label):
        fits = len(word.rstrip()) <= num_letters
        parts = [word] if fits else re.findall(r"(?:[^=._]|(?<=\d)\.(?=\d))*[=._]?", word)
        for part in parts:
            pieces += re.findall(f".{{1,{num_letters}}} ?", part)
    lines = [""]
    for piece in pieces:
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > num_letters:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines if line]


def divide(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """The items in groups of nearly equal size.

    Args:
        items: in their order.
        most: the most items of a group.
    """
    num_groups = max(1, math.ceil(len(items) / most))
    bounds = [round(n * len(items) / num_groups) for n in range(num_groups + 1)]
    return [items[a:b] for a, b in pairwise(bounds)]


def with_reference(items: Sequence[T], most: int = 8) -> list[list[T]]:
    """Groups for one panel each: the first item, to compare with, and some of the others.

    Args:
        items: in their order.
        most: the most items of a group.
    """
    if len(items) <= 1:
        return [list(items)]
    return [[items[0], *others] for others in divide(items[1:], most - 1)]


def _folded(stem: str) -> str:
    """What file systems may take for the same name."""
    return unicodedata.normalize("NFC", stem).casefold()


def _words(value: Any) -> str:
    """A JSON value without its brackets and quotes."""
    if isinstance(value, Mapping):
        entries = ((k, _words(v)) for k, v in value.items())
        return ", ".join(v if k == "kind" else f"{k}: {v}" for k, v in entries)
    if isinstance(value, list):
        return f"[{', '.join(map(_words, value))}]"
    return value if isinstance(value, str) else json.dumps(value)
