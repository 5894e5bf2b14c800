"""The plain softmax classifier and its controls: one network at one temperature for all inputs."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

from torch import Tensor
from torch.nn import functional as F

from density_softmax.config import ConfigError
from density_softmax.methods.base import MethodConfig
from density_softmax.methods.posthoc import FeatureMethod, PostHoc, PostHocConfig
from density_softmax.nn.lipschitz.penalty import FrobeniusPenalty, PenaltyConfig
from density_softmax.nn.softmax.head import entropy_of_logits, fit_temperature
from density_softmax.training import Descent, Estimate, Stage
from density_softmax.types import Batch, Prediction


class SoftmaxClassifier(FeatureMethod, ABC):
    """softmax(g(f(x)) / T), trained at T = 1; the entropy stands for both uncertainties."""

    def predict_features(self, features: Tensor) -> Prediction:
        """The softmax at temperature T and its entropy."""
        logits = self.head(self.last(features))
        entropy = entropy_of_logits(logits)
        return Prediction(logits.softmax(-1), entropy, entropy)

    def temperature_stage(self) -> Estimate:
        """T minimises the NLL of the held-out slice."""
        return self.logits_stage("temperature", self._fit_temperature)

    def _fit_temperature(self, logits: Tensor, y: Tensor) -> None:
        self.head.temperature.fill_(fit_temperature(logits, y))


@final
class Deterministic(SoftmaxClassifier, PostHoc):
    """Empirical risk minimisation (Vapnik 1998): softmax(g(f(x))), trained on cross entropy.

    It does not tell aleatoric from epistemic uncertainty: the entropy stands for both.
    """

    @dataclass(frozen=True)
    class Config(PostHocConfig, kind="deterministic", title="ERM", rank=10, group="paper"):
        """How the network is trained."""

    config: Config


@final
class TemperatureScaling(SoftmaxClassifier, PostHoc):
    """Temperature scaling (Guo et al., ICML 2017): softmax(g(f(x)) / T).

    The control for every gain in calibration: T minimises the NLL of the held-out slice, the one
    that Density-Softmax calibrates on, by the same fit. It changes no predicted class and, like
    ERM, does not tell aleatoric from epistemic uncertainty: the entropy stands for both.
    """

    @dataclass(frozen=True)
    class Config(
        PostHocConfig,
        kind="temperature_scaling",
        title="ERM + temperature scaling",
        rank=20,
        group="paper",
        defines=("probs",),
    ):
        """How the network is trained; the temperature leaves nothing to choose."""

    config: Config

    def estimates(self) -> tuple[Estimate, ...]:
        """T, on the held-out slice."""
        return (self.temperature_stage(),)


@final
class ConstantTemperature(SoftmaxClassifier):
    """The control for Density-Softmax's density: softmax(g(f(x)) / T), T the same for all inputs.

    f and g are trained as in the representation stage of Density-Softmax (Bui & Liu 2024, Eq. 4)
    and 1/T stands for its factor s(log p(z)), so the two methods differ only in the density:

    - where the factor is never 1, as in the range scale of the paper's code, T is one over the
      middle of its range, a number of the recipe: factors from exp(−.55) to exp(−.45) give exp(.5);
    - where the factor of typical inputs is 1, as in the quantile scale, which leaves temperature
      to a fit on the held-out slice, T comes from that fit.

    The head is not trained again at this T. `density_softmax` with `scale=range` and
    `scale.averaged=true` does that, at the mean factor of the density itself.
    """

    @dataclass(frozen=True)
    class Config(
        MethodConfig,
        kind="constant_temperature",
        title="ERM + penalty + constant temperature",
        rank=30,
    ):
        """The representation stage of Density-Softmax, and the temperature.

        Attributes:
            penalty: which norm of the Jacobian Eq. 4 penalises, and how much.
            descent: how the network is trained.
            temperature: T, or null to fit it on the held-out slice.
        """

        control_for: ClassVar[str] = "density_softmax"
        penalty: PenaltyConfig = field(default_factory=FrobeniusPenalty.Config)
        descent: Descent = Descent(epochs=100)
        temperature: float | None = None

        def __post_init__(self) -> None:
            if self.temperature is not None and self.temperature <= 0:
                raise ConfigError(f"temperature={self.temperature}: choose one above 0, or null")

    config: Config

    def setup(self, example: Tensor | None) -> None:
        """Add the penalty and a head, whose temperature may be known."""
        self.penalty = self.config.penalty.build()
        super().setup(example)
        if self.config.temperature is not None:
            self.head.temperature.fill_(self.config.temperature)

    def stages(self) -> tuple[Stage, ...]:
        """The whole network on Eq. 4 and, unless the recipe knows it, T on the held-out slice."""
        config = self.config
        after_step = self.penalty.after_step()
        train = self.train_stage(config.descent, self.loss, "representation", after_step=after_step)
        if config.temperature is not None:
            return (train,)
        # The training of Density-Softmax, whose head begins at temperature 1, too.
        objective = "cross entropy + gradient penalty"
        settings = {"objective": objective, "penalty": config.penalty, "descent": config.descent}
        shared = replace(train, settings=settings, modules=("encoder", "head", "penalty"))
        return shared, self.temperature_stage()

    def loss(self, batch: Batch) -> Tensor:
        """Eq. 4, at temperature 1: cross entropy + λ E(‖∂f/∂x‖ − 1)²."""
        z, penalty = self.penalty(self.features, batch.x)
        return F.cross_entropy(self.head.raw(z), batch.y) + penalty
