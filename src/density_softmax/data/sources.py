"""What a data config loads: the contract, samples in memory, subsets, and the held-out split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from density_softmax.config import ConfigError, Family
from density_softmax.errors import DataError, UserError
from density_softmax.types import Batch, Data, Inputs, Source, Split

Indices: TypeAlias = NDArray[np.intp]

# Names that rows and sample files already use: the training samples, and rows about cost.
RESERVED = ("train", "cost")


class DataConfig(Family, ABC, package="density_softmax.data"):
    """The family of data configs. The seed decides what is held out and what is generated."""

    @abstractmethod
    def load(self, seed: int) -> Data:
        """Load the training set, the held-out samples and the sets to evaluate on."""


class Preparation(ABC):
    """Turns a raw batch into what the network reads.

    Augmentations are sampled once per epoch for all samples, so that those of a sample depend on
    the seed alone, not on the batch size or on how many processes share the work.
    """

    @abstractmethod
    def sample_augmentations(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """Sample the random choices of one epoch, one row per sample."""

    @abstractmethod
    def __call__(self, x: Tensor, augmentations: Tensor | None) -> Tensor:
        """Prepare a batch; without augmentations, as at test time."""


class ShuffledSource(Source):
    """A source whose training epochs are random permutations of its samples."""

    def order(self, seed: int) -> list[int]:
        """Return a random permutation of the indices."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randperm(len(self), generator=generator).tolist()


@final
class ArraySource(ShuffledSource):
    """Samples in memory (or memory-mapped), prepared as whole batches on the device.

    Args:
        x: inputs, (samples, ...).
        y: labels, (samples,).
        preparation: applied to every batch; None uses the inputs as they are.
    """

    def __init__(
        self, x: Tensor | Inputs, y: Tensor, preparation: Preparation | None = None
    ) -> None:
        if len(x) != len(y):
            raise UserError(f"{len(x)} inputs but {len(y)} labels: each input needs one label")
        if len(x) == 0:
            raise UserError("the data set is empty: it needs at least one sample")
        self.x: Any = x
        self.y, self.preparation = y, preparation

    def __len__(self) -> int:
        return len(self.x)

    def read(
        self, batches: Sequence[Sequence[int]], device: torch.device, seed: int | None = None
    ) -> Iterator[Batch]:
        """Yield one batch per list of indices, prepared on `device`."""
        prepare, augmentations = self.preparation, None
        if prepare is not None and seed is not None:
            generator = torch.Generator().manual_seed(seed)
            augmentations = prepare.sample_augmentations(len(self), generator)
        for indices in batches:
            rows = torch.as_tensor(indices, dtype=torch.long)
            # index_select: plain indexing of bytes is twenty times slower.
            x = self.x.index_select(0, rows).to(device, non_blocking=True)
            y = self.y[rows].to(device)
            if prepare is not None:
                x = prepare(x, None if augmentations is None else augmentations[rows].to(device))
            yield Batch(x, y)


@final
class SubsetSource(ShuffledSource):
    """Some samples of another source.

    Args:
        source: the whole source.
        indices: which of its samples.
    """

    def __init__(self, source: Source, indices: Sequence[int]) -> None:
        self.source, self.indices = source, list(indices)

    def __len__(self) -> int:
        return len(self.indices)

    def original_index(self, index: int) -> int:
        """Return the index of a sample in the data behind the whole source."""
        return self.source.original_index(self.indices[index])

    def read(
        self, batches: Sequence[Sequence[int]], device: torch.device, seed: int | None = None
    ) -> Iterator[Batch]:
        """Yield one batch per list of indices into the subset."""
        chosen = [[self.indices[index] for index in indices] for indices in batches]
        return self.source.read(chosen, device, seed)


def halves(source: Source, seed: int) -> tuple[Source, Source]:
    """Two halves of a source, at random; the first is larger by one if their number is odd.

    Args:
        source: at least two samples.
        seed: decides which.
    """
    first, second = hold_out(len(source), (len(source) // 2) / len(source), seed)
    return SubsetSource(source, first.tolist()), SubsetSource(source, second.tolist())


def batches(source: Source, size: int = 256) -> Iterator[Batch]:
    """All samples of a source in order, on the CPU.

    Args:
        source: any.
        size: samples at a time.
    """
    rows = range(len(source))
    chosen = [rows[begin : begin + size] for begin in range(0, len(rows), size)]
    return source.read(chosen, torch.device("cpu"))


def hold_out(
    num_samples: int, fraction: float, seed: int, name: str = "the data"
) -> tuple[Tensor, Tensor]:
    """Split indices at random into those to train on and those held out, both ascending.

    Args:
        num_samples: how many there are to split.
        fraction: share that is held out, between 0 and 1.
        seed: decides which.
        name: what an error calls the set.
    """
    num_heldout = round(num_samples * fraction)
    if not 0 < num_heldout < num_samples:
        raise DataError(
            f"{name}: holding out {fraction} of {num_samples} samples leaves nothing on one side: "
            "choose a fraction between 0 and 1"
        )
    permutation = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed))
    return permutation[num_heldout:].sort().values, permutation[:num_heldout].sort().values


def hold_out_any(
    num_samples: int, fraction: float, seed: int, name: str = "the data"
) -> tuple[Tensor, Tensor | None]:
    """Split as `hold_out` does, or keep all samples for training where the fraction is exactly 0.

    Args:
        num_samples: how many there are to split.
        fraction: share that is held out, less than 1.
        seed: decides which.
        name: what an error calls the set.
    """
    if fraction == 0:
        return torch.arange(num_samples), None
    return hold_out(num_samples, fraction, seed, name)


def hold_out_by_class(y: Indices, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Split indices into those to train on and those held out, stratified, both ascending.

    The first row of each class, in random order, is for training. The held-out rows are evenly
    spaced among the others, sorted by class; there are none if there are no others.

    Args:
        y: the class of every row, (rows,).
        fraction: share that is held out, between 0 and 1; at least one row is, if it can be.
        seed: decides which.
    """
    order = np.lexsort((np.random.default_rng(seed).random(len(y)), y))
    _, first = np.unique(y[order], return_index=True)
    spare = np.delete(order, first)
    num_heldout = min(max(1, round(fraction * len(y))), len(spare))
    spaced = (np.arange(num_heldout) + 0.5) * len(spare) / max(1, num_heldout)
    heldout = np.sort(spare[spaced.astype(np.intp)])
    return np.setdiff1d(order, heldout), heldout


def checked_splits(*splits: Split) -> tuple[Split, ...]:
    """Return `splits`, after checking that their names can be told apart in rows.

    Args:
        splits: no two may have the same name, nor one that is reserved. The mean over the shifts
            `<set>/<type>/<severity>` is called `<set>`, which no other split may be.
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
                f"a set is called '{name}', a name that runs reserve: rename the file or folder"
            )
    return splits
