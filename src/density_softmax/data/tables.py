"""A user's own tables: .csv files, and .npz files of feature vectors.

The first line of a .csv file names the columns. One of them is the label, a string or a number;
the others are numbers. Files to evaluate on are matched to the training file by column names, and
an OOD file needs no label. An .npz file holds `x` (rows, features) and `y`, or `x_train, y_train,
x_test, y_test`.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from density_softmax.data.base import DataConfig
from density_softmax.data.files import DataError, load_npz, require
from density_softmax.data.image_data import check_split_names, split_off
from density_softmax.data.own import array_parts, class_order
from density_softmax.data.sources import ArraySource, Preparation
from density_softmax.types import Data, Split, Task

__all__ = ["Rows", "Standardization", "Table", "read_rows"]


@final
class Standardization(Preparation):
    """(x − mean)/std of every feature."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        self.mean, self.std = mean, std

    def draw(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """Nothing is random."""
        return torch.empty(num_samples, 0)

    def __call__(self, x: Tensor, draws: Tensor | None) -> Tensor:
        """Standardised features."""
        return (x - self.mean.to(x.device)) / self.std.to(x.device)


class Rows(NamedTuple):
    """Feature vectors with their labels.

    Attributes:
        columns: names of the features.
        x: (rows, features), float32.
        labels: one per row; None if there are none.
    """

    columns: tuple[str, ...]
    x: Tensor
    labels: tuple[str, ...] | None

    def take(self, rows: Tensor) -> Rows:
        """The rows at these places."""
        labels = self.labels and tuple(self.labels[row] for row in rows.tolist())
        return Rows(self.columns, self.x[rows], labels)


@final
@dataclass(frozen=True)
class Table(DataConfig, kind="table"):
    """Feature vectors from files.

    Attributes:
        train: the file to learn from.
        test: the file for the split `iid`; null takes the test part of an .npz file, or
            `test_fraction` of the training rows.
        shifts: files of the same classes under other conditions.
        ood: files of anything else; their labels are not used.
        label: name of the label column; null takes the last.
        heldout: share of the training rows kept for calibration, chosen by the seed.
        test_fraction: the same rows for every seed.
    """

    train: str
    test: str | None = None
    shifts: tuple[str, ...] = ()
    ood: tuple[str, ...] = ()
    label: str | None = None
    heldout: float = 0.2
    test_fraction: float = 0.2

    def load(self, seed: int) -> Data:
        """Training and held-out rows, and the test, shifted and OOD tables."""
        train, test = self._in_domain()
        assert train.labels is not None
        task = Task(class_order(train.labels), (len(train.columns),))
        if task.num_classes < 2:
            raise DataError(f"{self.train}: one class only, {task.class_names}; training needs two")
        kept, heldout = split_off(len(train.x), self.heldout, seed, self.train)
        prepare = _standardization(train.x[kept])
        shifts = [self._split(path, "shift", train.columns, task, prepare) for path in self.shifts]
        ood = [self._split(path, "ood", train.columns, task, prepare) for path in self.ood]
        iid = Split("iid", "iid", _source(test, task, prepare, self.test or self.train))
        return Data(
            task=task,
            train=_source(train.take(kept), task, prepare, self.train),
            heldout=_source(train.take(heldout), task, prepare, self.train),
            splits=check_split_names([iid, *shifts, *ood]),
        )

    def _in_domain(self) -> tuple[Rows, Rows]:
        train = _labelled(read_rows(Path(self.train), self.label, part="train"), self.train)
        if self.test is not None:
            test = read_rows(Path(self.test), self.label, train.columns)
            return train, _labelled(test, self.test)
        if Path(self.train).suffix == ".npz":
            test = read_rows(Path(self.train), self.label)
            if len(test.x) != len(train.x) or not torch.equal(test.x, train.x):
                return train, _labelled(test, self.train)
        kept, tested = split_off(len(train.x), self.test_fraction, 0, self.train)
        return train.take(kept), train.take(tested)

    def _split(
        self,
        file: str,
        role: Literal["shift", "ood"],
        columns: tuple[str, ...],
        task: Task,
        prepare: Standardization,
    ) -> Split:
        rows = read_rows(Path(file), self.label, columns)
        return Split(Path(file).stem, role, _source(rows, task, prepare, file, role))
