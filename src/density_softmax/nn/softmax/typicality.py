"""How typical an input is: a log density, or the sum of several standardised scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from density_softmax.nn.densities import Density
from density_softmax.nn.execution import full_precision
from density_softmax.training import Stage, on_columns


@final
class Typicality(nn.Module):
    """Σ_i (ℓ_i − median_i) / IQR_i: a product of experts, each tempered to its own spread.

    The experts ℓ_i are densities on some columns of the features and the classifier's own energy
    log Σ exp g(z). Their scales differ (hundreds of nats for a density of many dimensions, a few
    for an energy), so they are divided by their in-domain spreads before they are added. A single
    expert is returned as it is.

    Args:
        densities: by name, each with the columns of the features that it reads.
        energy: whether the energy is an expert.
    """

    center: Tensor
    weight: Tensor

    def __init__(self, densities: dict[str, tuple[Density, slice]], energy: bool = False) -> None:
        super().__init__()
        self.densities = nn.ModuleDict({name: density for name, (density, _) in densities.items()})
        self.columns = [columns for _, columns in densities.values()]
        self.energy = energy
        num_experts = len(densities) + energy
        self.register_buffer("center", torch.zeros(num_experts))
        self.register_buffer("weight", torch.ones(num_experts))  # 1 / IQR

    def stages(self) -> Iterator[Stage]:
        """How the densities are fitted; stages of all but the first end with the density's name."""
        for number, (name, density, columns) in enumerate(self._readers()):
            for stage in density.stages():
                reading = on_columns(stage, columns)
                yield replace(reading, name=f"{stage.name}-{name}") if number else reading

    def experts(self, features: Tensor, logits: Tensor) -> Tensor:
        """ℓ_i of each sample, (batch, experts)."""
        found = [density.log_prob(in_columns(features, c)) for _, density, c in self._readers()]
        if self.energy:
            found.append(logits.logsumexp(-1))
        return torch.stack(found, dim=-1)

    def _readers(self) -> Iterator[tuple[str, Density, slice]]:
        """Names, densities and the columns that they read."""
        for (name, density), columns in zip(self.densities.items(), self.columns, strict=True):
            assert isinstance(density, Density)
            yield name, density, columns

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """The typicality, (batch,), from features and from logits at temperature 1."""
        if self.energy or len(self.columns) > 1:
            return self.combined(self.experts(features, logits))
        ((_, density, columns),) = self._readers()
        return density.log_prob(in_columns(features, columns))

    def combined(self, experts: Tensor) -> Tensor:
        """From (batch, experts) to (batch,)."""
        if len(self.center) == 1:
            return experts[:, 0]
        with full_precision(experts):
            return (experts - self.center) @ self.weight

    def fit(self, experts: Tensor) -> None:
        """Medians and interquartile ranges of in-domain data."""
        if len(self.center) == 1:
            return
        levels = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64, device=experts.device)
        lower, median, upper = torch.quantile(experts.double(), levels, dim=0)
        self.center.copy_(median)
        self.weight.copy_(1 / (upper - lower).clamp_min(torch.finfo(torch.float32).eps))


def in_columns(features: Tensor, columns: slice) -> Tensor:
    """Some columns of the features; taking all of them is no operation.

    Args:
        features: (batch, width).
        columns: which of them.
    """
    whole = columns == slice(0, features.shape[1])
    return features if whole else features[:, columns]
