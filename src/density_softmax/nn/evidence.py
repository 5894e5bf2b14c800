"""Several log densities as one."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

__all__ = ["Evidence"]


@final
class Evidence(nn.Module):
    """Σ_i (ℓ_i − median_i) / IQR_i: a product of experts, each tempered to its own spread.

    The experts live on scales of their own (hundreds of nats for a density of many dimensions,
    a few for the energy of a classifier); divided by their in-domain spreads they can be added.
    A single expert is passed on as it is.
    """

    center: Tensor
    spread: Tensor

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.register_buffer("center", torch.zeros(num_experts))
        self.register_buffer("spread", torch.ones(num_experts))

    def forward(self, experts: Tensor) -> Tensor:
        """From (batch, experts) to (batch,)."""
        if self.num_experts == 1:
            return experts[:, 0]
        return ((experts - self.center) / self.spread).sum(-1)

    def fit(self, experts: Tensor) -> None:
        """Medians and interquartile ranges of in-domain data."""
        if self.num_experts == 1:
            return
        levels = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64, device=experts.device)
        lower, median, upper = torch.quantile(experts.double(), levels, dim=0)
        self.center.copy_(median)
        self.spread.copy_((upper - lower).clamp_min(torch.finfo(torch.float32).eps))
