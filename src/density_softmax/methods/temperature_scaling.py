"""Temperature scaling: ERM whose logits are divided by a number fitted on held-out data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.methods.base import FirstStage, Method, MethodConfig
from density_softmax.nn.softmax.head import Head, entropy_of_logits, fit_temperature
from density_softmax.training import Descent, Estimate, Stage, Train, Values
from density_softmax.types import Batch, Prediction

__all__ = ["TemperatureScaling"]


@final
class TemperatureScaling(Method):
    """Temperature scaling (Guo et al., ICML 2017): softmax(g(f(x)) / T).

    The control for every gain in calibration: T minimises the NLL of the held-out slice, the one
    that Density-Softmax calibrates on, by the same fit. It changes no predicted class and, like
    ERM, does not tell aleatoric from epistemic uncertainty: the entropy stands for both.
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="temperature_scaling"):
        """How the network is trained; the temperature leaves nothing to choose."""

        descent: Descent = Descent(epochs=100)

        def build(
            self, encoder: nn.Module, num_classes: int, example: Tensor | None = None
        ) -> TemperatureScaling:
            """An untrained classifier around `encoder`, at temperature 1."""
            return TemperatureScaling(encoder, num_classes, self, example)

        def first_stage(self) -> FirstStage:
            """The training of ERM, before there is a temperature."""
            return FirstStage("deterministic", ("descent",), ("encoder", "head"))

    config: Config

    def __init__(
        self,
        encoder: nn.Module,
        num_classes: int,
        config: Config | None = None,
        example: Tensor | None = None,
    ) -> None:
        super().__init__(encoder, num_classes, config or TemperatureScaling.Config(), example)
        self.head = Head(self.num_features, num_classes)

    def stages(self) -> tuple[Stage, ...]:
        """The whole network on cross entropy, then T on the held-out slice."""
        descent = Train(
            "train",
            loss=lambda batch: self._nll(batch).mean(),
            parameters=list(self.parameters()),
            descent=self.config.descent,
            monitor=self._monitor,
        )
        temperature = Estimate(
            "temperature",
            statistics=lambda batch: {"logits": self._raw_logits(batch.x), "y": batch.y},
            finish=self._fit_temperature,
            reduce="concat",
            split="heldout",
        )
        return descent, temperature

    def forward(self, x: Tensor) -> Prediction:
        """The softmax at temperature T and its entropy."""
        logits = self.head(self.features(x))
        entropy = entropy_of_logits(logits)
        return Prediction(logits.softmax(-1), entropy, entropy)

    def _raw_logits(self, x: Tensor) -> Tensor:
        """The logits at temperature 1, which the network is trained at."""
        return self.head.raw(self.features(x))

    def _nll(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self._raw_logits(batch.x), batch.y, reduction="none")

    def _monitor(self, batch: Batch) -> Values:
        return {"nll": self._nll(batch)}

    def _fit_temperature(self, total: Values) -> None:
        self.head.temperature.fill_(fit_temperature(total["logits"], total["y"]))
