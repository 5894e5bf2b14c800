"""DDU: a softmax classifier, and a Gaussian per class on features that keep their distances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from density_softmax.config import shares
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.densities import GaussianMixtureDensity
from density_softmax.nn.layers.batch_statistics import set_momentum
from density_softmax.nn.layers.surgery import prevent_feature_collapse
from density_softmax.nn.layers.variational import add_training_dropout
from density_softmax.nn.lipschitz.spectral import constrain
from density_softmax.nn.softmax.head import entropy_of_logits
from density_softmax.training import Descent, Stage
from density_softmax.types import Needs, Prediction


@final
class DDU(Method):
    """Deep Deterministic Uncertainty (Mukhoti et al., CVPR 2023), without temperature scaling.

    p(y | x) = softmax(g(z)) with z = f(x), aleatoric H(p) and epistemic
    −log q(z) = −log Σ_c π_c N(z; μ_c, Σ_c), a Gaussian per class fitted to training features. f is
    a residual network with spectral normalisation, leaky ReLUs and average-pooling shortcuts.
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="ddu", title="DDU", rank=130, log_density="log p(z)"):
        """The network's changes, the density and the training.

        Attributes:
            bound: the largest spectral norm of a layer of the encoder; null for none.
            num_iterations: power iterations per step.
            norms: bound batch norms, too. DUE does; the authors' code of DDU does not.
            norm_momentum: how fast the running statistics of batch norms move, in torch's sense;
                null leaves that of the encoder.
            dropout: rate of dropout in every block while the encoder is trained.
            tied: one covariance for all classes, where a matrix for each is too large.
            descent: training of encoder and head on cross entropy.
        """

        bound: float | None = 3.0
        num_iterations: int = 1
        norms: bool = False
        norm_momentum: float | None = None
        dropout: float = 0.0
        tied: bool = False
        descent: Descent = Descent(epochs=100)

        def __post_init__(self) -> None:
            shares(self, "norm_momentum", "dropout")

        def needs(self) -> Needs:
            """What it needs beyond a plain classifier."""
            bounded = "" if self.bound is None else ", bounded norms"
            return Needs(inside=f"leaky activations{bounded}")

    config: Config

    def setup(self, example: Tensor | None) -> None:
        """Make the encoder sensitive and smooth; add the head and the Gaussians."""
        config = self.config
        prevent_feature_collapse(self.encoder)
        if config.norm_momentum is not None:
            set_momentum(self.encoder, config.norm_momentum)
        if config.dropout:
            add_training_dropout(self.encoder, config.dropout)
        if config.bound is not None:
            constrain(self.encoder, config.bound, example, config.num_iterations, config.norms)
        super().setup(example)
        density = GaussianMixtureDensity.Config(tied=config.tied)
        self.density = density.build(self.num_features, self.num_classes)

    def stages(self) -> tuple[Stage, ...]:
        """The network on cross entropy, then the Gaussians in one pass."""
        return (self.train_stage(self.config.descent), *self.density.stages())

    def forward(self, x: Tensor) -> Prediction:
        """The softmax, its entropy, and −log q(z)."""
        z = self.features(x)
        logits = self.head(z)
        return Prediction(logits.softmax(-1), entropy_of_logits(logits), -self.density.log_prob(z))
