"""A look at the training data while it is read for the first time."""

from __future__ import annotations

import torch

from density_softmax.errors import UserError
from density_softmax.types import Batch

__all__ = ["Inspection"]


class Inspection:
    """Rejects inputs and labels that no method can learn from."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.seen = torch.zeros(num_classes, dtype=torch.bool)

    def look(self, batch: Batch, indices: list[int]) -> None:
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
        if int(self.seen.sum()) < 2:
            only = self.seen.nonzero().flatten().tolist()
            raise UserError(f"the training set has one class only ({only}): it needs two")
