"""The nouns that every part of the package shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Batch(NamedTuple):
    """What a loss sees: inputs (or cached features) and their labels."""

    x: Tensor
    y: Tensor


class Prediction(NamedTuple):
    """What a method says about a batch, all of it from one forward pass.

    Attributes:
        probs: class probabilities, (batch, classes).
        aleatoric: entropy in nats that more data would not remove, (batch,).
        epistemic: how little is known about the input, higher = less known, (batch,).
    """

    probs: Tensor
    aleatoric: Tensor
    epistemic: Tensor


class Row(NamedTuple):
    """One reported number: every result that the software shows is one of these."""

    recipe: str
    method: str
    variant: str
    seed: int
    split: str
    metric: str
    value: float


class Source(ABC):
    """A data set that can be read by index, in batches, in any order.

    Attributes:
        batch_size: what its owner chose; None leaves it to the stage that reads.
    """

    batch_size: int | None = None

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples."""

    @abstractmethod
    def order(self, seed: int) -> Sequence[int]:
        """The indices of one training epoch; the seed decides their order."""

    def original_index(self, index: int) -> int:
        """Return the index of a sample in its owner's data, as messages name it."""
        return index

    @abstractmethod
    def read(
        self, batches: Sequence[Sequence[int]], device: torch.device, seed: int | None = None
    ) -> Iterator[Batch]:
        """One batch per list of indices, on `device`; a seed turns on training augmentation."""


@dataclass(frozen=True)
class Split:
    """A named set to evaluate on.

    `role` says what may be asked of it: accuracy and calibration of an `iid` or `shift` set,
    detection on an `ood` set, whose labels mean nothing, and pictures of a `surface`.
    """

    name: str
    role: Literal["iid", "shift", "ood", "surface"]
    source: Source


@dataclass(frozen=True)
class Task:
    """What is to be learned, known before any data is seen."""

    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)


@dataclass(frozen=True)
class Data:
    """Everything a run reads: a training set, a slice held out of it, and sets to evaluate on.

    `normalisation` says in plain values how a raw input becomes what a network reads, for those
    who serve a model without this data: `kind` is `images` or `table`, `mean` and `std` are per
    channel or column, and `columns` names the columns of a table. Empty if inputs are used as is.
    `about` is a line that tells a user how the data were read, or nothing.
    """

    task: Task
    train: Source
    heldout: Source
    splits: tuple[Split, ...]
    normalisation: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""


def as_numbers(values: Any) -> Tensor | None:
    """What a user calls numbers as a tensor, or None if they are none.

    Args:
        values: a tensor, an array, or anything that numpy makes one of.
    """
    if isinstance(values, Tensor):
        return values
    # Torch takes neither read-only arrays nor negative strides: such are copied.
    array = np.require(values, requirements=["C", "W"])
    return torch.as_tensor(array) if array.dtype.kind in "biuf" else None
