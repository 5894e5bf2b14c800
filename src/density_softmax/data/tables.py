"""A user's own tables: .csv files, and .npz files of feature vectors.

The first line of a .csv file names the columns. One of them is the label, a string or a number;
the others are numbers. Files to evaluate on are matched to the training file by column names, and
an OOD file needs no label. An .npz file holds `x` (rows, features) and `y`, or `x_train, y_train,
x_test, y_test`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from density_softmax.data.readers import (
    array_subsets,
    class_order,
    label_texts,
    load_npz,
    refuse_missing_labels,
)
from density_softmax.data.sources import (
    ArraySource,
    DataConfig,
    checked_splits,
    hold_out_by_class,
)
from density_softmax.errors import DataError, choices
from density_softmax.files import regular_file
from density_softmax.files.arrays import ArrayHeader
from density_softmax.files.tables import CsvTable, as_number, listed, open_csv
from density_softmax.types import Data, Split, Task

# What a table may be kept in.
SUFFIXES = (".csv", ".npz")
# Names of a column, in any case, that is the label if none is named.
LABELS = ("label", "target", "class", "y")


class Standardization(NamedTuple):
    """(x − mean)/std of every feature, with moments in float64."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Standardization:
        """Compute it from rows in float64; a constant feature is not scaled."""
        std = x.std(dim=0, correction=0)
        # Rounding of the mean can give a constant feature a tiny deviation.
        varies = (x.amax(dim=0) > x.amin(dim=0)) & (std > 0)
        return cls(x.mean(dim=0), torch.where(varies, std, torch.ones_like(std)))

    def __call__(self, x: Tensor) -> Tensor:
        """Return standardised features in float32."""
        # Converted last: float32 resolves a timestamp of today to two minutes only.
        return ((x.double() - self.mean) / self.std).float()


class Columns(NamedTuple):
    """The names of the features, and of the label."""

    features: tuple[str, ...]
    label: str


class Rows(NamedTuple):
    """Feature vectors with their labels.

    Attributes:
        file: that they are from.
        columns: the names of their columns.
        x: float64, (rows, features).
        labels: one per row; None if there are none.
    """

    file: Path
    columns: Columns
    x: Tensor
    labels: tuple[str, ...] | None

    def take(self, indices: Tensor) -> Rows:
        """Return the rows with these indices."""
        labels = self.labels and tuple(self.labels[index] for index in indices.tolist())
        return self._replace(x=self.x[indices], labels=labels)

    def split(self, name: str, fraction: float, seed: int) -> tuple[Rows, Rows]:
        """Return the rows without, and those with, a stratified share; `name` is its setting."""
        if not 0 < fraction < 1:
            raise DataError(f"{self.file}: {name}={fraction}: choose a fraction between 0 and 1")
        _, y = np.unique(np.array(self.labels), return_inverse=True)
        kept, taken = hold_out_by_class(y, fraction, seed)
        if not len(taken):
            raise DataError(
                f"{self.file}: no value of the label '{self.columns.label}' occurs twice; "
                "name another column with --set data.label=NAME, or add rows"
            )
        return self.take(torch.from_numpy(kept)), self.take(torch.from_numpy(taken))

    def source(self, task: Task, prepare: Standardization, labelled: bool = True) -> ArraySource:
        """Return a source of these rows, with labels of the task or with none."""
        if not labelled:
            return ArraySource(prepare(self.x), torch.full((len(self.x),), -1))
        if self.labels is None:
            raise DataError(f"{self.file}: no column '{self.columns.label}'; list it under ood")
        index = {name: label for label, name in enumerate(task.class_names)}
        if unknown := set(self.labels) - set(index):
            raise DataError(
                f"{self.file}: label '{min(unknown)}' is not one of the training set; "
                f"there are: {', '.join(task.class_names)}"
            )
        y = torch.tensor([index[label] for label in self.labels])
        return ArraySource(prepare(self.x), y)


