"""How a method is trained, as data: stages, descents, optimizers and schedules."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from density_softmax.config import ConfigError, Family, at_least
from density_softmax.types import Batch

# Batches are made no smaller than this for `min_batches`.
SMALL_BATCH = 32


class Optimizer(Family, ABC):
    """The family of optimizers."""

    @abstractmethod
    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The torch optimizer over `parameters`."""


@dataclass(frozen=True)
class Adam(Optimizer, kind="adam"):
    """Kingma & Ba 2015."""

    lr: float = 1e-3
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        at_least(self, lr=0, weight_decay=0)

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The torch optimizer over `parameters`."""
        parameters = list(parameters)
        return torch.optim.Adam(
            parameters, lr=self.lr, weight_decay=self.weight_decay, fused=_on_cpu(parameters)
        )


@dataclass(frozen=True)
class SGD(Optimizer, kind="sgd"):
    """Stochastic gradient descent with Nesterov momentum.

    `weight_decay` is torch's: the gradient of ½·wd·‖w‖². A Keras `l2` is half of it.
    """

    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        at_least(self, lr=0, momentum=0, weight_decay=0)
        if self.nesterov and not self.momentum:
            raise ConfigError("momentum=0: choose more than 0, or nesterov=false")

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The torch optimizer over `parameters`."""
        parameters = list(parameters)
        return torch.optim.SGD(
            parameters,
            lr=self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            fused=_on_cpu(parameters),
        )


def _on_cpu(parameters: Sequence[nn.Parameter]) -> bool | None:
    """True on a CPU, where the fused update halves the time of a small step; else torch's choice.

    On accelerators torch batches updates by itself, and fused ones cannot be clipped under fp16.
    """
    return all(parameter.device.type == "cpu" for parameter in parameters) or None


class Schedule(Family, ABC):
    """The family of schedules: pure functions of progress, so that nothing needs saving."""

    @abstractmethod
    def factor(self, epoch: float, epochs: int) -> float:
        """What the learning rate is multiplied by after `epoch` (fractional) of `epochs`."""


@dataclass(frozen=True)
class Constant(Schedule, kind="constant"):
    """The learning rate as it is."""

    def factor(self, epoch: float, epochs: int) -> float:
        """Always 1."""
        return 1.0


@dataclass(frozen=True)
class Steps(Schedule, kind="steps"):
    """Linear warm-up, then a multiplication by `ratio` at each milestone.

    Milestones are epochs of a run of `nominal_epochs` and scale with its true length.
    """

    milestones: tuple[int, ...] = (60, 120, 160)
    ratio: float = 0.2
    warmup_epochs: float = 1.0
    nominal_epochs: int = 200

    def __post_init__(self) -> None:
        at_least(self, ratio=0, warmup_epochs=0, nominal_epochs=1)

    def factor(self, epoch: float, epochs: int) -> float:
        """ratio^(milestones passed), times the share of the warm-up that is over."""
        stretch = epochs / self.nominal_epochs
        passed = sum(epoch >= milestone * stretch for milestone in self.milestones)
        warmup = min(1.0, epoch / self.warmup_epochs) if self.warmup_epochs else 1.0
        return warmup * self.ratio**passed


@dataclass(frozen=True)
class OneCycle(Schedule, kind="one_cycle"):
    """Linear rise to the full rate during `rise` of the run, then a linear fall to zero.

    The triangular cycle of Smith & Topin 2019.
    """

    rise: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.rise < 1:
            raise ConfigError(f"rise={self.rise}: choose a share between 0 and 1")

    def factor(self, epoch: float, epochs: int) -> float:
        """A triangle with its tip at `rise`."""
        done = epoch / epochs
        return done / self.rise if done < self.rise else (1.0 - done) / (1.0 - self.rise)


