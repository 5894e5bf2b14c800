"""Sources of batches: arrays in memory, and whatever a torch DataLoader reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, default_convert

from density_softmax.types import Batch, Source

__all__ = ["ArraySource", "DatasetSource", "PartialSource", "Preparation", "as_source", "hold_out"]


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
            raise ValueError(f"{len(x)} inputs but {len(y)} labels: each input needs one label")
        if len(x) == 0:
            raise ValueError("the data set is empty: it needs at least one sample")
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

    Augmentation, if any, is the data set's own.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        if isinstance(loader.dataset, IterableDataset):
            raise ValueError(
                "an IterableDataset cannot be resumed or shared between processes: "
                "wrap it in a map-style Dataset with __len__ and __getitem__"
            )
        self.loader = loader
        self.batch_size = loader.batch_size
        # A loader that does not batch converts sample by sample; what it reads here are batches.
        converts = loader.collate_fn is default_convert
        self.collate = default_collate if converts else loader.collate_fn

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.loader.dataset)  # type: ignore[arg-type]

    def order(self, seed: int) -> list[int]:
        """The indices of the loader's own sampler, its randomness fixed by the seed."""
        batches = self.loader.batch_sampler
        indices = self.loader.sampler if batches is None else chain.from_iterable(batches)
        # A sampler with a generator of its own does not listen to the global seed.
        generator = getattr(self.loader.sampler, "generator", None)
        if generator is not None:
            generator.manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return [int(index) for index in indices]

    def read(
        self, batches: Sequence[Sequence[int]], device: torch.device, seed: int | None = None
    ) -> Iterator[Batch]:
        """One batch per list of indices, through the loader's workers and collate function."""
        loader = DataLoader(
            self.loader.dataset,
            batch_sampler=batches,  # type: ignore[arg-type]
            num_workers=self.loader.num_workers,
            collate_fn=self.collate,
            pin_memory=self.loader.pin_memory,
            worker_init_fn=self.loader.worker_init_fn,
            # Its own, so that reading does not advance the global one.
            generator=_generator(0 if seed is None else seed),
        )
        for x, y in loader:
            yield Batch(x.to(device, non_blocking=True), torch.as_tensor(y).to(device))


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
        # Torch will not shuffle a stream; DatasetSource says what to do instead.
        shuffle = not isinstance(data, IterableDataset)
        return DatasetSource(DataLoader(data, batch_size=None, shuffle=shuffle))
    if isinstance(data, tuple) and len(data) == 2:
        # Torch takes neither read-only arrays nor negative strides: such are copied.
        x, y = (torch.as_tensor(np.require(part, requirements=["C", "W"])) for part in data)
        return ArraySource(x.float() if x.is_floating_point() else x, y.long())
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
