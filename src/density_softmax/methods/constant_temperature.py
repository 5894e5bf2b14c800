"""Density-Softmax without the density: ERM + gradient penalty, at one temperature for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.config import ConfigError
from density_softmax.methods.base import FirstStage, Method, MethodConfig
from density_softmax.nn.lipschitz.penalty import FrobeniusPenalty, PenaltyConfig
from density_softmax.nn.softmax.head import Head, entropy_of_logits, fit_temperature
from density_softmax.training import Descent, Estimate, Stage, Train, Values
from density_softmax.types import Batch, Prediction

__all__ = ["ConstantTemperature"]


@final
class ConstantTemperature(Method):
    """The control for Density-Softmax's density: softmax(g(f(x)) / T), T the same for all inputs.

    f and g are trained as in the representation stage of Density-Softmax (Bui & Liu 2024, Eq. 4)
    and 1/T stands for its factor s(log p(z)), so that what the two differ in is the density:

    - where the factor is never 1, as in the range scale of the paper's code, T is one over the
      middle of its range, a number of the recipe: factors from exp(−.55) to exp(−.45) give exp(.5);
    - where the factor of typical inputs is 1, as in the quantile scale, which leaves temperature
      to a fit on the held-out slice, T comes from that fit.

    The head is not trained again at this T. `density_softmax` with `scale=range` and
    `scale.averaged=true` does that, at the mean factor of the density itself.
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="constant_temperature"):
        """The representation stage of Density-Softmax, and the temperature.

        Attributes:
            penalty: which norm of the Jacobian Eq. 4 penalises, and how much.
            descent: how the network is trained.
            temperature: T, or null to fit it on the held-out slice.
        """

        penalty: PenaltyConfig = field(default_factory=FrobeniusPenalty.Config)
        descent: Descent = Descent(epochs=100)
        temperature: float | None = None

        def __post_init__(self) -> None:
            """Reject what cannot divide."""
            if self.temperature is not None and self.temperature <= 0:
                raise ConfigError(f"temperature={self.temperature}: choose one above 0, or null")

        def build(
            self, encoder: nn.Module, num_classes: int, example: Tensor | None = None
        ) -> ConstantTemperature:
            """An untrained classifier around `encoder`."""
            return ConstantTemperature(encoder, num_classes, self, example)

        def first_stage(self) -> FirstStage | None:
            """The representation stage of Density-Softmax, unless the head knows its T already."""
            parts = ("encoder", "head", "penalty")
            stage = FirstStage("density_softmax", ("penalty", "descent"), parts)
            return stage if self.temperature is None else None

    config: Config

    def __init__(
        self,
        encoder: nn.Module,
        num_classes: int,
        config: Config | None = None,
        example: Tensor | None = None,
    ) -> None:
        config = config or ConstantTemperature.Config()
        super().__init__(encoder, num_classes, config, example)
        self.penalty = config.penalty.build()
        self.head = Head(self.num_features, num_classes)
        if config.temperature is not None:
            self.head.temperature.fill_(config.temperature)

    def stages(self) -> tuple[Stage, ...]:
        """The whole network on Eq. 4 and, unless the recipe knows it, T on the held-out slice."""
        descent = Train(
            "representation",
            loss=self._loss,
            parameters=list(self.parameters()),
            descent=self.config.descent,
            monitor=self._monitor,
            after_step=self.penalty.after_step(),
        )
        temperature = Estimate(
            "temperature",
            statistics=self._temperature_statistics,
            finish=self._fit_temperature,
            reduce="concat",
            split="heldout",
        )
        return (descent, temperature) if self.config.temperature is None else (descent,)

    def forward(self, x: Tensor) -> Prediction:
        """The softmax at temperature T and its entropy."""
        logits = self.head(self.features(x))
        entropy = entropy_of_logits(logits)
        return Prediction(logits.softmax(-1), entropy, entropy)

    def _loss(self, batch: Batch) -> Tensor:
        """Eq. 4, at temperature 1: cross entropy + λ E(‖∂f/∂x‖ − 1)²."""
        z, penalty = self.penalty(self.features, batch.x)
        return F.cross_entropy(self.head.raw(z), batch.y) + penalty

    def _monitor(self, batch: Batch) -> Values:
        logits = self.head.raw(self.features(batch.x))
        return {"nll": F.cross_entropy(logits, batch.y, reduction="none")}

    def _temperature_statistics(self, batch: Batch) -> Values:
        return {"logits": self.head.raw(self.features(batch.x)), "y": batch.y}

    def _fit_temperature(self, total: Values) -> None:
        self.head.temperature.fill_(fit_temperature(total["logits"], total["y"]))
