"""What each gradient penalty adds to a training step of a wide ResNet, in time and in memory.

A step is forward pass, backward pass and SGD update on random images. All variants are timed in
turn in one process, and each of their steps is compared with a plain step right before it. On a
shared machine `--clock cpu` counts the seconds of this process alone; take one thread then, because
idle threads count too. Memory is the largest number of bytes that autograd holds at one time for
a backward pass, parameters not counted.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.lipschitz.penalty import (
    FrobeniusPenalty,
    NoPenalty,
    Penalty,
    PenaltyConfig,
    SpectralPenalty,
    SumPenalty,
)
from density_softmax.runs.rows import write_rows
from density_softmax.types import Batch, Row

ERM = "none"
EVERY = 8
PENALTIES: dict[str, PenaltyConfig] = {
    ERM: NoPenalty.Config(),
    "frobenius (default)": FrobeniusPenalty.Config(),
    "frobenius, freeze_norm=false": FrobeniusPenalty.Config(freeze_norm=False),
    "frobenius, num_projections=2": FrobeniusPenalty.Config(num_projections=2),
    "spectral (10 iterations)": SpectralPenalty.Config(),
    "spectral, iterations=1": SpectralPenalty.Config(iterations=1),
    "sum": SumPenalty.Config(),
    f"frobenius, every={EVERY}": FrobeniusPenalty.Config(every=EVERY),
}
CLASSES = 10
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}

Loss = Callable[[Batch], Tensor]


class Trainer:
    """A wide ResNet with a linear head, its optimizer and a batch."""

    def __init__(self, depth: int, width: int, batch_size: int) -> None:
        torch.manual_seed(0)
        self.encoder = WideResNet.Config(depth=depth, width=width).build((3, 32, 32))
        self.head = nn.Linear(self.encoder.num_features, CLASSES)
        self.parameters = [*self.encoder.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.SGD(self.parameters, lr=1e-4, momentum=0.9, nesterov=True)
        self.batch = Batch(torch.randn(batch_size, 3, 32, 32), torch.arange(batch_size) % CLASSES)

    def step(self, loss: Loss) -> None:
        """One step of training."""
        self.optimizer.zero_grad()
        loss(self.batch).backward()
        self.optimizer.step()

    def penalised(self, penalty: Penalty) -> Loss:
        """Eq. 4 with a penalty of the package."""

        def loss(batch: Batch) -> Tensor:
            z, value = penalty(self.encoder, batch.x)
            return F.cross_entropy(self.head(z), batch.y) + value

        return loss

    def double_backward(self, batch: Batch) -> Tensor:
        """The default penalty by torch's own derivatives, the statistics of batch norm included."""
        x = batch.x.clone().requires_grad_()
        z = self.encoder(x)
        v = F.normalize(torch.randn_like(z), dim=1) * z.shape[1] ** 0.5
        (pulled,) = torch.autograd.grad(z, x, v, create_graph=True)
        return self.cross_entropy_and(pulled, z, batch.y)

    def finite_difference(self, batch: Batch, step: float = 1e-2) -> Tensor:
        """(f(x + hv) − f(x)) / h along one random direction of the input."""
        z = self.encoder(batch.x)
        moved = self.encoder(batch.x + step * torch.randn_like(batch.x))
        return self.cross_entropy_and((moved - z) / step, z, batch.y)

    def jacobian_by_jacrev(self, batch: Batch) -> Tensor:
        """All rows of every Jacobian at once, with batch norm in evaluation mode."""
        z = self.encoder(batch.x)
        self.encoder.eval()
        rows = torch.func.jacrev(lambda x: self.encoder(x[None])[0])
        jacobians = torch.func.vmap(rows)(batch.x)
        self.encoder.train()
        return self.cross_entropy_and(jacobians, z, batch.y)

    def jacobian_by_rows(self, batch: Batch) -> Tensor:
        """The same, one row after another."""
        z, x = self.encoder(batch.x), batch.x.clone().requires_grad_()
        features = self.encoder.eval()(x)
        self.encoder.train()
        rows = [torch.autograd.grad(f.sum(), x, create_graph=True)[0] for f in features.T]
        return self.cross_entropy_and(torch.stack(rows, 1), z, batch.y)

    def cross_entropy_and(self, product: Tensor, z: Tensor, y: Tensor) -> Tensor:
        """Cross entropy and the squared distance of norms from 1."""
        norm = (product.flatten(1).square().sum(1) + 1e-12).sqrt()
        return F.cross_entropy(self.head(z), y) + 1e-2 * (norm - 1).square().mean()


class SavedBytes:
    """How much autograd holds for backward passes, now and at most."""

    def __init__(self, ignored: list[nn.Parameter]) -> None:
        self.ignored = {p.untyped_storage().data_ptr() for p in ignored}
        self.holders: dict[int, int] = {}
        self.live = self.peak = 0

    def hold(self, tensor: Tensor) -> Held:
        """Called by autograd for each tensor it saves; a storage saved twice counts once."""
        held = Held(tensor, self)
        if held.storage not in self.ignored:
            if held.storage not in self.holders:
                self.live += tensor.untyped_storage().nbytes()
                self.peak = max(self.peak, self.live)
            self.holders[held.storage] = self.holders.get(held.storage, 0) + 1
        return held

    def release(self, held: Held) -> None:
        """Called when autograd lets go of what it saved."""
        if held.storage in self.ignored:
            return
        self.holders[held.storage] -= 1
        if self.holders[held.storage] == 0:
            del self.holders[held.storage]
            self.live -= held.tensor.untyped_storage().nbytes()


