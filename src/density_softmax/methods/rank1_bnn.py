"""Rank-1 Bayesian network: point kernels, Gaussian rank-1 factors, a mixture of members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.config import ConfigError, at_least
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.layers.decay import sum_of_squares
from density_softmax.nn.layers.rank_one import (
    BATCH_NORMS,
    GaussianVectors,
    MemberBatchNorm,
    RankOne,
    random_signs,
)
from density_softmax.nn.layers.surgery import WEIGHT_LAYERS, replace_layers
from density_softmax.nn.layers.variational import AnnealedKL
from density_softmax.nn.softmax.averaging import average_members, in_chunks, nll_of_average, tile
from density_softmax.training import Descent, Stage
from density_softmax.types import Batch, Needs, Prediction


@final
class Rank1BNN(Method):
    """Rank-1 BNN (Dusenberry et al. 2020): W_m = W ∘ s_m r_mᵀ with r_m, s_m ~ N(μ_m, σ_m²).

    The kernels W of all convolutions and dense layers, the head's among them, are shared point
    estimates; the posterior is a mixture of M members. Trained on the mean over members of
    −E_q log p(y | x, r_m, s_m), plus KL(q ‖ p) / N, annealed in, with p = N(1, σ₀²), plus an l2
    penalty of all but r and s. p(y | x) = 1/MS Σ softmax(f(x; r_ms, s_ms)).
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="rank1_bnn", title="Rank-1 BNN", rank=60):
        """How the posterior is learned and sampled.

        Attributes:
            num_members: M, the components of the mixture.
            num_samples: S, how often each member is drawn for a prediction; training draws once.
            chunk: how many samples of all members one pass holds, to save memory; 0 for all.
            positive: with which probability an entry of r or s starts at +1, otherwise at −1.
            initial_std: where the standard deviations of r and s start: that of dropout at rate
                1e-3, √(1e-3 / .999).
            prior_std: the standard deviation σ₀ of the prior.
            annealing_epochs: after how many epochs the divergence counts in full.
            member_norm: give each member batch norms of its own.
            l2: weight of Σ w² over all but r and s in the loss; weight decay would pull at these.
            descent: how the network is trained.
        """

        num_members: int = 4
        num_samples: int = 1
        chunk: int = 0
        positive: float = 0.5
        initial_std: float = (1e-3 / 0.999) ** 0.5
        prior_std: float = 0.1
        annealing_epochs: int = 200
        member_norm: bool = False
        l2: float = 0.0
        descent: Descent = Descent(epochs=100)

        def __post_init__(self) -> None:
            at_least(self, num_members=1, num_samples=1, chunk=0, annealing_epochs=1, l2=0)
            for name in ("initial_std", "prior_std"):
                if not getattr(self, name) > 0:
                    raise ConfigError(f"{name}={getattr(self, name)}: choose a positive number")
            if not 0 <= self.positive <= 1:
                raise ConfigError(f"positive={self.positive}: choose a probability from 0 to 1")

        def needs(self) -> Needs:
            """What it needs beyond a plain classifier."""
            prior = f"N(1, {self.prior_std:g}²) on each vector"
            passes = self.num_members * self.num_samples
            return Needs(passes, prior=prior, inside="vectors for each member")

    config: Config
    draws_samples = True

    def setup(self, example: Tensor | None) -> None:
        """Add the head, and make members of its layer and all of the encoder's."""
        self.head = nn.Linear(self.num_features, self.num_classes)
        self.kl = AnnealedKL(self.config.annealing_epochs, self.config.descent.batch_size)
        replace_layers(self, self._member_layer)

    def _member_layer(self, name: str, layer: nn.Module) -> nn.Module | None:
        if isinstance(layer, WEIGHT_LAYERS):
            return RankOne(layer, self.config.num_members, self._vectors)
        if self.config.member_norm and isinstance(layer, BATCH_NORMS):
            return MemberBatchNorm(layer, self.config.num_members)
        return None

    def _vectors(self, width: int) -> GaussianVectors:
        config = self.config
        signs = random_signs(config.num_members, width, config.positive)
        return GaussianVectors(signs, config.initial_std, 1.0, config.prior_std)

    def stages(self) -> tuple[Stage, ...]:
        """Count the samples, then the whole network on the evidence bound."""
        train = self.train_stage(self.config.descent, self.loss, after_step=self.kl.after_step())
        return self.kl.count(), train

    def forward(self, x: Tensor) -> Prediction:
        """The mean softmax over members and draws, and what they disagree about."""
        return average_members(self.sample_logits(x))

    def loss(self, batch: Batch) -> Tensor:
        """The negative evidence bound per sample, and the penalty of what has no posterior."""
        num_members = self.config.num_members
        logits = self.head(self.features(tile(batch.x, num_members)))
        nll = F.cross_entropy(logits, tile(batch.y, num_members))
        return nll + self.kl(self) + self.config.l2 * sum_of_squares(self)

    def nll(self, batch: Batch) -> Tensor:
        """−log of the mean probability over members and draws."""
        return nll_of_average(self.sample_logits(batch.x), batch.y)

    def sample_logits(self, x: Tensor) -> Tensor:
        """Logits of all members under draws of their vectors, (members · samples, batch, classes).

        Copies of the batch go to the members in turn: the first `number` to the first, and so on.
        """

        def sample(number: int) -> Tensor:
            return self.logits_of_copies(x, self.config.num_members * number)

        return in_chunks(sample, self.config.num_samples, self.config.chunk)
