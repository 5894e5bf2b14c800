"""Distances to the nearest of many stored vectors."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Similarities that are computed at a time: 128 megabytes in float32.
BLOCK = 2**25


@final
class Neighbours(nn.Module):
    """The distance of z / ‖z‖ from the k-th nearest of stored unit vectors.

    ‖a − b‖² = 2 − 2 a·b for unit vectors: one matrix product, in blocks of rows.

    Args:
        num_features: the width of z.
        k: which neighbour; the farthest if fewer vectors are stored.
    """

    bank: Tensor

    def __init__(self, num_features: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.register_buffer("bank", torch.zeros(0, num_features))

    def store(self, z: Tensor) -> None:
        """Keep vectors, (samples, features), normalised, in place of those before."""
        self.bank = F.normalize(z.to(self.bank), dim=-1)

    def forward(self, z: Tensor) -> Tensor:
        """The distances of a batch, (batch,)."""
        z = F.normalize(z, dim=-1)
        if torch.compiler.is_compiling():  # a graph takes batches of any size whole
            return self._distances(z)
        rows = max(1, BLOCK // max(1, len(self.bank)))
        return torch.cat([self._distances(part) for part in z.split(rows)])

    def _distances(self, z: Tensor) -> Tensor:
        nearest = (z @ self.bank.T).topk(min(self.k, len(self.bank)), dim=-1).values
        return (2 - 2 * nearest[:, -1]).clamp_min(0).sqrt()

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take as many vectors as a file has."""
        if (stored := state.get(f"{prefix}bank")) is not None:
            self.bank = self.bank.new_empty(stored.shape)
        super()._load_from_state_dict(state, prefix, *args)
