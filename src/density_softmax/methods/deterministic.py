"""Empirical risk minimisation: the softmax classifier that everything is compared to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.methods.base import FirstStage, Method, MethodConfig
from density_softmax.nn.softmax.head import Head, entropy_of_logits
from density_softmax.training import Descent, Stage, Train, Values
from density_softmax.types import Batch, Prediction

__all__ = ["Deterministic"]


@final
class Deterministic(Method):
    """Empirical risk minimisation (Vapnik 1998): softmax(g(f(x))), trained on cross entropy.

    It does not tell aleatoric from epistemic uncertainty: the entropy stands for both.
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="deterministic"):
        """How the network is trained."""

        descent: Descent = Descent(epochs=100)

        def build(
            self, encoder: nn.Module, num_classes: int, example: Tensor | None = None
        ) -> Deterministic:
            """An untrained classifier around `encoder`."""
            return Deterministic(encoder, num_classes, self, example)

        def first_stage(self) -> FirstStage:
            """The whole training, which temperature scaling begins with."""
            return FirstStage("deterministic", ("descent",), ("encoder", "head"))

    config: Config

    def __init__(
        self,
        encoder: nn.Module,
        num_classes: int,
        config: Config | None = None,
        example: Tensor | None = None,
    ) -> None:
        super().__init__(encoder, num_classes, config or Deterministic.Config(), example)
        self.head = Head(self.num_features, num_classes)

    def stages(self) -> tuple[Stage, ...]:
        """One: the whole network on cross entropy."""
        descent = Train(
            "train",
            loss=lambda batch: self._nll(batch).mean(),
            parameters=list(self.parameters()),
            descent=self.config.descent,
            monitor=self._monitor,
        )
        return (descent,)

    def forward(self, x: Tensor) -> Prediction:
        """The softmax and its entropy."""
        logits = self.head(self.features(x))
        entropy = entropy_of_logits(logits)
        return Prediction(logits.softmax(-1), entropy, entropy)

    def _nll(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.head(self.features(batch.x)), batch.y, reduction="none")

    def _monitor(self, batch: Batch) -> Values:
        return {"nll": self._nll(batch)}
