"""Density-Softmax: a softmax whose logits are scaled by the density of their features."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.densities import DensityConfig, FlowDensity
from density_softmax.nn.head import Head, entropy_of_logits
from density_softmax.nn.penalty import frobenius_penalty
from density_softmax.nn.scale import QuantileScale, ScaleConfig
from density_softmax.optimization import Adam, Descent
from density_softmax.stages import Estimate, Stage, Train, Values
from density_softmax.types import Batch, Prediction

__all__ = ["DensitySoftmax"]


@final
class DensitySoftmax(Method):
    """Density-Softmax (Bui & Liu, ICML 2024): softmax(s(log p(z)) · g(z)) with z = f(x) (Eq. 7).

    f is pulled towards Lipschitz constant 1, p(z) is a light density on its features and s maps
    log densities to factors in (0, 1]. Typical inputs keep the plain softmax; far from the
    training data the prediction becomes uniform (Theorem 1).
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="density_softmax"):
        """The parts and the three trainings of Algorithm 1.

        Attributes:
            penalty: λ, the weight of the gradient penalty in Eq. 4; 0 leaves it out.
            density: which p(z; α), and how it is fitted.
            scale: how log densities become factors.
            representation: training of encoder and head (Eq. 4).
            head: training of the head on scaled logits (Eq. 6), or null to leave it out.
        """

        penalty: float = 1e-2
        density: DensityConfig = field(default_factory=FlowDensity.Config)
        scale: ScaleConfig = field(default_factory=QuantileScale.Config)
        representation: Descent = Descent(epochs=100)
        head: Descent | None = Descent(epochs=1, optimizer=Adam(lr=1e-4))

        def build(
            self, encoder: nn.Module, num_classes: int, example: Tensor | None = None
        ) -> DensitySoftmax:
            """An untrained method around `encoder`."""
            return DensitySoftmax(encoder, num_classes, self, example)

    config: Config

    def __init__(
        self,
        encoder: nn.Module,
        num_classes: int,
        config: Config | None = None,
        example: Tensor | None = None,
    ) -> None:
        config = config or DensitySoftmax.Config()
        super().__init__(encoder, num_classes, config, example)
        self.head = Head(self.num_features, num_classes)
        self.density = config.density.build(self.num_features)
        self.scale = config.scale.build()

    def stages(self) -> tuple[Stage, ...]:
        """Algorithm 1: representation, density, scale, head."""
        representation = Train(
            "representation",
            loss=self.representation_loss,
            parameters=[*self.encoder.parameters(), *self.head.parameters()],
            descent=self.config.representation,
            monitor=self._monitor_representation,
        )
        scale = Estimate(
            "scale",
            statistics=self._scale_statistics,
            finish=self._fit_scale,
            reduce="concat",
            on="features",
            split=self.scale.fitted_on,
        )
        return (representation, *self.density.stages(), scale, *self._head_stages())

    def _head_stages(self) -> tuple[Stage, ...]:
        if self.config.head is None:
            return ()
        head = Train(
            "head",
            loss=lambda batch: self._scaled_nll(batch).mean(),
            parameters=list(self.head.parameters()),
            descent=self.config.head,
            on="features",
            monitor=lambda batch: {"nll": self._scaled_nll(batch)},
        )
        return (head,)

    def forward(self, x: Tensor) -> Prediction:
        """Eq. 7, the entropy of softmax(g(z)), and −log p(z), all from one pass."""
        z = self.features(x)
        logits = self.head(z).float()
        log_prob = self.density.log_prob(z)
        probs = (self.scale(log_prob)[:, None] * logits).softmax(-1)
        return Prediction(probs, entropy_of_logits(logits), -log_prob)

    def representation_loss(self, batch: Batch) -> Tensor:
        """Eq. 4: cross entropy + λ E(‖∂f/∂x‖ − 1)²."""
        if self.config.penalty == 0:
            return F.cross_entropy(self.head(self.features(batch.x)), batch.y)
        z, penalty = frobenius_penalty(self.features, batch.x)
        return F.cross_entropy(self.head(z), batch.y) + self.config.penalty * penalty

    def _monitor_representation(self, batch: Batch) -> Values:
        logits = self.head(self.features(batch.x))
        return {"nll": F.cross_entropy(logits, batch.y, reduction="none")}

    def _scale_statistics(self, batch: Batch) -> Values:
        z, y = batch
        logits = self.head.linear(z).float()
        return {"log_prob": self.density.log_prob(z), "logits": logits, "y": y}

    def _fit_scale(self, total: Values) -> None:
        temperature = self.scale.fit(total["log_prob"], total["logits"], total["y"])
        self.head.temperature.fill_(temperature)

    def _scaled_nll(self, batch: Batch) -> Tensor:
        """Eq. 6, per sample."""
        z, y = batch
        factor = self.scale(self.density.log_prob(z))
        return F.cross_entropy(factor[:, None] * self.head(z), y, reduction="none")
