"""Gradient descent on one `Train` stage."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from density_softmax.engine.checkpoints import Checkpoints, Epoch
from density_softmax.engine.inspection import Inspection
from density_softmax.engine.passes import (
    Part,
    all_reduce,
    chosen_batch_size,
    num_batches,
    rows_at_once,
    share,
    total,
)
from density_softmax.engine.progress import Bar, Bars
from density_softmax.engine.runtime import EngineConfig, derive_seed, needs_wrappers
from density_softmax.errors import UserError
from density_softmax.methods.base import Method
from density_softmax.nn.execution import evaluating
from density_softmax.training import Stage, Train, Values
from density_softmax.types import Batch, Source

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Before the name of a monitored value in the record of epochs.
HELDOUT = "heldout_"


@dataclass(frozen=True)
class Setting:
    """What the stages of one run share."""

    fabric: Fabric
    method: Method
    seed: int
    engine: EngineConfig
    checkpoints: Checkpoints
    bars: Bars
    inspection: Inspection

    def batch_size(self, stage: Stage, source: Source) -> int:
        """How many samples of a source a stage reads at a time where nothing is learned."""
        if stage.on == "features":
            return rows_at_once(self.engine)
        return chosen_batch_size(self.engine, self.method, source, self.fabric.device)


class Objective(nn.Module):
    """A stage's loss as the forward pass of a module: where DDP and autocast take hold."""

    def __init__(self, method: nn.Module, loss: Callable[[Batch], Tensor]) -> None:
        super().__init__()
        self.method, self.loss = method, loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a batch."""
        return self.loss(Batch(x, y))


class Patience:
    """Keeps the weights of a stage's best epoch, and knows when to stop waiting for a better one.

    Which epoch is best is read off the record of epochs. Held-out values are sums over all
    processes, so that every process reads the same there, and so does a run that continues.
    """

    def __init__(
        self,
        stage: Train,
        method: nn.Module,
        record: Sequence[Epoch],
        best: Mapping[str, Tensor],
    ) -> None:
        self.stage, self.method, self.best = stage, method, dict(best)
        self.limit = stage.descent.patience
        if self.limit is not None and stage.monitor is None:
            raise UserError(
                f"stage {stage.name}: patience needs a monitored value and this stage has none; "
                "set patience=null"
            )
        self.waited = self._waited(record)

    def look(self, record: Sequence[Epoch]) -> None:
        """Keep the weights if the epoch just recorded is the best so far."""
        self.waited = self._waited(record)
        if self.limit is not None and self.waited == 0:
            # Besides trained weights, statistics such as those of batch norm belong to an epoch.
            self.best = {
                name: value.detach().clone()
                for name, value in self.method.state_dict(keep_vars=True).items()
                if value.requires_grad or not isinstance(value, nn.Parameter)
            }

    def is_over(self) -> bool:
        """Whether enough epochs have passed since the best one."""
        return self.limit is not None and self.waited >= self.limit

    def restore(self) -> None:
        """Return to the weights of the best epoch, if they were kept."""
        if self.best:
            self.method.load_state_dict(self.best, strict=False)

    def _waited(self, record: Sequence[Epoch]) -> int:
        """Epochs of this stage since its lowest value; of equal ones the first counts."""
        epochs = [epoch.values for epoch in record if epoch.stage == self.stage.name]
        if self.limit is None or not epochs:
            return 0
        first = next(name for name in epochs[0] if name.startswith(HELDOUT))
        values = [v[first] if math.isfinite(v[first]) else math.inf for v in epochs]
        return len(values) - 1 - values.index(min(values))


class Descender:
    """Descends one stage in epochs of steps, each step one batch shared by all processes.

    Getting its data ready took `spent` seconds, which a stage that begins here has to count.
    """

    def __init__(
        self,
        setting: Setting,
        number: int,
        stage: Train,
        source: Source,
        heldout: Source | None,
        spent: float,
    ) -> None:
        self.setting, self.number, self.stage = setting, number, stage
        self.source, self.heldout = source, heldout
        self.monitor_size: int | None = None  # known once it is needed
        samples = len(source.order(self._epoch_seed(0)))  # a sampler may draw fewer than all
        self.batch_size = source.batch_size or stage.descent.samples_per_step(samples)
        self.num_steps = num_batches(samples, self.batch_size)
        self.num_epochs = stage.descent.num_epochs(self.num_steps)
        # A frozen parameter is none of the optimizer's: weight decay would change it.
        self.trained = [parameter for parameter in stage.parameters if parameter.requires_grad]
        optimizer = stage.descent.optimizer.build(self.trained)
        self.rates = [group["lr"] for group in optimizer.param_groups]
        self.done, seconds, best = setting.checkpoints.load_epoch(
            stage.name, setting.method, optimizer
        )
        self.seconds = seconds if self.done else spent
        self.patience = Patience(stage, setting.method, setting.checkpoints.epochs, best)
        self.objective: Any = Objective(setting.method, stage.loss)
        self.optimizer: Any = optimizer
        self.backward: Callable[[Tensor], Any] = Tensor.backward
        if needs_wrappers(setting.fabric):
            self.objective, self.optimizer = setting.fabric.setup(self.objective, optimizer)
            self.backward = setting.fabric.backward

    def run(self) -> float:
        """All epochs that are not done yet; returns the seconds of the whole stage."""
        epochs, saved = self.num_epochs, time.perf_counter()
        bar = self.setting.bars.add(
            self.stage.name, epochs * self.num_steps, self.done * self.num_steps
        )
        if self.done == 0 and self.patience.limit is not None:
            self._record(0, {})  # so that a stage with patience never ends worse than it began
        for epoch in range(self.done, epochs):
            if self.patience.is_over():
                break
            began = time.perf_counter()
            loss = self._epoch(epoch, bar)
            self.seconds += time.perf_counter() - began
            self._report(epoch, loss, bar)
            due = time.perf_counter() - saved >= self.setting.engine.checkpoint_seconds
            if due and epoch + 1 < epochs:
                self._save(epoch + 1)
                saved = time.perf_counter()
        self.patience.restore()
        return self.seconds

    def _epoch_seed(self, epoch: int) -> int:
        return derive_seed(self.setting.seed, self.number, epoch)

    def _epoch(self, epoch: int, bar: Bar) -> float:
        """One pass over the split; returns its mean loss over steps and processes."""
        fabric, seed = self.setting.fabric, self.setting.seed
        _seed(derive_seed(seed, self.number, epoch, 1 + fabric.global_rank), fabric.device)
        epoch_seed = self._epoch_seed(epoch)
        steps = share(
            self.source.order(epoch_seed),
            self.batch_size,
            fabric.global_rank,
            fabric.world_size,
            self.stage.descent.accumulate,
        )
        indices = [part.indices for parts in steps for part in parts]
        batches = self.source.read(indices, fabric.device, epoch_seed)
        set_modes(self.setting.method)
        mean = torch.zeros((), device=fabric.device)
        for number, parts in enumerate(steps):
            self._set_rates(epoch + (number + 0.5) / len(steps))
            mean += self._step(parts, batches) / len(steps)
            bar.advance()
        if self.stage.on == "inputs" and self.setting.inspection.pending:
            self.setting.inspection.gather(fabric)
            self.setting.inspection.conclude()
        return all_reduce(fabric, mean).item() / fabric.world_size

    def _step(self, parts: Sequence[Part], batches: Iterator[Batch]) -> Tensor:
        """One step of the optimizer; returns this process's weighted loss."""
        fabric, descent = self.setting.fabric, self.stage.descent
        loss, seen = torch.zeros((), device=fabric.device), []
        for parameter in self.trained:
            parameter.grad = None
        for number, part in enumerate(parts):
            batch = next(batches)
            hold = number + 1 < len(parts) and fabric.world_size > 1
            with fabric.no_backward_sync(self.objective) if hold else contextlib.nullcontext():
                part_loss = part.weight * self.objective(batch.x, batch.y)
                self.backward(part_loss)
            loss += part_loss.detach()
            seen.append((part, batch))
        if descent.clip_norm is not None:
            fabric.clip_gradients(self.objective, self.optimizer, max_norm=descent.clip_norm)
        self.optimizer.step()
        self._after_step(seen)
        return loss

    @torch.no_grad()
    def _after_step(self, seen: Sequence[tuple[Part, Batch]]) -> None:
        """Sum the statistics of the batch over parts and processes, and finish them."""
        estimate, fabric = self.stage.after_step, self.setting.fabric
        if estimate is None:
            return
        sums: dict[str, Tensor] = {}
        counts = estimate.on == "labels"
        with contextlib.nullcontext() if counts else evaluating(self.setting.method):
            for part, batch in seen:
                for name, value in estimate.statistics(batch).items():
                    counted = value if part.weight else torch.zeros_like(value)
                    sums[name] = sums[name] + counted if name in sums else counted
            estimate.finish({name: all_reduce(fabric, value) for name, value in sums.items()})

    def _set_rates(self, epoch: float) -> None:
        factor = self.stage.descent.schedule.factor(epoch, self.num_epochs)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def _report(self, epoch: int, loss: float, bar: Bar) -> None:
        """Record the epoch; a loss that is no number stops the run."""
        if not math.isfinite(loss):
            raise UserError(
                f"stage {self.stage.name}, epoch {epoch + 1}: the loss is {loss}; "
                "lower the learning rate or clip the gradient (clip_norm)"
            )
        self._record(epoch + 1, {"loss": loss, "lr": self.optimizer.param_groups[0]["lr"]})
        bar.note(f"epoch {epoch + 1} loss {loss:.4f}")

    def _record(self, done: int, values: dict[str, float]) -> None:
        """Note what is known after `done` epochs, and keep the weights if they are the best."""
        record = self.setting.checkpoints.epochs
        record.append(Epoch(self.stage.name, done, values | self._monitor()))
        self.patience.look(record)

    def _monitor(self) -> dict[str, float]:
        """Means of the monitored values over the held-out slice, if there is one."""
        monitor = self.stage.monitor
        if monitor is None or self.heldout is None:
            return {}

        def sums(batch: Batch) -> Values:
            values = {name: value.double().sum() for name, value in monitor(batch).items()}
            return {"count": torch.tensor(len(batch.y), device=batch.y.device), **values}

        self.setting.method.eval()
        if self.monitor_size is None:
            self.monitor_size = self.setting.batch_size(self.stage, self.heldout)
        found = total(self.setting.fabric, self.heldout, sums, self.monitor_size)
        count = found.pop("count")
        return {f"{HELDOUT}{name}": float(value / count) for name, value in found.items()}

    def _save(self, done: int) -> None:
        self.setting.checkpoints.save_epoch(
            self.stage.name,
            done,
            self.seconds,
            self.setting.method,
            self.optimizer,
            self.patience.best,
        )


