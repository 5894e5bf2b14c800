"""The training story of a method as data: stages that the engine runs one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from torch import Tensor, nn

from density_softmax.optimization import Descent
from density_softmax.types import Batch

__all__ = ["Estimate", "Stage", "Train", "Values", "on_columns"]

T = TypeVar("T")
Values = Mapping[str, Tensor]


@dataclass(frozen=True)
class Estimate:
    """One gradient-free pass over sufficient statistics, in evaluation mode.

    Attributes:
        name: what progress bars, checkpoints and rows call the stage.
        statistics: what one batch contributes.
        finish: receives the statistics of the whole split and writes buffers.
        reduce: `sum` adds the contributions; `concat` keeps a row per sample, in order.
        on: `features` reads the encoder's cached outputs in place of inputs.
        split: which data it reads.
        limit: how many samples at most, drawn at random by the run's seed; null reads all.
    """

    name: str
    statistics: Callable[[Batch], Values]
    finish: Callable[[Values], None]
    reduce: Literal["sum", "concat"] = "sum"
    on: Literal["inputs", "features"] = "inputs"
    split: Literal["train", "heldout"] = "train"
    limit: int | None = None


@dataclass(frozen=True)
class Train:
    """Gradient descent on `loss` over `parameters`; everything else stays as it is.

    Attributes:
        name: what progress bars, checkpoints and rows call the stage.
        loss: mean loss of a batch; a bound method, so that it sees the method's parts.
        parameters: what may change, except those frozen before the run. Parts without a trained
            parameter are in evaluation mode.
        descent: how long and with which optimizer.
        on: `features` reads the encoder's cached outputs in place of inputs.
        split: which data it learns from.
        monitor: per-sample values, averaged over the held-out slice after every epoch. The
            first of them, lower = better, decides when a descent with patience stops.
        after_step: estimated after each step from the batch just learned, over all processes.
    """

    name: str
    loss: Callable[[Batch], Tensor]
    parameters: Sequence[nn.Parameter]
    descent: Descent
    on: Literal["inputs", "features"] = "inputs"
    split: Literal["train", "heldout"] = "train"
    monitor: Callable[[Batch], Values] | None = None
    after_step: Estimate | None = None


Stage = Train | Estimate


def on_columns(stage: Stage, columns: slice) -> Stage:
    """The same stage on features, seeing only some of their columns."""

    def seeing(function: Callable[[Batch], T]) -> Callable[[Batch], T]:
        return lambda batch: function(Batch(batch.x[:, columns], batch.y))

    if isinstance(stage, Estimate):
        return replace(stage, statistics=seeing(stage.statistics))
    monitor = None if stage.monitor is None else seeing(stage.monitor)
    return replace(stage, loss=seeing(stage.loss), monitor=monitor)
