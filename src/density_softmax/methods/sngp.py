"""SNGP: spectral normalisation, and a Gaussian process for the last layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from torch import Tensor
from torch.nn import functional as F

from density_softmax.config import ConfigError
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.layers.decay import sum_of_squares
from density_softmax.nn.layers.processes import RandomFeatureProcess
from density_softmax.nn.lipschitz.spectral import constrain
from density_softmax.nn.softmax.head import entropy_of_logits
from density_softmax.training import Descent, Estimate, Stage
from density_softmax.types import Batch, Needs, Prediction


@final
class SNGP(Method):
    """Spectral-normalized Neural Gaussian Process (Liu et al. 2020; JMLR 2023).

    p(y | x) = softmax(g(z) / √(1 + λ v(z))) with z = f(x), where g is the posterior mean and v the
    posterior variance of a Gaussian process on z (Lu et al. 2020, https://arxiv.org/abs/2006.07584:
    the mean-field approximation of E softmax(g + √v ε)). Layers of f have norms of at most c, so
    that z keeps the distances that v measures.

    Aleatoric is the entropy of softmax(g), epistemic is v. For out-of-distribution scores the
    paper takes Dempster-Shafer's K / (K + Σ exp g_c) of the scaled logits, which says little of
    distance where logits are large: v is what the method itself holds to be its ignorance.
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="sngp", title="SNGP", rank=100):
        """The constraint, the process and their training; uncertainty-baselines' for CIFAR-10.

        Attributes:
            bound: c, the largest spectral norm of a layer of the encoder; null for none.
            num_iterations: power iterations per step.
            process: the Gaussian process.
            mean_field_factor: λ. π/8 is right for the probit; uncertainty-baselines tunes it, as
                v is that of another likelihood.
            l2: l2 · Σ w² over the encoder is added to the loss. β is left alone, as its prior is
                a part of v.
            descent: training of everything at once, on the cross entropy of softmax(g).
        """

        bound: float | None = 6.0
        num_iterations: int = 1
        process: RandomFeatureProcess.Config = RandomFeatureProcess.Config()
        mean_field_factor: float = 20.0
        l2: float = 0.0
        descent: Descent = Descent(epochs=100)

        def __post_init__(self) -> None:
            if self.mean_field_factor < 0:
                raise ConfigError(
                    f"mean_field_factor={self.mean_field_factor}: choose 0, which ignores the "
                    f"variance, or more, such as π/8 = {math.pi / 8:.3f}"
                )

        def needs(self) -> Needs:
            """What it needs beyond a plain classifier."""
            inside = "" if self.bound is None else "bounded norms"
            return Needs(prior="a Gaussian process on features", inside=inside)

    config: Config

    def setup(self, example: Tensor | None) -> None:
        """Bound the norms of the encoder, and put the process behind it."""
        config = self.config
        if config.bound is not None:
            constrain(self.encoder, config.bound, example, config.num_iterations)
        self.process = config.process.build(self.num_features, self.num_classes)

    def stages(self) -> tuple[Stage, ...]:
        """The network and β on cross entropy, then the variance, exactly, in one pass."""
        precision = Estimate(
            "precision",
            statistics=lambda batch: self.process.sums(batch.x),
            finish=self.process.estimate,
            on="features",
        )
        return self.train_stage(self.config.descent, self.loss), precision

    def forward(self, x: Tensor) -> Prediction:
        """softmax(g / √(1 + λ v)), the entropy of softmax(g), and v."""
        logits, variance = self.process(self.features(x))
        scaled = logits / (1 + self.config.mean_field_factor * variance).sqrt()[:, None]
        return Prediction(scaled.softmax(-1), entropy_of_logits(logits), variance)

    def loss(self, batch: Batch) -> Tensor:
        """Mean cross entropy of softmax(g) + l2 Σ w²."""
        nll = self.nll(batch).mean()
        return nll + self.config.l2 * sum_of_squares(self.encoder) if self.config.l2 else nll

    def nll(self, batch: Batch) -> Tensor:
        """−log softmax(g)_y, without the variance."""
        logits = self.process.logits(self.features(batch.x))
        return F.cross_entropy(logits, batch.y, reduction="none")