def _seed(seed: int, device: torch.device) -> None:
    """Seed the generators of a device; those of absent ones take longer than a small step."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def check_trainable(stages: Iterable[Stage]) -> None:
    """Refuse a stage that has nothing left to train, because all of it was frozen before.

    Args:
        stages: of a method.
    """
    for stage in stages:
        if isinstance(stage, Train) and not any(p.requires_grad for p in stage.parameters):
            raise UserError(
                f"stage {stage.name}: all that it trains is frozen; set requires_grad_(True) on "
                "some of it, or leave the stage out of the config"
            )


def check_heldout(stages: Iterable[Stage], heldout: object | None) -> None:
    """Refuse a stage that needs held-out data where there are none.

    Args:
        stages: of a method.
        heldout: the held-out data, or None.
    """
    for stage in stages if heldout is None else ():
        patient = isinstance(stage, Train) and stage.descent.patience is not None
        if stage.split == "heldout" or patient:
            raise UserError(
                f"stage {stage.name}: reads held-out data, and there are none; pass some, or in a "
                "recipe set data.heldout=0.1" + (", or set patience=null" if patient else "")
            )


@contextlib.contextmanager
def only_trainable(method: nn.Module, stage: Train) -> Iterator[None]:
    """Inside, the stage's parameters require gradients, except those that their owner froze.

    Args:
        method: all of whose parameters are set.
        stage: whose parameters are trained.
    """
    wanted = {id(parameter) for parameter in stage.parameters}
    before = [(parameter, parameter.requires_grad) for parameter in method.parameters()]
    for parameter, free in before:
        parameter.requires_grad_(free and id(parameter) in wanted)
    try:
        yield
    finally:
        for parameter, flag in before:
            parameter.requires_grad_(flag)
            parameter.grad = None


def set_modes(module: nn.Module) -> None:
    """Training mode, but evaluation mode for every part whose weights are all frozen.

    Args:
        module: a method, or a part of one.
    """
    for part in module.modules():
        part.training = True
    for part in _frozen_parts(module)[1]:
        part.eval()


def _frozen_parts(module: nn.Module) -> tuple[bool | None, list[nn.Module]]:
    """Whether any weight is trained, None if there are none, and the outermost frozen parts."""
    known = [_frozen_parts(child) for child in module.children()]
    trained = [parameter.requires_grad for parameter in module.parameters(recurse=False)]
    trained += [found for found, _ in known if found is not None]
    if trained and not any(trained):
        return False, [module]
    return any(trained) if trained else None, [part for _, parts in known for part in parts]
