"""The contract of every data set that a recipe can name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Sized
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

from density_softmax.config import ConfigError, Family
from density_softmax.errors import DataError, UserError
from density_softmax.types import Batch, Data, Source, Split, as_numbers

__all__ = [
    "ArraySource",
    "DataConfig",
    "DatasetSource",
    "PartialSource",
    "Preparation",
    "as_batch",
    "as_inputs",
    "as_labels",
    "as_source",
    "check_countable",
    "draw",
    "hold_out",
    "named_apart",
    "restriction",
    "size_of_batches",
    "split_off",
]


class DataConfig(Family, ABC):
    """The family of data configs; the seed decides the held-out slice and what is generated."""

    @abstractmethod
    def load(self, seed: int) -> Data:
        """Training set, held-out slice and the sets to evaluate on."""


def as_inputs(x: Any) -> Tensor:
    """Inputs as a tensor: floating ones in float32, bytes and other integers as they are."""
    found = as_numbers(x)
    if found is None:
        raise UserError(f"inputs are {_type_name(x)}: they must be numbers, a row per sample")
    if found.ndim < 2:
        raise UserError(f"inputs of shape {tuple(found.shape)}: there must be a row per sample")
    found = found.detach()
    return found.float() if found.is_floating_point() else found


def as_labels(y: Any) -> Tensor:
    """Labels as a tensor of int64, from any type that holds whole numbers."""
    found = as_numbers(y)
    if found is None:
        raise UserError(
            f"labels are {_type_name(y)}: encode them as integers 0..K-1 "
            "(sklearn.preprocessing.LabelEncoder)"
        )
    if found.ndim != 1:
        raise UserError(
            f"labels of shape {tuple(found.shape)}: each sample needs one integer; argmax(1) makes "
            "it of one-hot labels, ravel() of a column"
        )
    whole = found.long()
    if not torch.equal(whole.to(found.dtype), found):
        label = found[(whole != found).nonzero()[0]].item()
        raise UserError(f"label {label} is no whole number: labels are integers 0..K-1")
    return whole


def as_batch(found: Any) -> Batch:
    """What a DataLoader gave, as a batch; anything but inputs and their labels is refused."""
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise UserError(f"the data set gives {_described(found)}: {_REMEDY}")
    x, y = found
    if not isinstance(x, Tensor | np.ndarray):
        raise UserError(f"the data set gives inputs that are {_described(x)}: {_REMEDY}")
    batch = Batch(as_inputs(x), as_labels(y))
    if len(batch.x) != len(batch.y):
        raise UserError(f"a batch has {len(batch.x)} inputs but {len(batch.y)} labels: {_REMEDY}")
    return batch


_REMEDY = "yield (inputs, integer labels); a collate_fn can make them of anything else"


def _type_name(values: Any) -> str:
    dtype = np.asarray(values).dtype
    return "text" if dtype.kind in "US" else f"of type {dtype}"


def _described(found: Any) -> str:
    counted = f" of {len(found)}" if isinstance(found, tuple | list) else ""
    return f"a {type(found).__name__}{counted}"


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


class Preparation(ABC):
    """What happens to a raw batch before the network sees it.

    Random choices are drawn once per epoch for every sample, so that a sample's augmentation
    depends on the seed alone and not on batch size or on how many processes share the work.
    """

    @abstractmethod
    def draw(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """The random choices of one epoch, a row per sample."""

    @abstractmethod
    def __call__(self, x: Tensor, draws: Tensor | None) -> Tensor:
        """The prepared batch; without draws, as at test time."""


@final
class ArraySource(Source):
    """Samples in memory (or memory-mapped), prepared as whole batches on the device."""

    def __init__(self, x: Tensor, y: Tensor, preparation: Preparation | None = None) -> None:
        if len(x) != len(y):
            raise UserError(f"{len(x)} inputs but {len(y)} labels: each input needs one label")
        if len(x) == 0:
            raise UserError("the data set is empty: it needs at least one sample")
        self.x, self.y, self.preparation = x, y, preparation

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.x)

    def order(self, seed: int) -> list[int]:
        """A random permutation."""
        return torch.randperm(len(self), generator=_generator(seed)).tolist()

    def read(
        self, batches: Sequence[Sequence[int]], device: torch.device, seed: int | None = None
    ) -> Iterator[Batch]:
        """One batch per list of indices, prepared on `device`."""
        prepare, draws = self.preparation, None
        if prepare is not None and seed is not None:
            draws = prepare.draw(len(self), _generator(seed))
        for indices in batches:
            rows = torch.as_tensor(indices, dtype=torch.long)
            # index_select: plain indexing of bytes is twenty times slower.
            x = self.x.index_select(0, rows).to(device, non_blocking=True)
            y = self.y[rows].to(device)
            if prepare is not None:
                x = prepare(x, None if draws is None else draws[rows].to(device))
            yield Batch(x, y)


@final
class DatasetSource(Source):
    """A map-style torch data set, decoded by the workers of a DataLoader.

    It consists of the samples that the loader's sampler chooses from; training draws them as the
    sampler does, every other reading takes each of them once. Augmentation, if any, is the data
    set's own.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        check_countable(loader.dataset)
        self.loader = loader
        self.batch_size = size_of_batches(loader)
        self.chosen = restriction(loader)
        self._positions = {index: position for position, index in enumerate(self.chosen or ())}
        # A loader that does not batch converts sample by sample; what it reads here are batches.
        converts = loader.collate_fn is default_convert
        self.collate = default_collate if converts else loader.collate_fn

    def __len__(self) -> int:
        """The number of samples."""
        samples: Any = self.loader.dataset if self.chosen is None else self.chosen
        return len(samples)

    def order(self, seed: int) -> list[int]:
        """What the loader's own sampler draws, its randomness fixed by the seed."""
        drawn = draw(self.loader, seed)
        if self.chosen is None:
            return drawn
        # A sampler may choose anew for every epoch: samples not among `chosen` stand behind them.
        return [self._positions.get(index, len(self.chosen) + index) for index in drawn]

    def place_of(self, index: int) -> int:
        """Where a sample stands in the data set."""
        if self.chosen is None:
            return index
        known = len(self.chosen)
        return self.chosen[index] if index < known else index - known

    def read(
        self, batches: Sequence[Sequence[int]], device: torch.device, seed: int | None = None
    ) -> Iterator[Batch]:
        """One batch per list of indices, through the loader's workers and collate function."""
        places = [[self.place_of(index) for index in indices] for indices in batches]
        loader = DataLoader(
            self.loader.dataset,
            batch_sampler=places,
            num_workers=self.loader.num_workers,
            collate_fn=self.collate,
            pin_memory=self.loader.pin_memory,
            worker_init_fn=self.loader.worker_init_fn,
            # Its own, so that reading does not advance the global one.
            generator=_generator(0 if seed is None else seed),
        )
        for found in loader:
            x, y = as_batch(found)
            yield Batch(x.to(device, non_blocking=True), y.to(device))