class Held:
    """A saved tensor that reports its end."""

    def __init__(self, tensor: Tensor, owner: SavedBytes) -> None:
        self.tensor, self.owner = tensor, owner
        self.storage = tensor.untyped_storage().data_ptr()

    def __del__(self) -> None:
        self.owner.release(self)


def main() -> None:
    """Measure all variants, print ratios and write them where asked to."""
    args = parse()
    torch.set_num_threads(args.threads)
    clock = CLOCKS[args.clock]
    name = f"wrn-{args.depth}-{args.width}"
    trainer = Trainer(args.depth, args.width, args.batch)
    ways = variants(trainer)
    rows = measure(name, trainer, ways, args.repeats, clock)
    small = Trainer(args.depth, 1, batch_size=1)
    few = {name: ways_of(small, PENALTIES[name]) for name in (ERM, "frobenius (default)")}
    few["whole jacobian, jacrev"] = (small.jacobian_by_jacrev, 1)
    few["whole jacobian, row by row"] = (small.jacobian_by_rows, 1)
    rows += measure(f"wrn-{args.depth}-1", small, few, args.repeats, clock)
    report(rows, args)


def variants(trainer: Trainer) -> dict[str, tuple[Loss, int]]:
    """Losses by name, each with the number of steps after which it repeats itself."""
    ways = {name: ways_of(trainer, config) for name, config in PENALTIES.items()}
    ways["torch's double backward"] = (trainer.double_backward, 1)
    ways["finite difference"] = (trainer.finite_difference, 1)
    return ways


def ways_of(trainer: Trainer, config: PenaltyConfig) -> tuple[Loss, int]:
    """The loss with a penalty, counting its steps as the engine does, and its period."""
    penalty = config.build()
    loss, after_step = trainer.penalised(penalty), penalty.after_step()
    if after_step is None:
        return loss, 1

    def counted(batch: Batch) -> Tensor:
        value = loss(batch)
        after_step.finish({})
        return value

    return counted, dataclasses.asdict(config)["every"]  # type: ignore[call-overload]


def measure(
    name: str,
    trainer: Trainer,
    ways: dict[str, tuple[Loss, int]],
    repeats: int,
    clock: Callable[[], float],
) -> list[Row]:
    """Ratios to the plain step."""
    memory = {way: saved_bytes(trainer, *ways[way]) for way in ways}  # warms up as well
    ratios: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats):
        for way in ways if repeat % 2 == 0 else reversed(ways):
            ratios[way].append(ratio_to_plain(trainer, ways[ERM][0], *ways[way], clock))
    rows = []
    for way in ways:
        label = (name, "density_softmax", f"penalty={way}", 0, "cost")
        size = len(trainer.batch.x)
        rows.append(Row(*label, f"train_step_ratio:{size}", statistics.median(ratios[way])))
        if not math.isnan(memory[way]):
            rows.append(Row(*label, f"saved_memory_ratio:{size}", memory[way] / memory[ERM]))
    return rows


def ratio_to_plain(
    trainer: Trainer, plain: Loss, loss: Loss, period: int, clock: Callable[[], float]
) -> float:
    """Time of a period of the loss by that of as many plain steps, one of each in turn."""
    seconds = [0.0, 0.0]
    for _ in range(period):
        for number, one in enumerate((plain, loss)):
            began = clock()
            trainer.step(one)
            seconds[number] += clock() - began
    return seconds[1] / seconds[0]


def saved_bytes(trainer: Trainer, loss: Loss, period: int) -> float:
    """What the most greedy step of a period holds; not a number where torch cannot tell."""
    saved = SavedBytes(trainer.parameters)
    try:
        with torch.autograd.graph.saved_tensors_hooks(saved.hold, lambda held: held.tensor):
            for _ in range(period):
                trainer.step(loss)
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):
            raise
        return math.nan
    return saved.peak


def report(rows: list[Row], args: argparse.Namespace) -> None:
    """Print a table, and write rows where asked to."""
    print(f"ratios to a plain step; median of {args.repeats}, {args.clock} clock, ", end="")
    print(f"{args.threads} threads; memory: bytes saved for backward at a time")
    for row in rows:
        metric, _, batch = row.metric.partition(":")
        name = f"{row.recipe} batch {batch}  {row.variant}"
        print(f"  {name:58} {metric:18} {row.value:6.2f}")
    print(
        "  A whole Jacobian has one row per feature: 64 at width 1, where it is measured, and\n"
        f"  {64 * args.width} at width {args.width}, where its ratio is larger in proportion."
    )
    if args.out is not None:
        write_rows(args.out / "rows.csv", rows)


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=28, help="of the wide ResNet")
    parser.add_argument("--width", type=int, default=10, help="of the wide ResNet")
    parser.add_argument("--batch", type=int, default=4, help="images per step")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--out", type=Path, help="folder for rows.csv")
    return parser.parse_args()


if __name__ == "__main__":
    main()
