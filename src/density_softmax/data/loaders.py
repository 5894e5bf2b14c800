"""Data as users pass it: a DataLoader, a map-style Dataset, or a pair of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from itertools import chain
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
    default_collate,
    default_convert,
)

from density_softmax.data.sources import ArraySource
from density_softmax.errors import UserError
from density_softmax.types import LABELS, Batch, Inputs, Source, as_inputs, as_numbers

_REMEDY = (
    "yield (inputs, integer labels), several inputs as a dict or a tuple, or a dict that has "
    "`labels`; a collate_fn can make them of anything else"
)


def as_source(data: Any) -> Source:
    """Wrap data in a source.

    Args:
        data: a source, a DataLoader, a map-style Dataset, or a pair of arrays (inputs, labels).
            Several inputs are a dict or a tuple; a dict with `labels` has both.
    """
    if isinstance(data, Source):
        return data
    if isinstance(data, DataLoader):
        return DatasetSource(data)
    if isinstance(data, Dataset):
        _check_countable(data)
        return DatasetSource(DataLoader(data, batch_size=None, shuffle=True))
    if isinstance(data, tuple) and len(data) == 2:
        x, y = _several_or_one(data[0]), _as_labels(data[1])
        return ArraySource(x.to("cpu"), y.cpu())
    if isinstance(data, Mapping):
        batch = _as_batch(data)
        return ArraySource(batch.x.to("cpu"), batch.y.cpu())
    raise TypeError(
        f"cannot read data from a {type(data).__name__}: "
        "pass a DataLoader, a Dataset or a pair (inputs, labels)"
    )


@final
class DatasetSource(Source):
    """A map-style torch data set, decoded by the workers of a DataLoader.

    It consists of the samples that the loader's sampler chooses from: training follows the
    sampler, and every other pass reads each of these samples once. Augmentation, if any, is the
    data set's own.

    Args:
        loader: the DataLoader; its sampler, batch size, workers and collate function are kept.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        _check_countable(loader.dataset)
        self.loader = loader
        self.batch_size = _batch_size(loader)
        self._subset = _sampled_subset(loader)
        self._positions = {index: position for position, index in enumerate(self._subset or ())}
        # A loader that does not batch converts sample by sample; what it reads here are batches.
        converts = loader.collate_fn is default_convert
        self._collate = default_collate if converts else loader.collate_fn

    def __len__(self) -> int:
        samples: Any = self.loader.dataset if self._subset is None else self._subset
        return len(samples)

    def order(self, seed: int) -> list[int]:
        """Return the epoch of the loader's own sampler, its randomness fixed by the seed."""
        epoch = _epoch(self.loader, seed)
        if self._subset is None:
            return epoch
        # A sampler may choose anew in every epoch: samples outside the subset are numbered behind
        # those inside it.
        return [self._positions.get(index, len(self._subset) + index) for index in epoch]

    def original_index(self, index: int) -> int:
        """Return the index of a sample in the data set."""
        if self._subset is None:
            return index
        known = len(self._subset)
        return self._subset[index] if index < known else index - known

    def read(
        self, batches: Sequence[Sequence[int]], device: torch.device, seed: int | None = None
    ) -> Iterator[Batch]:
        """Yield one batch per list of indices, decoded and collated as by the loader."""
        loader = DataLoader(
            self.loader.dataset,
            batch_sampler=[[self.original_index(i) for i in indices] for indices in batches],
            num_workers=self.loader.num_workers,
            collate_fn=self._collate,
            pin_memory=self.loader.pin_memory,
            worker_init_fn=self.loader.worker_init_fn,
            # Its own, so that reading does not advance the global one.
            generator=torch.Generator().manual_seed(0 if seed is None else seed),
        )
        for item in loader:
            x, y = _as_batch(item)
            yield Batch(x.to(device, non_blocking=True), y.to(device))


def _check_countable(dataset: Any) -> None:
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


def _batch_size(loader: DataLoader[Any]) -> int | None:
    """Return the batch size of a loader; None if it leaves batching to the reader."""
    batches = loader.batch_sampler
    if batches is None:
        return None
    if type(batches) is not BatchSampler:
        raise UserError(
            f"a batch_sampler of type {type(batches).__name__} cannot be split over processes: "
            "give the DataLoader a sampler and a batch_size instead"
        )
    return batches.batch_size


def _epoch(loader: DataLoader[Any], seed: int) -> list[int]:
    """Return the indices of one epoch of a loader, its randomness fixed by the seed."""
    batches = loader.batch_sampler
    indices = _sampler(loader) if batches is None else chain.from_iterable(batches)
    with _seeded(_sampler(loader), seed):
        epoch = [int(index) for index in indices]
    if not epoch:
        raise UserError(
            f"the DataLoader gives no batch of {_batch_size(loader)} samples: choose a smaller "
            "batch_size, or drop_last=False"
        )
    return epoch


