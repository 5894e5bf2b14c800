"""A look at data, before the first step or while they are read for the first time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from density_softmax.data.sources import ArraySource
from density_softmax.engine.passes import all_reduce
from density_softmax.errors import UserError
from density_softmax.nn.classifier import Classifier
from density_softmax.types import Batch, Inputs, Source, tensors_of

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Samples looked at together before the first step.
AT_ONCE = 256


class Inspection:
    """Rejects inputs and labels that no method can learn from.

    Attributes:
        kind: what messages call the data.
        least_classes: how many classes a whole pass has to show.
        pending: whether no whole pass has been looked at yet.
        example: an input of the last batch looked at, (1, ...).
    """

    def __init__(self, num_classes: int, kind: str = "training", least_classes: int = 2) -> None:
        self.num_classes, self.kind, self.least_classes = num_classes, kind, least_classes
        self.pending = True
        self.seen = torch.zeros(num_classes, dtype=torch.bool)
        self.example: Tensor | Inputs | None = None

    def look(self, batch: Batch, places: Sequence[int]) -> None:
        """Check one batch; errors name the sample, by its place in the data."""
        self.example = batch.x[:1]
        parts = [each.isfinite().flatten(1).all(1) for each in tensors_of(batch.x)]
        finite = torch.stack(parts).all(0)
        if not finite.all():
            sample = places[int((~finite).nonzero()[0])]
            raise UserError(f"{self.kind} sample {sample} has NaN or infinite values: remove it")
        legal = (batch.y >= 0) & (batch.y < self.num_classes)
        if not legal.all():
            row = int((~legal).nonzero()[0])
            raise UserError(
                f"{self.kind} sample {places[row]} has label {int(batch.y[row])}: "
                f"labels must be 0 to {self.num_classes - 1}"
            )
        self.seen[batch.y.cpu()] = True

    def describe(self, method: Classifier) -> None:
        """Tell a model that was built without an example what its inputs look like."""
        unknown = method.example_shape is None and method.example_inputs is None
        if unknown and self.example is not None:
            method.describe_inputs(self.example)

    def gather(self, fabric: Fabric) -> None:
        """Add what the other processes have seen of the same pass."""
        seen = all_reduce(fabric, self.seen.int().to(fabric.device))
        self.seen = seen.bool().cpu()

    def conclude(self) -> None:
        """Check what only a whole pass can show."""
        self.pending = False
        if int(self.seen.sum()) < self.least_classes:
            only = self.seen.nonzero().flatten().tolist()
            raise UserError(f"the {self.kind} set has one class only ({only}): it needs two")


class InspectedSource(Source):
    """Data that are looked at wherever they are read, until the inspection is concluded."""

    def __init__(self, source: Source, inspection: Inspection) -> None:
        self.source, self.inspection = source, inspection
        self.batch_size = source.batch_size

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.source)

    def order(self, seed: int) -> Sequence[int]:
        """The indices of one training epoch."""
        return self.source.order(seed)

    def original_index(self, index: int) -> int:
        """Return the index of a sample in its owner's data."""
        return self.source.original_index(index)

    def look_ahead(self) -> None:
        """Look at everything, if it is in memory as it will be read."""
        if isinstance(self.source, ArraySource) and self.source.preparation is None:
            samples = range(len(self))
            batches = [samples[i : i + AT_ONCE] for i in range(0, len(samples), AT_ONCE)]
            for _ in self.read(batches, torch.device("cpu")):
                pass
            self.inspection.conclude()

    def read(
        self, batches: Sequence[Sequence[int]], device: torch.device, seed: int | None = None
    ) -> Iterator[Batch]:
        """The batches of the source, none of them with a sample that cannot be learned from."""
        for indices, batch in zip(batches, self.source.read(batches, device, seed), strict=True):
            if self.inspection.pending:
                self.inspection.look(batch, [self.original_index(index) for index in indices])
            yield batch
