"""Predictions of every sample of a source, complete on every process."""

from __future__ import annotations

from collections.abc import Callable

from lightning_fabric import Fabric
from torch import Tensor

from density_softmax.engine.collect import collect
from density_softmax.engine.runtime import derive_seed
from density_softmax.methods.base import Method
from density_softmax.nn.randomness import seeded
from density_softmax.stages import Values
from density_softmax.types import Batch, Prediction, Source

__all__ = ["predict"]


def predict(
    fabric: Fabric,
    method: Method,
    source: Source,
    batch_size: int = 512,
    tick: Callable[[], None] = lambda: None,
    seed: int = 0,
) -> tuple[Prediction, Tensor]:
    """The prediction and the label of every sample, in order, on the CPU; no sample is dropped.

    What a method draws at random follows from `seed`, in each process from its own.
    """
    method.eval()

    def rows(batch: Batch) -> Values:
        return {**method(batch.x)._asdict(), "y": batch.y}

    with seeded(derive_seed(seed, fabric.global_rank), fabric.device):
        found = collect(fabric, source, rows, batch_size, tick=tick)
    labels = found.pop("y")
    return Prediction(**{name: value.float() for name, value in found.items()}), labels
