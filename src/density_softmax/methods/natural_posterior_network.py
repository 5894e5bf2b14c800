"""Natural Posterior Network: one density decides how far a softmax moves a Dirichlet prior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from torch import Tensor

from density_softmax.config import at_least
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.densities.base import Latent
from density_softmax.nn.densities.flows import RadialFlow, change_of_variables
from density_softmax.nn.execution import full_precision
from density_softmax.nn.layers.batch_statistics import batch_norms, set_statistics, statistics_of
from density_softmax.nn.softmax import dirichlet
from density_softmax.nn.softmax.head import Head
from density_softmax.training import Adam, Descent, Estimate, Stage, Train
from density_softmax.types import Batch, Needs, Prediction

SAMPLES_OF_NORMS = 1000


@final
class NaturalPosteriorNetwork(Method):
    """Natural Posterior Network (Charpentier, Borchert et al., ICLR 2022).

    The prior Dir(1) stands for K observations, one of each class. The network adds n of its own,
    distributed as softmax(W u): p ~ Dir(α) with α = 1 + n · softmax(W u) and
    n = exp(log p(u) + B), where u is a latent vector of x, p a radial flow, and the certainty
    budget B = ½ log(4π) · H grows with the latent dimension H as densities shrink. It is trained
    on E[−log p_y] − λ H(Dir(α)) and predicts E[p] = α / α_0. Far from all training data α → 1.
    The batch norm of the latents is Posterior Network's; without it an encoder that begins on a
    large scale has no evidence to learn from.

    Aleatoric is the entropy of E[p]. Epistemic is −log n: it orders inputs as −α_0 does, without
    being rounded to one value far away. Neither needs ψ, which ONNX does not have.
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="natural_posterior_network", rank=80, log_density="log N p(u)"):
        """The latent space, its density and the three trainings; sizes and weight are the paper's.

        The flow's rate is ours: on two moons 700 steps of the paper's 1e-3 fit it to a held-out
        log density of 6 nats, 350 of these to one of 34.

        Attributes:
            latent: dimensions of the latent space.
            layers: radial layers of the flow.
            entropy_weight: λ, how much the Dirichlet's entropy is rewarded.
            warmup: fit of the flow to the untrained encoder's latents, or null to leave it out.
            descent: training of everything at once.
            finetune: fit of the flow to the trained latents, or null to leave it out.
        """

        latent: int = 16
        layers: int = 8
        entropy_weight: float = 1e-5
        warmup: Descent | None = Descent(epochs=5, optimizer=Adam(lr=3e-2), clip_norm=10.0)
        descent: Descent = Descent(epochs=100, optimizer=Adam(lr=1e-3))
        finetune: Descent | None = Descent(epochs=50, optimizer=Adam(lr=3e-2), clip_norm=10.0)

        def __post_init__(self) -> None:
            at_least(self, latent=1, layers=1, entropy_weight=0)

        def needs(self) -> Needs:
            """What it needs beyond a plain classifier."""
            return Needs(prior="Dir(1) on the probabilities")

    config: Config

    def setup(self, example: Tensor | None) -> None:
        """Add the latent space, its flow and the layer W."""
        config = self.config
        self.latent = Latent(self.num_features, config.latent)
        self.flow = RadialFlow(config.latent, config.layers)
        self.head = Head(config.latent, self.num_classes)
        self.budget = 0.5 * math.log(4 * math.pi) * config.latent

    def stages(self) -> tuple[Stage, ...]:
        """Warm up the flow, train everything, fine-tune the flow."""
        train = self.train_stage(self.config.descent, lambda batch: self.loss(batch).mean())
        return (*self._warmup(), train, *self._flow_stages("finetune", self.config.finetune))

    def _warmup(self) -> tuple[Stage, ...]:
        flow = self._flow_stages("warmup", self.config.warmup)
        if not flow:
            return ()
        # Batch norms that have seen no data would leave features and latents on any scale.
        latent = Estimate("latent", self.latent.moments, self.latent.set_moments, on="features")
        norms = Estimate(
            "norms",
            statistics=lambda batch: statistics_of(self.encoder, batch.x),
            finish=lambda total: set_statistics(self.encoder, total),
            limit=SAMPLES_OF_NORMS,
        )
        return (*((norms,) if batch_norms(self.encoder) else ()), latent, *flow)

    def _flow_stages(self, name: str, descent: Descent | None) -> tuple[Stage, ...]:
        """Maximum likelihood of the flow alone, on the latents as they are."""
        if descent is None:
            return ()
        flow = Train(
            name,
            loss=lambda batch: -self.log_prob(self.latent(batch.x)).mean(),
            parameters=list(self.flow.parameters()),
            descent=descent,
            on="features",
            monitor=lambda batch: {"nll": -self.log_prob(self.latent(batch.x))},
        )
        return (flow,)

    def forward(self, x: Tensor) -> Prediction:
        """E[p], its entropy, and minus the log evidence."""
        u = self.latent(self.features(x))
        log_evidence = self.log_prob(u) + self.budget
        alpha = self.posterior(u, log_evidence)
        probs = alpha / alpha.sum(-1, keepdim=True)
        return Prediction(probs, dirichlet.entropy_of_mean(alpha), -log_evidence)

    def log_prob(self, u: Tensor) -> Tensor:
        """log p(u), (batch,), in float32."""
        with full_precision(u):
            return change_of_variables(*self.flow(u))

    def posterior(self, u: Tensor, log_evidence: Tensor) -> Tensor:
        """α = 1 + n · softmax(W u)."""
        n = dirichlet.pseudo_counts(log_evidence)[:, None]
        return 1 + n * self.head(u).softmax(-1)

    def alpha(self, x: Tensor) -> Tensor:
        """The Dirichlet's parameters for a batch of inputs, (batch, classes)."""
        u = self.latent(self.features(x))
        return self.posterior(u, self.log_prob(u) + self.budget)

    def nll(self, batch: Batch) -> Tensor:
        """−log E[p_y], per sample."""
        return dirichlet.nll_of_mean(self.alpha(batch.x), batch.y)

    def loss(self, batch: Batch) -> Tensor:
        """E[−log p_y] − λ H(Dir(α)), per sample."""
        return dirichlet.bayesian_loss(self.alpha(batch.x), batch.y, self.config.entropy_weight)
