"""How typical an input is: what scales its logits, and what is reported of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.nn.densities import Density
from density_softmax.nn.densities.gaussian import WhitenedDensity
from density_softmax.nn.execution import Derived, at_least_float32, full_precision
from density_softmax.nn.softmax.head import energy_of_logits
from density_softmax.training import Stage, on_columns

# The share of held-out samples whose surprise counts as such.
TAIL = 0.1


class Evidence(NamedTuple):
    """What the experts say of a batch.

    Attributes:
        log_prob: what the scale reads, (batch,), lower = less typical.
        surprise: what is reported as epistemic uncertainty, (batch,), higher = less typical.
        contributions: what each expert adds to the surprise, (batch, experts).
    """

    log_prob: Tensor
    surprise: Tensor
    contributions: Tensor


@final
class Typicality(nn.Module):
    """Experts ℓ_i on features and logits, and the two sums that are made of them.

    The experts are densities on some columns of the features, for class-aware densities their
    likelihood ratio as well, and the classifier's own energy log Σ exp g(z). Their scales differ
    (hundreds of nats for a density of many dimensions, a few for an energy), so each is measured by
    its spread on held-out data:

    - `log_prob` = Σ_i (ℓ_i − median_i) / IQR_i over the densities, a product of experts, each
      tempered to its own spread. It says how far an input has moved, which calibrates best.
    - `surprise` = Σ_i log(1 + exp((a_i − ℓ_i) / b_i)), nearly the sum of −log p-values, which
      detects best. For class-aware experts and the energy, a is the median and b such that the
      10 % quantile has the p-value .1. Densities that ignore the classes see corruptions and OOD
      data of another kind, and are noise where classes decide: the first of them, which is nearest
      to the input, counts below its 10 % quantile, the others beyond all held-out samples, and b is
      their IQR.

    If no density is class-aware, the energy is a part of `log_prob`, and the surprise is −log_prob.
    A single expert is returned as it is.

    Args:
        densities: by name, each with the columns of the features that it reads.
        energy: whether the energy is an expert.
        classes_scale: whether class-aware densities count in `log_prob`.

    Attributes:
        names: of the experts, such as `layers`, `last`, `classes/nearest` and `energy`.
    """

    center: Tensor
    weight: Tensor
    onset: Tensor
    width: Tensor

    def __init__(
        self,
        densities: Mapping[str, tuple[Density, slice]],
        energy: bool = False,
        classes_scale: bool = True,
    ) -> None:
        super().__init__()
        self.densities = nn.ModuleDict({name: density for name, (density, _) in densities.items()})
        self.columns = [columns for _, columns in densities.values()]
        self.energy = energy
        built = [density for density, _ in densities.values()]
        self.class_aware = any(density.class_aware for density in built)
        aware, summed, names = [], [], []
        for name, (density, _) in densities.items():
            own = density.expert_names
            names += [f"{name}/{part}" if part else name for part in own]
            aware += [density.class_aware] * len(own)
            first = classes_scale or not density.class_aware
            summed += [first] + [False] * (len(own) - 1)
        self.names = (*names, *["energy"] * energy)
        self.num_experts = len(self.names)
        self._quadratic = all(isinstance(density, WhitenedDensity) for density in built)
        self._joined = Derived(_joined)
        self._aware = torch.tensor(aware + [True] * energy)
        self._summed = torch.tensor(summed + [not self.class_aware] * energy)
        self._first_blind = (~self._aware).cumsum(0) == 1
        self.register_buffer("center", torch.zeros(self.num_experts))
        self.register_buffer("weight", self._summed.float())  # 1 / IQR; 0 where not summed
        self.register_buffer("onset", torch.zeros(self.num_experts))
        self.register_buffer("width", torch.ones(self.num_experts))

    def stages(self) -> Iterator[Stage]:
        """How the densities are fitted; stages of all but the first end with the density's name."""
        for number, (name, density, columns) in enumerate(self.readers()):
            for stage in density.stages():
                reading = on_columns(stage, columns)
                yield replace(reading, name=f"{stage.name}-{name}") if number else reading

    def experts(self, features: Tensor, logits: Tensor) -> Tensor:
        """ℓ_i of each sample, (batch, experts)."""
        found = [self._sums_of_squares(features)] if self._quadratic else self._each(features)
        if self.energy:
            found.append(energy_of_logits(logits))
        return torch.cat(found, dim=-1) if len(found) > 1 else found[0]

    def _each(self, features: Tensor) -> list[Tensor]:
        return [density.experts(in_columns(features, c)) for _, density, c in self.readers()]

    def _sums_of_squares(self, features: Tensor) -> Tensor:
        """The experts of all densities by one product, to rounding the same as each by its own."""
        roots: list[Tensor] = []
        weights: list[Tensor] = []
        with full_precision(features):
            z = at_least_float32(features)
            for _, density, columns in self.readers():
                assert isinstance(density, WhitenedDensity)
                roots += density.roots(in_columns(z, columns))
                weights += density.weights()
            gather, height = self._joined(*weights)
            return torch.addmm(height, torch.cat(roots, dim=-1).square(), gather)

    def readers(self) -> Iterator[tuple[str, Density, slice]]:
        """Names, densities and the columns that they read."""
        for (name, density), columns in zip(self.densities.items(), self.columns, strict=True):
            assert isinstance(density, Density)
            yield name, density, columns

    def forward(self, features: Tensor, logits: Tensor) -> Evidence:
        """Both sums, from features and from logits at temperature 1."""
        return self.combined(self.experts(features, logits))

    def combined(self, experts: Tensor) -> Evidence:
        """From (batch, experts) to two sums of (batch,)."""
        if self.num_experts == 1:
            return Evidence(experts[:, 0], -experts[:, 0], -experts)
        with full_precision(experts):
            if not self.class_aware:
                parts = (self.center - experts) * self.weight
                surprise = parts.sum(-1)
                return Evidence(-surprise, surprise, parts)
            log_prob = (experts - self.center) @ self.weight
            parts = F.softplus((self.onset - experts) / self.width)
            return Evidence(log_prob, parts.sum(-1), parts)

    def fit(self, experts: Tensor) -> None:
        """The constants of both sums, from the experts of in-domain data, (samples, experts)."""
        if self.num_experts == 1:
            return
        levels = experts.new_tensor([0.0, TAIL, 0.25, 0.5, 0.75]).double()
        lowest, low, lower, median, upper = torch.quantile(experts.double(), levels, dim=0)
        spread = _positive(upper - lower)
        masks = (self._aware, self._summed, self._first_blind)
        aware, summed, first = (mask.to(experts.device) for mask in masks)
        self.center.copy_(median)
        self.weight.copy_(summed / spread)
        self.onset.copy_(torch.where(aware, median, torch.where(first, low, lowest)))
        # log(1 + exp(t)) is −log(TAIL) at t = log(1 / TAIL − 1).
        unit = _positive(median - low) / math.log(1 / TAIL - 1)
        self.width.copy_(torch.where(aware, unit, spread))


def _joined(*weights: Tensor) -> tuple[Tensor, Tensor]:
    """What squares of several densities add up to, (roots, experts), and what is added."""
    return torch.block_diag(*weights[::2]), torch.cat([each.view(-1) for each in weights[1::2]])


def _positive(spread: Tensor) -> Tensor:
    return spread.clamp_min(torch.finfo(torch.float32).eps)


def in_columns(features: Tensor, columns: slice) -> Tensor:
    """Some columns of the features; taking all of them is no operation.

    Args:
        features: (batch, width).
        columns: which of them.
    """
    whole = columns == slice(0, features.shape[1])
    return features if whole else features[:, columns]