@dataclass(frozen=True)
class Descent:
    """How long, in what steps and with which optimizer a stage descends.

    Attributes:
        epochs: passes over the split.
        batch_size: samples per step, over all processes; a single one left over joins the step
            before.
        optimizer: its kind and rates.
        schedule: how the rate changes.
        accumulate: in how many pieces a batch is computed, to save memory.
        clip_norm: largest norm of the gradient, or null for no clipping.
        patience: stop once the stage's first monitored value has not improved for so many
            epochs, and keep the best weights, even those it began with; null keeps the last.
        min_steps: the least number of steps; a split too small to give as many in `epochs` passes
            is passed over more often.
        min_batches: the least number of steps in an epoch; a split too small to give as many has
            smaller batches. After each epoch held-out values are monitored, which would otherwise
            take as long as a step.
    """

    epochs: int
    batch_size: int = 128
    optimizer: Optimizer = field(default_factory=Adam)
    schedule: Schedule = field(default_factory=Constant)
    accumulate: int = 1
    clip_norm: float | None = None
    patience: int | None = None
    min_steps: int = 0
    min_batches: int = 1

    def __post_init__(self) -> None:
        at_least(self, epochs=1, batch_size=1, accumulate=1, clip_norm=0, patience=1, min_steps=0)
        at_least(self, min_batches=1)

    def samples_per_step(self, num_samples: int) -> int:
        """The batch size for a split of `num_samples`."""
        return min(self.batch_size, max(SMALL_BATCH, math.ceil(num_samples / self.min_batches)))

    def num_epochs(self, num_steps: int) -> int:
        """Passes over a split of which one has `num_steps` steps."""
        return max(self.epochs, math.ceil(self.min_steps / num_steps))


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
        on: `features` reads the encoder's cached outputs in place of inputs; `labels` says that
            no layer is run, so that after a step none has to change its mode.
        split: which data it reads.
        limit: how many samples at most, drawn at random by the run's seed; null reads all.
        mergeable: whether `finish` may be called again with these sums plus those of more data:
            they depend on nothing that another stage estimates. Such sums are kept.
        settings: the configs and values, by name, that the result depends on besides data,
            encoder, seed and `modules`. Null: the whole config of the method.
        modules: the attributes of the method that it reads or changes; empty means all of them.
            A run takes over a stage that another finished with equal settings and modules.
    """

    name: str
    statistics: Callable[[Batch], Values]
    finish: Callable[[Values], object]
    reduce: Literal["sum", "concat"] = "sum"
    on: Literal["inputs", "features", "labels"] = "inputs"
    split: Literal["train", "heldout"] = "train"
    limit: int | None = None
    mergeable: bool = False
    settings: Mapping[str, object] | None = None
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Train:
    """Gradient descent on `loss` over `parameters`; everything else stays as it is.

    Attributes:
        name: what progress bars, checkpoints and rows call the stage.
        loss: mean loss of a batch; a bound method, so it sees the method's layers.
        parameters: what may change, except those frozen before the run. Layers without a trained
            parameter are in evaluation mode.
        descent: how long and with which optimizer.
        on: `features` reads the encoder's cached outputs in place of inputs.
        split: which data it learns from.
        monitor: per-sample values, averaged over the held-out slice after every epoch. The
            first of them, lower = better, decides when a descent with patience stops.
        after_step: estimated after each step from the batch of that step, over all processes.
        settings: as for `Estimate`; the descent is always one of them.
        modules: as for `Estimate`.
    """

    name: str
    loss: Callable[[Batch], Tensor]
    parameters: Sequence[nn.Parameter]
    descent: Descent
    on: Literal["inputs", "features"] = "inputs"
    split: Literal["train", "heldout"] = "train"
    monitor: Callable[[Batch], Values] | None = None
    after_step: Estimate | None = None
    settings: Mapping[str, object] | None = None
    modules: tuple[str, ...] = ()


Stage = Train | Estimate


def reading(stage: Stage, read: Callable[[Tensor], Tensor]) -> Stage:
    """The same stage on a function of what it reads.

    Args:
        stage: any stage.
        read: what the stage sees of a batch of inputs or features.
    """

    def seeing(function: Callable[[Batch], T]) -> Callable[[Batch], T]:
        return lambda batch: function(Batch(read(batch.x), batch.y))

    if isinstance(stage, Estimate):
        return replace(stage, statistics=seeing(stage.statistics))
    monitor = None if stage.monitor is None else seeing(stage.monitor)
    return replace(stage, loss=seeing(stage.loss), monitor=monitor)


def on_columns(stage: Stage, columns: slice) -> Stage:
    """The same stage on features, seeing only some of their columns.

    Args:
        stage: one that reads features, (batch, features).
        columns: which of them it sees.
    """
    return reading(stage, lambda features: features[:, columns])


def folds(
    num_samples: int, num_folds: int, seed: int = 0, device: torch.device | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Pairs of indices, (samples,): those to fit to, and the others, which judge the fit.

    Every sample is among the others once. Of fewer than two samples for each fold, all of them are
    both.

    Args:
        num_samples: how many samples are divided.
        num_folds: into how many parts.
        seed: decides which sample is in which part.
        device: where the indices are.
    """
    if num_samples < 2 * num_folds:
        everything = torch.arange(num_samples, device=device)
        return [(everything, everything)]
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed)).to(device)
    parts = [order[number::num_folds] for number in range(num_folds)]
    others = [torch.cat(parts[:number] + parts[number + 1 :]) for number in range(num_folds)]
    return list(zip(others, parts, strict=True))
