"""Mean-field variational inference: a network whose every weight is a Gaussian."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.config import ConfigError, at_least
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.layers.decay import sum_of_squares
from density_softmax.nn.layers.surgery import WEIGHT_LAYERS, replace_layers
from density_softmax.nn.layers.variational import AnnealedKL, Flipout
from density_softmax.nn.softmax.averaging import average_members, in_chunks, nll_of_average
from density_softmax.training import Descent, Stage
from density_softmax.types import Batch, Needs, Prediction


@final
class MeanField(Method):
    """Mean-field variational inference (Blundell et al. 2015) with Flipout (Wen et al. 2018).

    All kernels of convolutions and dense layers, the head's among them, have the posterior
    q(W) = N(W̄, σ²). Trained on −E_q log p(y | x, W) + KL(q ‖ p) / N, whose second term is annealed
    in and whose prior has the posterior's mean; p(y | x) = 1/S Σ softmax(f(x; W_s)).
    Biases and batch norms are point estimates under an l2 penalty.
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="mean_field", title="Mean-Field VI", rank=50):
        """How the posterior is learned and sampled.

        Attributes:
            num_samples: S, how often the weights are drawn for a prediction; training draws once.
                Draws of one pass are flips of one ΔW, as those of a batch are under Flipout. With 1
                there is nothing to disagree: epistemic is 0 everywhere.
            chunk: how many samples one pass holds, to save memory; 0 for all.
            initial_std: where all standard deviations σ start.
            prior_std: the standard deviation of the prior.
            annealing_epochs: after how many epochs the divergence counts in full.
            l2: weight of Σ w² over biases and batch norms in the loss; weight decay would also
                pull at the posterior.
            descent: how the network is trained.
        """

        num_samples: int = 5
        chunk: int = 0
        initial_std: float = 1e-3
        prior_std: float = 0.1
        annealing_epochs: int = 200
        l2: float = 0.0
        descent: Descent = Descent(epochs=100)

        def __post_init__(self) -> None:
            at_least(self, num_samples=1, chunk=0, annealing_epochs=1, l2=0)
            for name in ("initial_std", "prior_std"):
                if not getattr(self, name) > 0:
                    raise ConfigError(f"{name}={getattr(self, name)}: choose a positive number")

        def needs(self) -> Needs:
            """What it needs beyond a plain classifier."""
            prior = f"N(μ, {self.prior_std:g}²) on each weight"
            return Needs(self.num_samples, prior=prior, inside="a Gaussian for each weight")

    config: Config
    draws_samples = True

    def setup(self, example: Tensor | None) -> None:
        """Add the head, and give a posterior to its weights and all of the encoder's."""
        self.head = nn.Linear(self.num_features, self.num_classes)
        self.kl = AnnealedKL(self.config.annealing_epochs, self.config.descent.batch_size)
        replace_layers(self, self._flipout)

    def _flipout(self, name: str, layer: nn.Module) -> Flipout | None:
        if not isinstance(layer, WEIGHT_LAYERS):
            return None
        return Flipout(layer, self.config.initial_std, self.config.prior_std)

    def stages(self) -> tuple[Stage, ...]:
        """Count the samples, then the whole network on the evidence bound."""
        train = self.train_stage(self.config.descent, self.loss, after_step=self.kl.after_step())
        return self.kl.count(), train

    def forward(self, x: Tensor) -> Prediction:
        """The mean softmax over draws of the weights, and what the draws disagree about."""
        return average_members(self.sample_logits(x))

    def loss(self, batch: Batch) -> Tensor:
        """The negative evidence bound per sample, and the penalty of what has no posterior."""
        nll = F.cross_entropy(self.head(self.features(batch.x)), batch.y)
        return nll + self.kl(self) + self.config.l2 * sum_of_squares(self)

    def nll(self, batch: Batch) -> Tensor:
        """−log 1/S Σ softmax(f(x; W_s))_y."""
        return nll_of_average(self.sample_logits(batch.x), batch.y)

    def sample_logits(self, x: Tensor) -> Tensor:
        """Logits under draws of the weights, (samples, batch, classes)."""
        sample = partial(self.logits_of_copies, x)
        return in_chunks(sample, self.config.num_samples, self.config.chunk)