def _sampled_subset(loader: DataLoader[Any]) -> list[int] | None:
    """Return the ascending indices that a loader's sampler chooses from; None if from all.

    A sampler that torch does not know is run for one epoch, and the samples in it are taken.
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
    subset = sorted(chosen)
    if not subset:
        raise UserError("the sampler of the DataLoader gives no sample: it needs at least one")
    return None if len(subset) == num_samples else subset


def _sampler(loader: DataLoader[Any]) -> Any:
    batches = loader.batch_sampler
    return batches.sampler if isinstance(batches, BatchSampler) else loader.sampler


@contextmanager
def _seeded(sampler: Any, seed: int) -> Iterator[None]:
    """Seed a sampler for a while; afterwards all generators are as they were."""
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


def _as_batch(item: Any) -> Batch:
    """Return what a DataLoader gave as a batch; refuse anything but inputs and their labels."""
    if isinstance(item, Mapping):
        item = _labelled(item)
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise UserError(f"the data set gives {_described(item)}: {_REMEDY}")
    x, y = item
    if not isinstance(x, Tensor | np.ndarray | Mapping | tuple | list):
        raise UserError(f"the data set gives inputs that are {_described(x)}: {_REMEDY}")
    batch = Batch(_several_or_one(x), _as_labels(y))
    if len(batch.x) != len(batch.y):
        raise UserError(f"a batch has {len(batch.x)} inputs but {len(batch.y)} labels: {_REMEDY}")
    return batch


def _labelled(item: Mapping[Any, Any]) -> tuple[Any, Any]:
    """Inputs and labels of a mapping that has both."""
    name = next((name for name in LABELS if name in item), None)
    if name is None:
        raise UserError(f"{_described(item)} has no entry `labels`: {_REMEDY}")
    return item, item[name]


def _several_or_one(x: Any) -> Tensor | Inputs:
    """Inputs as a tensor, or as those of a network that is called with several."""
    if isinstance(x, tuple | list) and not any(isinstance(each, Tensor | np.ndarray) for each in x):
        return _as_inputs(x).contiguous()
    return as_inputs(x) or _as_inputs(x).contiguous()


def _as_inputs(x: Any) -> Tensor:
    """Return inputs as a tensor: floats as float32, bytes and other integers as they are."""
    numbers = as_numbers(x)
    if numbers is None:
        raise UserError(f"inputs are {_type_name(x)}: they must be numbers, a row per sample")
    if numbers.ndim < 2:
        raise UserError(f"inputs of shape {tuple(numbers.shape)}: there must be a row per sample")
    numbers = numbers.detach()
    return numbers.float() if numbers.is_floating_point() else numbers


def _as_labels(y: Any) -> Tensor:
    """Return labels as a tensor of int64, from any type that holds whole numbers."""
    numbers = as_numbers(y)
    if numbers is None:
        raise UserError(
            f"labels are {_type_name(y)}: encode them as integers 0..K-1 "
            "(sklearn.preprocessing.LabelEncoder)"
        )
    if numbers.ndim != 1:
        shape = tuple(numbers.shape)
        raise UserError(f"labels of shape {shape}: each sample needs one integer; {_cure(numbers)}")
    labels = numbers.long()
    if not torch.equal(labels.to(numbers.dtype), numbers):
        label = numbers[(labels != numbers).nonzero()[0]].item()
        raise UserError(f"label {label} is no whole number: labels are integers 0..K-1")
    return labels


def _cure(labels: Tensor) -> str:
    """What to do with labels that have more than one number per sample, or none."""
    if labels.ndim == 0:
        return "pass one for each input"
    if labels.ndim > 2:
        return (
            "one label per pixel or token (segmentation, tagging) is not supported, only one class "
            "per input"
        )
    if labels.shape[1] == 1:
        return "use ravel() on a column"
    if ((labels == 0) | (labels == 1)).all():
        if (labels.sum(1) == 1).all():
            return "use argmax(1) on one-hot labels"
        return (
            "several classes per sample (multi-label) are not supported; train one model of two "
            "classes for each column"
        )
    if labels.is_floating_point():
        return "soft labels are not supported; use argmax(1) for the likeliest class"
    return "one label per token or position is not supported, only one class per input"


def _type_name(values: Any) -> str:
    dtype = np.asarray(values).dtype
    return "text" if dtype.kind in "US" else f"of type {dtype}"


def _described(item: Any) -> str:
    if isinstance(item, Mapping):
        return f"a {type(item).__name__} of {', '.join(map(str, item))}"
    counted = f" of {len(item)}" if isinstance(item, tuple | list) else ""
    return f"a {type(item).__name__}{counted}"