@final
@dataclass(frozen=True)
class Table(DataConfig, kind="table"):
    """Feature vectors from files, standardised with the moments of the training rows.

    Attributes:
        train: the file to learn from.
        test: the file for the split `iid`; null takes the test rows of an .npz file, or
            `test_fraction` of the training rows.
        shifts: files of the same classes under other conditions.
        ood: files of anything else; their labels are not used.
        label: name of the label column; null takes the one called label, target, class or y, or
            else the last.
        heldout: share of the training rows kept for calibration, chosen by the seed, stratified.
            With 0 all rows train, for methods without a stage that reads held-out data.
        test_fraction: share that becomes `iid`, stratified; the same rows for every seed.
    """

    train: str
    test: str | None = None
    shifts: tuple[str, ...] = ()
    ood: tuple[str, ...] = ()
    label: str | None = None
    heldout: float = 0.2
    test_fraction: float = 0.2

    def load(self, seed: int) -> Data:
        """Load training and held-out rows, and the test, shifted and OOD tables."""
        available, test = self._in_domain()
        task = Task(class_order(available.labels or ()), (len(available.columns.features),))
        train, heldout = available, available.take(torch.arange(0))
        if self.heldout != 0:
            train, heldout = available.split("heldout", self.heldout, seed)
        prepare = Standardization.of(train.x)
        return Data(
            task=task,
            train=train.source(task, prepare),
            heldout=heldout.source(task, prepare) if len(heldout.x) else None,
            splits=checked_splits(
                Split("iid", "iid", test.source(task, prepare)),
                *_splits(self.shifts, "shift", train.columns, task, prepare),
                *_splits(self.ood, "ood", train.columns, task, prepare),
            ),
            normalisation={
                "kind": "table",
                "columns": train.columns.features,
                "mean": prepare.mean.tolist(),
                "std": prepare.std.tolist(),
            },
            about=f"{self.train}: label '{train.columns.label}' with {task.num_classes} classes, "
            f"{len(train.columns.features)} features; {len(train.x)} rows to train on, "
            f"{len(heldout.x)} held out, {len(test.x)} to test on",
        )

    def _in_domain(self) -> tuple[Rows, Rows]:
        if not self.train:
            raise DataError("no table to train on: name it with --set data.train=FILE.csv")
        subsets = read_table(Path(self.train), self.label)
        train = subsets.get("train") or subsets["all"]
        if len(names := class_order(train.labels or ())) < 2:
            raise DataError(f"{self.train}: classes {names}; training needs two")
        if self.test is not None:
            return train, _to_evaluate(self.test, train.columns)
        if "test" in subsets:
            return train, subsets["test"]
        return train.split("test_fraction", self.test_fraction, 0)


def read_table(
    path: Path, label: str | None = None, like: Columns | None = None
) -> dict[str, Rows]:
    """Read a table: `train` and `test` of an .npz file that has them, otherwise `all`.

    Args:
        path: a .csv or .npz file.
        label: the label column of a training file; None takes the one that looks like it.
        like: the columns of the training file, for a file to evaluate on.
    """
    path = regular_file(path.expanduser())
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path}: a table is a .csv or an .npz file")
    is_csv = path.suffix.lower() == ".csv"
    return _read_csv(path, label, like) if is_csv else _read_npz(path, like)


def _splits(
    files: Sequence[str],
    role: Literal["shift", "ood"],
    columns: Columns,
    task: Task,
    prepare: Standardization,
) -> Iterator[Split]:
    for file in files:
        source = _to_evaluate(file, columns).source(task, prepare, labelled=role == "shift")
        yield Split(Path(file).stem, role, source)


def _to_evaluate(file: str, columns: Columns) -> Rows:
    subsets = read_table(Path(file), columns.label, columns)
    return subsets["test"] if "test" in subsets else subsets["all"]


