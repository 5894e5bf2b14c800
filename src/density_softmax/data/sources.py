"""Sources of batches: arrays in memory, and whatever a torch DataLoader reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate, default_convert

from density_softmax.data.conversion import as_batch, as_inputs, as_labels
from density_softmax.data.sampling import check_countable, draw, restriction, size_of_batches
from density_softmax.errors import UserError
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
