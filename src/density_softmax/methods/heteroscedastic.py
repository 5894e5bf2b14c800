"""Heteroscedastic: Gaussian logits whose covariance depends on the input."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import final

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from density_softmax.config import ConfigError, at_least
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.softmax.averaging import average_members, nll_of_average, nll_of_chunks
from density_softmax.nn.softmax.head import GaussianHead, GaussianLogits, Noise
from density_softmax.training import Descent, Stage
from density_softmax.types import Batch, Prediction


@final
class Heteroscedastic(Method):
    """Heteroscedastic (Collier et al. 2021): 1/S Σ_s softmax(u_s / T), u_s = μ + V ε_s + d ⊙ ε′_s.

    μ(z), V(z) and d(z) are linear in the features z = f(x), but for a softplus on d. The logits
    are thus N(μ, V Vᵀ + diag(d²)): label noise that depends on the input and is correlated
    between classes. It is trained on −log of the mean probability.
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="heteroscedastic", rank=90):
        """Factors, temperature and samples are those of uncertainty-baselines on CIFAR.

        Attributes:
            num_factors: columns of V.
            temperature: T, which smooths the softmax and with it the gradient.
            num_samples: S in training and in prediction alike. A batch shares its draws.
            min_scale: what is added to the softplus of d.
            chunk: how many samples are in memory at a time, for all classes of a batch; 0 = all.
                The draws are the same, and so are predictions and gradients.
            descent: training of encoder and head.
        """

        num_factors: int = 6
        temperature: float = 1.3
        num_samples: int = 10_000
        min_scale: float = 1e-3
        chunk: int = 1_000
        descent: Descent = Descent(epochs=100)

        def __post_init__(self) -> None:
            at_least(self, num_factors=1, num_samples=1, min_scale=0, chunk=0)
            if self.temperature <= 0:
                raise ConfigError(f"temperature={self.temperature}: choose more than 0")

    config: Config
    draws_samples = True

    def setup(self, example: Tensor | None) -> None:
        """Add the layer that gives μ, V and d."""
        config = self.config
        self.head = GaussianHead(
            self.num_features, self.num_classes, config.num_factors, config.min_scale
        )

    def stages(self) -> tuple[Stage, ...]:
        """One: encoder and head on −log of the mean probability."""
        return (self.train_stage(self.config.descent),)

    def forward(self, x: Tensor) -> Prediction:
        """1/S Σ_s softmax(u_s / T), and what the samples disagree about."""
        u = self.logits(x)
        return average_members(u.sample(noise) for noise in self._draw(u))

    def logits(self, x: Tensor) -> GaussianLogits:
        """The distribution of u / T."""
        mean, factors, scale = self.head(self.features(x))
        temperature = self.config.temperature
        return GaussianLogits(mean / temperature, factors / temperature, scale / temperature)

    def _draw(self, u: GaussianLogits) -> list[Noise]:
        """S draws in chunks. They are small beside the logits that they make of a batch."""
        return u.noise(self.config.num_samples).split(self.config.chunk or self.config.num_samples)

    def nll(self, batch: Batch) -> Tensor:
        """−log 1/S Σ_s softmax(u_s / T)_y."""
        u = self.logits(batch.x)
        chunks = self._draw(u)

        def nll_of(u: GaussianLogits, noise: Noise) -> Tensor:
            return nll_of_average(u.sample(noise), batch.y)

        if len(chunks) == 1:
            return nll_of(u, chunks[0])
        # The way back computes a chunk again, or chunks would save no memory in training.
        again = partial(checkpoint, nll_of, use_reentrant=False, preserve_rng_state=False)
        return nll_of_chunks([again(u, c) for c in chunks], [len(c.own) for c in chunks])