def _read_npz(path: Path, like: Columns | None) -> dict[str, Rows]:
    def check(name: str, header: ArrayHeader) -> None:
        if len(header.shape) != 2 or header.dtype.kind not in "iuf":
            raise DataError(
                f"{path}: {name} is {header.dtype} of shape {header.shape}; a table needs "
                "numbers of shape (rows, features)"
            )
        _check_width(path, header.shape[1], like)

    arrays = load_npz(path, check)
    subsets = {}
    for subset in array_subsets(arrays, path):
        suffix = "" if subset == "all" else f"_{subset}"
        x, y = arrays[f"x{suffix}"], arrays.get(f"y{suffix}")
        if len(bad := np.argwhere(~np.isfinite(x))):
            row, column = bad[0].tolist()
            raise DataError(
                f"{path}: x{suffix} holds {x[row, column]} in row {row}, column {column}; a table "
                "needs finite numbers: fill or drop missing values"
            )
        columns = Columns(tuple(map(str, range(x.shape[1]))), "y")
        labels = None if y is None else list(map(str, y))
        if y is not None and like is None:  # to train on; of OOD files labels are not used
            labels = label_texts(y, f"y{suffix}", path)
        subsets[subset] = _rows(path, columns, x, labels)
    return subsets


def _read_csv(path: Path, label: str | None, like: Columns | None) -> dict[str, Rows]:
    with open_csv(path) as table:
        header, training = _checked_header(table), like is None
        if like is None:
            label = label if label is not None else _label_of(header)
            _column(header, label, path)
            like = Columns(tuple(name for name in header if name != label), label)
        numeric = [_column(header, name, path) for name in like.features]
        column = header.index(like.label) if like.label in header else None
        x, labels, lines = [], [], []
        for row in table.rows(numeric):
            if row.problem:
                raise DataError(
                    f"{path}: {row.problem}; encode categories as numbers, and correct or drop "
                    "this row"
                )
            x.append(row.numbers)
            lines.append(f"line {row.line}")
            labels.append("" if column is None else row.cells[column].strip())
    if not x:
        raise DataError(f"{path}: needs a line of column names and at least one row")
    if training:
        refuse_missing_labels(labels, lines, path)
        _refuse_other_encodings([*header, *labels], path)
    return {"all": _rows(path, like, np.array(x), None if column is None else labels)}


def _checked_header(table: CsvTable) -> list[str]:
    header = table.header
    if len(header) < 2 or not any(math.isnan(as_number(name)) for name in header[:-1]):
        raise DataError(
            f"{table.path}: line 1 is '{listed(header)}'; it must name the columns, two or more"
            f"{table.hint}"
        )
    return header


def _refuse_other_encodings(texts: Sequence[str], path: Path) -> None:
    """Refuse names of columns and classes that are not UTF-8."""
    for text in dict.fromkeys(texts):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise DataError(f"{path}: {listed([text])} is not in UTF-8; save the file as UTF-8")


def _label_of(header: Sequence[str]) -> str:
    """Return the column that is named like a label, or the last; beside an x, y is a feature."""
    names = {name.lower(): name for name in reversed(header)}
    known = LABELS[:-1] if "x" in names else LABELS
    return next((names[name] for name in known if name in names), header[-1])


def _column(header: Sequence[str], name: str, path: Path) -> int:
    if header.count(name) != 1:
        found = "no column" if name not in header else "several columns"
        raise DataError(f"{path}: {found} '{name}'; {choices(name, header)}")
    return header.index(name)


def _check_width(path: Path, width: int, like: Columns | None) -> None:
    if like is not None and width != len(like.features):
        raise DataError(
            f"{path}: shape {(width,)}, but the training rows have {(len(like.features),)}"
        )


def _rows(path: Path, columns: Columns, x: NDArray[Any], labels: list[str] | None) -> Rows:
    features = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64))
    return Rows(path, columns, features, None if labels is None else tuple(labels))
