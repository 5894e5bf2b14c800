"""DUE: deep kernel learning with a sparse Gaussian process on bi-Lipschitz features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from density_softmax.config import at_least, shares
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.layers.batch_statistics import batch_statistics, set_momentum
from density_softmax.nn.layers.processes import SparseProcess
from density_softmax.nn.layers.variational import add_training_dropout, count_samples
from density_softmax.nn.lipschitz.spectral import constrain
from density_softmax.nn.softmax.averaging import average_members, nll_of_average
from density_softmax.training import Descent, Estimate, Stage, Values
from density_softmax.types import Batch, Needs, Prediction


@final
class DUE(Method):
    """Deterministic Uncertainty Estimation (van Amersfoort, Smith, Jesson, Key & Gal, 2021).

    p(y | x) = E softmax(f(z)) over f_c ~ q, a sparse Gaussian process for every class on the
    features z of an encoder whose layers and batch norms have norms of at most c. Encoder,
    inducing points, kernels and q are trained at once on the evidence lower bound,

        E_q log softmax(f(z))_y − KL(q ‖ p) / N    per sample.

    In training the expectation is over fresh draws; a prediction is over one set of quasi-random
    draws of f that all inputs share and that is kept with the weights, so it can be repeated and
    exported. Aleatoric is the expected entropy, epistemic the mutual information of y and f: near
    0 where the process is sure, and large where its variance returns to the prior's. The authors
    use the entropy of p(y | x), which is the sum of both.
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="due", title="DUE", rank=140):
        """The constraint, the process and their training; the authors' for CIFAR-10.

        Dropout and momentum, which belong to the authors' network, are in the recipes.

        Attributes:
            bound: c, the largest norm of a layer or batch norm of the encoder; null for none.
            num_iterations: power iterations per step.
            norm_momentum: how fast the running statistics of batch norms move, in torch's sense;
                null leaves that of the encoder.
            dropout: rate of dropout in every block while the encoder is trained.
            num_inducing: inducing points; null takes as many as there are classes. Every class
                has a covariance of its own over all of them.
            num_initial: training samples whose features decide where the process begins.
            num_train_samples: draws of f per sample and step (GPyTorch's default).
            num_samples: draws of f that a prediction averages.
            descent: training of everything at once.
        """

        bound: float | None = 3.0
        num_iterations: int = 1
        norm_momentum: float | None = None
        dropout: float = 0.0
        num_inducing: int | None = None
        num_initial: int = 1000
        num_train_samples: int = 10
        num_samples: int = 32
        descent: Descent = Descent(epochs=100)

        def __post_init__(self) -> None:
            at_least(self, num_inducing=1, num_initial=1, num_train_samples=1, num_samples=1)
            shares(self, "norm_momentum", "dropout")

        def needs(self) -> Needs:
            """What it needs beyond a plain classifier."""
            inside = "" if self.bound is None else "bounded norms"
            return Needs(prior="a Gaussian process on features", inside=inside)

    config: Config
    draws: Tensor
    num_data: Tensor

    def setup(self, example: Tensor | None) -> None:
        """Bound the norms of the encoder; add the process and the draws of a prediction."""
        config = self.config
        if config.norm_momentum is not None:
            set_momentum(self.encoder, config.norm_momentum)
        if config.dropout:
            add_training_dropout(self.encoder, config.dropout)
        if config.bound is not None:
            constrain(self.encoder, config.bound, example, config.num_iterations, norms=True)
        num_inducing = config.num_inducing or self.num_classes
        self.process = SparseProcess(self.num_features, self.num_classes, num_inducing)
        self.register_buffer("draws", _normal_draws(config.num_samples, self.num_classes))
        self.register_buffer("num_data", torch.ones(()))

    def stages(self) -> tuple[Stage, ...]:
        """Count the data, find where the process begins, then train everything at once."""
        count = Estimate("count", count_samples, lambda total: self.num_data.copy_(total["count"]))
        inducing = Estimate(
            "inducing",
            statistics=self._features_of_training,
            finish=lambda total: self.process.initialize(total["z"]),
            reduce="concat",
            limit=self.config.num_initial,
        )
        return count, inducing, self.train_stage(self.config.descent, self.loss)

    def forward(self, x: Tensor) -> Prediction:
        """E softmax(f), its expected entropy, and the mutual information."""
        return average_members(self.logits(x))

    def logits(self, x: Tensor) -> Tensor:
        """f = mean + √variance · ε for every kept draw ε, (draws, batch, classes)."""
        mean, variance = self.process(self.features(x))
        return mean + variance.sqrt() * self.draws[:, None]

    def nll(self, batch: Batch) -> Tensor:
        """−log E softmax(f(z))_y over the kept draws."""
        return nll_of_average(self.logits(batch.x), batch.y)

    def loss(self, batch: Batch) -> Tensor:
        """−E_q log softmax(f(z))_y + KL(q ‖ p) / N, mean over the batch."""
        mean, variance = self.process(self.features(batch.x))
        num_draws = self.config.num_train_samples
        f = mean + variance.sqrt() * torch.randn(num_draws, *mean.shape, device=mean.device)
        fit = F.cross_entropy(f.flatten(0, 1), batch.y.repeat(num_draws))
        return fit + self.process.kl() / self.num_data

    def _features_of_training(self, batch: Batch) -> Values:
        with batch_statistics(self.encoder):
            return {"z": self.features(batch.x).float()}


def _normal_draws(num_draws: int, num_classes: int) -> Tensor:
    """Standard normal draws that cover the space evenly, the same every time."""
    uniform = torch.quasirandom.SobolEngine(num_classes, scramble=True, seed=0).draw(num_draws)
    eps = torch.finfo(uniform.dtype).eps
    return torch.special.ndtri(uniform.clamp(eps, 1 - eps))
