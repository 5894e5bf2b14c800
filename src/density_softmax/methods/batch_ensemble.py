"""BatchEnsemble: members that share their kernels up to rank-1 factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.config import at_least
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.layers.decay import sum_of_squares
from density_softmax.nn.layers.rank_one import PointVectors, RankOne
from density_softmax.nn.layers.surgery import WEIGHT_LAYERS, replace_layers
from density_softmax.nn.softmax.averaging import average_members, nll_of_average, tile
from density_softmax.training import Descent, Stage
from density_softmax.types import Batch, Needs, Prediction


@final
class BatchEnsemble(Method):
    """BatchEnsemble (Wen et al. 2020): W_m = W ∘ s_m r_mᵀ for members m = 1, ..., M.

    The kernels W of all convolutions and dense layers, the head's among them, are shared; r_m, s_m
    and biases are a member's own. Trained on the mean cross entropy of the members, each of which
    sees every batch, and an l2 penalty of all but r and s; p(y | x) = 1/M Σ softmax(f_m(x)).
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="batch_ensemble", title="BatchEnsemble", rank=150):
        """The members and how they are trained.

        Attributes:
            num_members: M. One pass holds the batch M times, in training and in prediction.
            initial_std: entries of r and s start from N(1, initial_std²), which is what
                `random_sign_init = -initial_std` means in uncertainty-baselines; a positive value
                there is a probability of +1 among random signs.
            fast_gradient: what the gradient of r, s and the members' biases is multiplied with. An
                optimizer that normalises gradients, like Adam, undoes it.
            l2: weight of Σ w² over all but r and s in the loss; weight decay would pull at these.
            descent: how the network is trained.
        """

        num_members: int = 4
        initial_std: float = 0.5
        fast_gradient: float = 0.5
        l2: float = 0.0
        descent: Descent = Descent(epochs=100)

        def __post_init__(self) -> None:
            at_least(self, num_members=1, initial_std=0, fast_gradient=0, l2=0)

        def needs(self) -> Needs:
            """What it needs beyond a plain classifier."""
            return Needs(passes=self.num_members, inside="vectors for each member")

    config: Config

    def setup(self, example: Tensor | None) -> None:
        """Add the head, and make members of its layer and all of the encoder's."""
        self.head = nn.Linear(self.num_features, self.num_classes)
        replace_layers(self, self._member_layer)

    def _member_layer(self, name: str, layer: nn.Module) -> RankOne | None:
        if not isinstance(layer, WEIGHT_LAYERS):
            return None
        config = self.config
        return RankOne(layer, config.num_members, self._vectors, config.fast_gradient)

    def _vectors(self, width: int) -> PointVectors:
        config = self.config
        values = 1 + config.initial_std * torch.randn(config.num_members, width)
        return PointVectors(values, config.fast_gradient)

    def stages(self) -> tuple[Stage, ...]:
        """One: all members on their mean cross entropy."""
        return (self.train_stage(self.config.descent, self.loss),)

    def forward(self, x: Tensor) -> Prediction:
        """The members' mean softmax, and what they disagree about."""
        return average_members(self.member_logits(x))

    def loss(self, batch: Batch) -> Tensor:
        """The mean cross entropy of the members, and the penalty of what they share."""
        logits = self.member_logits(batch.x).flatten(0, 1)
        nll = F.cross_entropy(logits, tile(batch.y, self.config.num_members))
        return nll + self.config.l2 * sum_of_squares(self)

    def nll(self, batch: Batch) -> Tensor:
        """−log 1/M Σ softmax(f_m(x))_y."""
        return nll_of_average(self.member_logits(batch.x), batch.y)

    def member_logits(self, x: Tensor) -> Tensor:
        """The logits of all members, (members, batch, classes)."""
        return self.logits_of_copies(x, self.config.num_members)
