"""MIMO: independent subnetworks within one network, each with an input and a head of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from density_softmax.config import ConfigError, at_least
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.layers.surgery import concatenate_inputs, widen_input
from density_softmax.nn.softmax.averaging import average_members, nll_of_average
from density_softmax.nn.softmax.head import Head
from density_softmax.training import Descent, Stage
from density_softmax.types import Batch, Needs, Prediction


@final
class MIMO(Method):
    """Multi-input multi-output (Havasi et al. 2021): 1/M Σ_m softmax(g_m(f(x, ..., x))).

    f reads M inputs, concatenated on their channels. In training they are M different samples,
    −Σ_m log softmax(g_m(f(x_1, ..., x_M)))_{y_m} is minimised, and head m can only learn to tell
    the class of x_m: M independent predictors in one network. In prediction all M inputs are x.
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="mimo", title="MIMO", rank=110):
        """Members and repetitions are those of uncertainty-baselines on CIFAR.

        Attributes:
            num_members: M.
            batch_repetition: how many times each sample is in a training batch, which steadies
                the gradient.
            input_repetition: share of a training batch in which all members see the same sample.
            descent: training of encoder and heads; its batch size counts a sample once.
        """

        num_members: int = 3
        batch_repetition: int = 4
        input_repetition: float = 0.0
        descent: Descent = Descent(epochs=100)

        def __post_init__(self) -> None:
            at_least(self, num_members=1, batch_repetition=1)
            if not 0 <= self.input_repetition <= 1:
                raise ConfigError(f"input_repetition={self.input_repetition}: choose 0 to 1")

        def needs(self) -> Needs:
            """What it needs beyond a plain classifier."""
            return Needs(inside="a wider first layer")

    config: Config

    def setup(self, example: Tensor | None) -> None:
        """Widen the encoder's first layer; add a head per member."""
        num_members = self.config.num_members
        widen_input(self.encoder, num_members, example)
        self.heads = Head(self.num_features, num_members * self.num_classes)

    def stages(self) -> tuple[Stage, ...]:
        """One: the whole network on the cross entropies of all members."""
        return (self.train_stage(self.config.descent, self.loss),)

    def forward(self, x: Tensor) -> Prediction:
        """1/M Σ_m softmax(g_m(f(x, ..., x))), and what the members disagree about."""
        return average_members(self.member_logits(self.features(x)))

    def features(self, x: Tensor) -> Tensor:
        """f(x, ..., x)."""
        return super().features(concatenate_inputs(x.expand(self.config.num_members, *x.shape)))

    def deal(self, num_samples: int, device: torch.device | None = None) -> Tensor:
        """Which sample of a training batch each member sees at each place, (members, places).

        All members see the whole batch, repeated, each in an order of its own; but at the last
        places, a share of `input_repetition`, they see the same.
        """
        num_places = num_samples * self.config.batch_repetition
        deck = torch.randperm(num_places, device=device) % num_samples
        num_own = round(num_places * (1 - self.config.input_repetition))
        own = torch.rand(self.config.num_members, num_own, device=device).argsort(1)
        return torch.cat([deck[own], deck[num_own:].expand(self.config.num_members, -1)], dim=1)

    def loss(self, batch: Batch) -> Tensor:
        """−Σ_m log softmax(g_m(f(x_1, ..., x_M)))_{y_m}, mean over the batch."""
        return self.member_nlls(batch).mean(1).sum()

    def nll(self, batch: Batch) -> Tensor:
        """−log 1/M Σ_m softmax(g_m(f(x, ..., x)))_y."""
        return nll_of_average(self.member_logits(self.features(batch.x)), batch.y)

    def member_nlls(self, batch: Batch) -> Tensor:
        """−log softmax(g_m(f(x_1, ..., x_M)))_{y_m} at each place, (members, places)."""
        dealt = self.deal(len(batch.y), batch.y.device)
        logits = self.member_logits(super().features(concatenate_inputs(batch.x[dealt])))
        return F.cross_entropy(logits.movedim(-1, 1), batch.y[dealt], reduction="none")

    def member_logits(self, z: Tensor) -> Tensor:
        """The logits of every head, (members, batch, classes)."""
        return self.heads(z).unflatten(1, (-1, self.num_classes)).transpose(0, 1)
