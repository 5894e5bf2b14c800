"""A look at the training data while it is read for the first time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from density_softmax.errors import UserError
from density_softmax.types import Batch, Source

__all__ = ["InspectedSource", "Inspection"]


class Inspection:
    """Rejects inputs and labels that no method can learn from.

    Attributes:
        pending: whether no whole pass has been looked at yet.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.pending = True
        self.seen = torch.zeros(num_classes, dtype=torch.bool)

    def look(self, batch: Batch, indices: Sequence[int]) -> None:
        """Check one batch; errors name the sample."""
        finite = batch.x.isfinite().flatten(1).all(1)
        if not finite.all():
            sample = indices[int((~finite).nonzero()[0])]
            raise UserError(f"training sample {sample} has NaN or infinite values: remove it")
        legal = (batch.y >= 0) & (batch.y < self.num_classes)
        if not legal.all():
            row = int((~legal).nonzero()[0])
            raise UserError(
                f"training sample {indices[row]} has label {int(batch.y[row])}: "
                f"labels must be 0 to {self.num_classes - 1}"
            )
        self.seen[batch.y.cpu()] = True

    def conclude(self) -> None:
        """Check what only a whole pass can show."""
        self.pending = False
        if int(self.seen.sum()) < 2:
            only = self.seen.nonzero().flatten().tolist()
            raise UserError(f"the training set has one class only ({only}): it needs two")


class InspectedSource(Source):
    """Training data that are looked at wherever they are read, until a whole pass is over."""

    def __init__(self, source: Source, inspection: Inspection) -> None:
        self.source, self.inspection = source, inspection
        self.batch_size = source.batch_size

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.source)

    def order(self, seed: int) -> Sequence[int]:
        """The indices of one training epoch."""
        return self.source.order(seed)

    def read(
        self, batches: Sequence[Sequence[int]], device: torch.device, seed: int | None = None
    ) -> Iterator[Batch]:
        """The batches of the source, none of them with a sample that cannot be learned from."""
        for indices, batch in zip(batches, self.source.read(batches, device, seed), strict=True):
            if self.inspection.pending:
                self.inspection.look(batch, indices)
            yield batch
