"""Passes without gradients: rows for every sample, or sums over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from density_softmax.engine.sharing import Part, share
from density_softmax.stages import Values
from density_softmax.types import Batch, Source

__all__ = ["all_reduce", "collect", "total"]

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
) -> dict[str, Tensor]:
    """What `function` returns for every sample, in order, complete on every process.

    Arrays of more than `memory` bytes are mapped files in `directory`.
    """
    rows: dict[str, Tensor] = {}
    for part, values in _pass(fabric, source, function, batch_size):
        for name, value in values.items():
            if name not in rows:
                rows[name] = _allocate(name, len(source), value, directory, memory)
            if part.weight:
                rows[name][part.indices] = value.cpu()
        tick()
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
    """The sum of what `function` returns, over all samples and processes."""
    sums: dict[str, Tensor] = {}
    for part, values in _pass(fabric, source, function, batch_size):
        counted = 1 if part.weight else 0
        for name, value in values.items():
            sums[name] = sums[name] + counted * value if name in sums else counted * value
        tick()
    return {name: all_reduce(fabric, value) for name, value in sums.items()}


def _pass(
    fabric: Fabric, source: Source, function: Function, batch_size: int
) -> Iterator[tuple[Part, Values]]:
    """Every part this process reads, in order, with what `function` says of it."""
    steps = share(range(len(source)), batch_size, fabric.global_rank, fabric.world_size)
    parts = [part for (part,) in steps]
    batches = source.read([part.indices for part in parts], fabric.device)
    with torch.no_grad(), fabric.autocast():
        for part, batch in zip(parts, batches, strict=True):
            yield part, function(batch)


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
    """The sum over processes, on every process."""
    return fabric.all_reduce(value, reduce_op="sum")  # type: ignore[return-value]
