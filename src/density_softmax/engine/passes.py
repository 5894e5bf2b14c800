"""How processes share the samples of a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from density_softmax.engine.runtime import EngineConfig, derive_seed
from density_softmax.engine.unfinished import UnfinishedPass
from density_softmax.methods.base import Method
from density_softmax.nn.execution import seeded
from density_softmax.serve.batches import ROWS
from density_softmax.training import Values
from density_softmax.types import Batch, Prediction, Source

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# A batch norm that normalises by the batch has nothing to do with one sample.
SMALLEST_BATCH = 2


class Part(NamedTuple):
    """What one process reads at once.

    The global mean is the mean over processes of weight · (local mean), summed over the parts
    of a step, however unevenly the samples divide.
    """

    indices: list[int]
    weight: float


def share(
    order: Sequence[int],
    batch_size: int,
    rank: int = 0,
    world: int = 1,
    accumulate: int = 1,
    *,
    smallest: int = SMALLEST_BATCH,
) -> list[list[Part]]:
    """The steps of a pass over `order`, each a list of this process's parts of the batch.

    A last batch of less than `smallest` samples joins the one before it. No part is smaller
    either, as long as its batch is not: a batch is divided among fewer processes, and into fewer
    parts, if it has to. Every process takes the same number of steps. One that is left without
    samples reads the first of the batch with weight 0.

    Args:
        order: indices of samples.
        batch_size: of all processes together.
        rank: of this process.
        world: the number of processes.
        accumulate: into how many parts a process divides its share of a batch.
        smallest: how many samples a part has at least.
    """
    steps = []
    last = num_batches(len(order), batch_size, smallest) - 1
    for number in range(last + 1):
        end = (number + 1) * batch_size if number < last else len(order)
        batch = list(order[number * batch_size : end])
        shares = _divide(batch, world, smallest)
        chunks = _divide(shares[rank], accumulate, smallest) if rank < len(shares) else []
        parts = [Part(chunk, len(chunk) * world / len(batch)) for chunk in chunks]
        steps.append(parts or [Part(batch[:smallest], 0.0)])
    return steps


def _divide(indices: list[int], number: int, smallest: int) -> list[list[int]]:
    """At most so many parts, none below `smallest` unless all together are."""
    number = max(1, min(number, len(indices) // smallest))
    return [indices[i::number] for i in range(number)]


def num_batches(num_samples: int, batch_size: int, smallest: int = SMALLEST_BATCH) -> int:
    """How many batches a pass over all samples takes.

    Args:
        num_samples: of the pass.
        batch_size: of all processes together.
        smallest: how many samples a batch has at least, unless it is the only one.
    """
    whole, rest = divmod(num_samples, batch_size)
    joins = whole > 0 and rest < smallest
    return whole + (rest > 0 and not joins)


def chosen_batch_size(
    config: EngineConfig, method: Method, source: Source, device: torch.device
) -> int:
    """How many samples are computed at a time where nothing is learned.

    Args:
        config: may name a size, which is then taken.
        method: what will read the samples.
        source: the samples.
        device: where the method is.
    """
    if config.predict_batch_size is not None:
        return config.predict_batch_size
    example = method.example(device)
    if example is None:
        example = next(source.read([range(min(2, len(source)))], device)).x
    return method.batch_size_for(example)


def rows_at_once(config: EngineConfig) -> int:
    """How many rows of features are computed with at a time.

    Args:
        config: may name a size, which is then taken.
    """
    return config.predict_batch_size or ROWS


Function = Callable[[Batch], Values]
Tick = Callable[[], None]

# Rows exchanged between processes at a time, in bytes.
EXCHANGE = 64 * 2**20


def collect(
    fabric: Fabric,
    source: Source,
    function: Function,
    batch_size: int,
    *,
    tick: Tick = lambda: None,
    directory: Path | None = None,
    memory: int | None = None,
    unfinished: UnfinishedPass | None = None,
) -> dict[str, Tensor]:
    """What a function returns for every sample, in order, complete on every process.

    Args:
        fabric: the processes that share the pass.
        source: the samples.
        function: rows by name for a batch, (batch, ...) each.
        batch_size: of all processes together.
        tick: called after each batch.
        directory: where arrays of more than `memory` bytes become mapped files.
        memory: bytes; None keeps every array in memory.
        unfinished: where rows are noted, and found again by a pass that continues.
    """
    rows: dict[str, Tensor] = {}
    parts, done = _parts(fabric, source, batch_size), 0

    def fill(some: Sequence[Part], values: Values) -> None:
        # A part without weight repeats samples of another process.
        indices = [index for part in some if part.weight for index in part.indices]
        for name, value in values.items():
            if name not in rows:
                rows[name] = _allocate(name, len(source), value, directory, memory)
            if indices:
                rows[name][indices] = value.cpu()
        for _ in some:
            tick()

    for until, known in unfinished.known() if unfinished else ():
        fill(parts[done:until], known)
        done = until
    for part, values in _pass(fabric, source, function, parts[done:]):
        fill([part], values)
        if unfinished:
            unfinished.add(values if part.weight else {n: v[:0] for n, v in values.items()})
    for array in rows.values():
        _exchange(fabric, array)
    return rows


def total(
    fabric: Fabric,
    source: Source,
    function: Function,
    batch_size: int,
    *,
    tick: Tick = lambda: None,
) -> dict[str, Tensor]:
    """The sum of what a function returns, over all samples and processes.

    Args:
        fabric: the processes that share the pass.
        source: the samples.
        function: sums by name over a batch.
        batch_size: of all processes together.
        tick: called after each batch.
    """
    sums: dict[str, Tensor] = {}
    for part, values in _pass(fabric, source, function, _parts(fabric, source, batch_size)):
        counted = 1 if part.weight else 0
        for name, value in values.items():
            sums[name] = sums[name] + counted * value if name in sums else counted * value
        tick()
    return {name: all_reduce(fabric, value) for name, value in sums.items()}


def _parts(fabric: Fabric, source: Source, batch_size: int) -> list[Part]:
    """Every part this process reads, in order."""
    steps = share(range(len(source)), batch_size, fabric.global_rank, fabric.world_size)
    return [part for (part,) in steps]


def _pass(
    fabric: Fabric, source: Source, function: Function, parts: Sequence[Part]
) -> Iterator[tuple[Part, Values]]:
    """Some parts of the samples, in order, with what `function` says of each."""
    batches = source.read([part.indices for part in parts], fabric.device)
    for part, batch in zip(parts, batches, strict=True):
        with torch.no_grad(), fabric.autocast():
            values = function(batch)
        yield part, values


def _allocate(
    name: str, num_rows: int, example: Tensor, directory: Path | None, memory: int | None
) -> Tensor:
    shape = (num_rows, *example.shape[1:])
    num_bytes = int(np.prod(shape)) * example.element_size()
    if directory is None or memory is None or num_bytes <= memory:
        return torch.zeros(shape, dtype=example.dtype)
    directory.mkdir(parents=True, exist_ok=True)
    dtype = torch.empty((), dtype=example.dtype).numpy().dtype
    file = directory / f"{name}.npy"
    return torch.from_numpy(np.lib.format.open_memmap(file, "w+", dtype, shape))


def _exchange(fabric: Fabric, array: Tensor) -> None:
    """Fill in the rows of the other processes: each holds zeros where another has values."""
    if fabric.world_size == 1:
        return
    rows_at_once = max(1, EXCHANGE // max(1, array[0].numel() * array.element_size()))
    for rows in array.split(rows_at_once):
        rows.copy_(all_reduce(fabric, rows.to(fabric.device)).cpu())


def all_reduce(fabric: Fabric, value: Tensor) -> Tensor:
    """The sum over processes, on every process.

    Args:
        fabric: the processes.
        value: of this process.
    """
    if fabric.world_size == 1:
        return value
    return fabric.all_reduce(value, reduce_op="sum")  # type: ignore[return-value]


def predict(
    fabric: Fabric,
    method: Method,
    source: Source,
    batch_size: int,
    tick: Callable[[], None] = lambda: None,
    seed: int = 0,
) -> tuple[Prediction, Tensor]:
    """The prediction and the label of every sample, in order, on the CPU; no sample is dropped.

    Args:
        fabric: where the method is.
        method: put into evaluation mode.
        source: the samples.
        batch_size: of all processes together.
        tick: called after each batch.
        seed: of what the method draws, in each process of its own.
    """
    method.eval()

    def rows(batch: Batch) -> Values:
        return {**method(batch.x)._asdict(), "y": batch.y}

    with seeded(derive_seed(seed, fabric.global_rank), fabric.device):
        found = collect(fabric, source, rows, batch_size, tick=tick)
    labels = found.pop("y")
    return Prediction(**{name: value.float() for name, value in found.items()}), labels
