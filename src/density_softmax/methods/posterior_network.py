"""Posterior Network: a Dirichlet whose pseudo-counts are densities of the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from density_softmax.config import at_least
from density_softmax.errors import UserError
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.densities.base import Latent
from density_softmax.nn.densities.flows import RadialFlow, change_of_variables
from density_softmax.nn.execution import full_precision
from density_softmax.nn.softmax import dirichlet
from density_softmax.training import Descent, Estimate, Stage, Values
from density_softmax.types import Batch, Needs, Prediction


@final
class PosteriorNetwork(Method):
    """Posterior Network (Charpentier, Zügner & Günnemann, NeurIPS 2020).

    p ~ Dir(α) with α_c = 1 + N_c · p_c(u), where u is a latent vector of x, p_c a radial flow of
    class c's own and N_c the number of its training samples. It is trained on
    E[−log p_y] − λ H(Dir(α)) and predicts E[p] = α / α_0. Far from all training data α → 1.

    Aleatoric is the entropy of E[p]. Epistemic is −log Σ_c N_c p_c(u), minus the logarithm of
    all evidence α_0 − K: it orders inputs as −α_0 does, without being rounded to one value far
    away. Neither needs ψ, which ONNX does not have.
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="posterior_network", rank=70, log_density="log Σ N p(u | c)"):
        """Sizes are NatPN's, with the weight for them; the method's own paper has 6, 6 and 1e-5.

        Attributes:
            latent: dimensions of the latent space.
            layers: radial layers of each class's flow.
            entropy_weight: λ, how much the Dirichlet's entropy is rewarded.
            descent: training of everything at once.
        """

        latent: int = 16
        layers: int = 8
        entropy_weight: float = 0.01
        descent: Descent = Descent(epochs=100)

        def __post_init__(self) -> None:
            at_least(self, latent=1, layers=1, entropy_weight=0)

        def needs(self) -> Needs:
            """What it needs beyond a plain classifier."""
            return Needs(prior="Dir(1) on the probabilities")

    config: Config
    counts: Tensor

    def setup(self, example: Tensor | None) -> None:
        """Add the latent space, a flow per class, and the counts of the classes."""
        config = self.config
        self.latent = Latent(self.num_features, config.latent)
        self.flows = RadialFlow(config.latent, config.layers, num_flows=self.num_classes)
        self.register_buffer("counts", torch.ones(self.num_classes))

    def stages(self) -> tuple[Stage, ...]:
        """Count the classes, then train everything at once."""
        count = Estimate("count", self._count, lambda total: self.counts.copy_(total["counts"]))
        return count, self.train_stage(self.config.descent, lambda b: self.loss(b).mean())

    def forward(self, x: Tensor) -> Prediction:
        """E[p], its entropy, and minus the log of all pseudo-counts."""
        log_counts = self.log_counts(self.features(x))
        alpha = self.alpha(log_counts)
        probs = alpha / alpha.sum(-1, keepdim=True)
        return Prediction(probs, dirichlet.entropy_of_mean(alpha), -log_counts.logsumexp(-1))

    def log_counts(self, z: Tensor) -> Tensor:
        """log(N_c p_c(u)) for every class, (batch, classes), in float32."""
        u = self.latent(z)
        with full_precision(u):
            return self.counts.log() + change_of_variables(*self.flows(u[:, None]))

    def alpha(self, log_counts: Tensor) -> Tensor:
        """α_c = 1 + N_c · p_c(u)."""
        return 1 + dirichlet.pseudo_counts(log_counts)

    def loss(self, batch: Batch) -> Tensor:
        """E[−log p_y] − λ H(Dir(α)), per sample."""
        alpha = self.alpha(self.log_counts(self.features(batch.x)))
        return dirichlet.bayesian_loss(alpha, batch.y, self.config.entropy_weight)

    def nll(self, batch: Batch) -> Tensor:
        """−log E[p_y], per sample."""
        alpha = self.alpha(self.log_counts(self.features(batch.x)))
        return dirichlet.nll_of_mean(alpha, batch.y)

    def _count(self, batch: Batch) -> Values:
        legal = (batch.y >= 0) & (batch.y < self.num_classes)
        if not legal.all():
            label = int(batch.y[~legal][0])
            raise UserError(f"label {label}: labels must be 0 to {self.num_classes - 1}")
        return {"counts": F.one_hot(batch.y, self.num_classes).sum(0)}
