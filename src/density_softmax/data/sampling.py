"""Which samples a DataLoader draws from its data set, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from density_softmax.errors import UserError

__all__ = ["check_countable", "draw", "restriction", "size_of_batches"]


def check_countable(dataset: Any) -> None:
    """Refuse a data set whose samples cannot be counted and read by index."""
    if isinstance(dataset, IterableDataset):
        raise UserError(
            "an IterableDataset cannot be resumed or shared between processes: "
            "wrap it in a map-style Dataset with __len__ and __getitem__"
        )
    if not isinstance(dataset, Sized):
        raise UserError(f"the data set {type(dataset).__name__} has no __len__: give it one")
    if len(dataset) == 0:
        raise UserError("the data set is empty: it needs at least one sample")


def size_of_batches(loader: DataLoader[Any]) -> int | None:
    """The batch size of a loader; None if it leaves batches to whoever reads."""
    batches = loader.batch_sampler
    if batches is None:
        return None
    if type(batches) is not BatchSampler:
        raise UserError(
            f"batches are cut and shared between processes here, which a batch_sampler of type "
            f"{type(batches).__name__} does not allow: give the DataLoader a sampler and a "
            "batch_size in its place"
        )
    return batches.batch_size


def draw(loader: DataLoader[Any], seed: int) -> list[int]:
    """The indices of one epoch of a loader, its randomness fixed by the seed."""
    batches = loader.batch_sampler
    indices = _sampler(loader) if batches is None else chain.from_iterable(batches)
    with _seeded(_sampler(loader), seed):
        drawn = [int(index) for index in indices]
    if not drawn:
        raise UserError(
            f"the DataLoader gives no batch of {size_of_batches(loader)} samples: choose a smaller "
            "batch_size, or drop_last=False"
        )
    return drawn


def restriction(loader: DataLoader[Any]) -> list[int] | None:
    """The samples that the sampler of a loader chooses from, ascending; None if from all.

    A sampler that torch does not know is asked for an epoch, and the samples in it are taken.
    """
    sampler, num_samples = _sampler(loader), len(loader.dataset)  # type: ignore[arg-type]
    if isinstance(sampler, DistributedSampler):
        raise UserError(
            "processes share the data among themselves: make the DataLoader without the "
            "DistributedSampler"
        )
    if type(sampler) in (SequentialSampler, RandomSampler):
        chosen: Iterable[int] = range(len(sampler.data_source))
    elif isinstance(sampler, WeightedRandomSampler):
        chosen = sampler.weights.nonzero().flatten().tolist()
    else:
        with _seeded(sampler, 0):
            chosen = {int(index) for index in sampler}
    samples = sorted(chosen)
    if not samples:
        raise UserError("the sampler of the DataLoader gives no sample: it needs at least one")
    return None if len(samples) == num_samples else samples


def _sampler(loader: DataLoader[Any]) -> Any:
    batches = loader.batch_sampler
    return batches.sampler if isinstance(batches, BatchSampler) else loader.sampler


@contextmanager
def _seeded(sampler: Any, seed: int) -> Iterator[None]:
    """Inside, the sampler draws what the seed decides; all generators are left as they were."""
    # A sampler with a generator of its own does not listen to the global seed.
    generator = getattr(sampler, "generator", None)
    state = None if generator is None else generator.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            if generator is not None:
                generator.manual_seed(seed)
            yield
        finally:
            if generator is not None:
                generator.set_state(state)