@final
class PartialSource(Source):
    """Some samples of another source."""

    def __init__(self, source: Source, indices: Sequence[int]) -> None:
        self.source, self.indices = source, list(indices)

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.indices)

    def order(self, seed: int) -> list[int]:
        """A random permutation."""
        return torch.randperm(len(self), generator=_generator(seed)).tolist()

    def place_of(self, index: int) -> int:
        """Where a sample stands in the data of the whole source."""
        return self.source.place_of(self.indices[index])

    def read(
        self, batches: Sequence[Sequence[int]], device: torch.device, seed: int | None = None
    ) -> Iterator[Batch]:
        """One batch per list of indices into the part."""
        chosen = [[self.indices[index] for index in indices] for indices in batches]
        return self.source.read(chosen, device, seed)


def as_source(data: Any) -> Source:
    """A source from a source, a DataLoader, a map-style Dataset, or a pair of arrays."""
    if isinstance(data, Source):
        return data
    if isinstance(data, DataLoader):
        return DatasetSource(data)
    if isinstance(data, Dataset):
        check_countable(data)
        return DatasetSource(DataLoader(data, batch_size=None, shuffle=True))
    if isinstance(data, tuple) and len(data) == 2:
        x, y = as_inputs(data[0]), as_labels(data[1])
        return ArraySource(x.cpu().contiguous(), y.cpu())
    raise TypeError(
        f"cannot read data from a {type(data).__name__}: "
        "pass a DataLoader, a Dataset or a pair (inputs, labels)"
    )


def hold_out(num_samples: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices to train on and indices held out, split at random by the seed."""
    num_heldout = round(num_samples * fraction)
    if not 0 < num_heldout < num_samples:
        raise ValueError(
            f"holding out {fraction} of {num_samples} samples leaves nothing on one side: "
            "choose a fraction between 0 and 1"
        )
    permutation = torch.randperm(num_samples, generator=_generator(seed))
    return permutation[num_heldout:].sort().values, permutation[:num_heldout].sort().values


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# What a run calls its training samples, and the rows that are about no samples.
RESERVED = ("train", "cost")


def split_off(num_samples: int, fraction: float, seed: int, name: str) -> tuple[Tensor, Tensor]:
    """`hold_out`, with an error that names the set."""
    try:
        return hold_out(num_samples, fraction, seed)
    except ValueError as error:
        raise DataError(f"{name}: {error}") from None


def named_apart(*splits: Split) -> tuple[Split, ...]:
    """`splits`, if no two have the same name, nor one that a run needs for something else.

    The mean over shifts `<set>/<type>/<severity>` is called `<set>`.
    """
    names = [split.name for split in splits]
    shifts = (split.name for split in splits if split.role == "shift" and "/" in split.name)
    means = {name.partition("/")[0]: name for name in shifts}
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two sets are called '{name}': list each once, or rename a file")
        if name in means:
            raise ConfigError(
                f"'{name}' is also the mean over '{means[name]}': list only one, or rename a file"
            )
        if name.partition("/")[0] in RESERVED:
            raise ConfigError(
                f"a set is called '{name}', which a run needs for itself: rename the file or folder"
            )
    return splits
