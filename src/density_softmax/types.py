"""The nouns that every part of the package shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

__all__ = ["Batch", "Prediction", "Row", "Task"]


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


@dataclass(frozen=True)
class Task:
    """What a method may know about the training data before it sees a batch."""

    num_classes: int
    num_train: int
    input_shape: tuple[int, ...]
    class_counts: tuple[int, ...]
    class_names: tuple[str, ...]


class Row(NamedTuple):
    """One reported figure. Every number the software shows is one of these."""

    recipe: str
    method: str
    variant: str
    seed: int
    split: str
    metric: str
    value: float
