"""Calibration maps of the logits beyond one temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from density_softmax.methods.posthoc import Calibrator, PostHocConfig
from density_softmax.nn.softmax.calibration import fit_affine, fit_mixture
from density_softmax.nn.softmax.head import fit_temperature
from density_softmax.training import Estimate


@final
class EnsembleTemperatureScaling(Calibrator):
    """Ensemble temperature scaling (Zhang et al., ICML 2020).

    p = w₁ softmax(g(z) / T) + w₂ softmax(g(z)) + w₃ / K with K classes. T is that of temperature
    scaling; the weights, which sum to 1, minimise the NLL of the held-out slice at this T.
    """

    @dataclass(frozen=True)
    class Config(
        PostHocConfig,
        kind="ensemble_temperature_scaling",
        title="Ensemble temperature scaling",
        rank=21,
        defines=("probs",),
    ):
        """How the network is trained; nothing else is to choose."""

    config: Config
    weights: Tensor

    def setup(self, example: Tensor | None) -> None:
        """Add the weights."""
        super().setup(example)
        self.register_buffer("weights", torch.tensor([1.0, 0.0, 0.0]))

    def estimates(self) -> tuple[Estimate, ...]:
        """T, then the weights, on the held-out slice."""
        return (self.logits_stage("weights", self._fit),)

    def calibrated(self, features: Tensor, logits: Tensor) -> Tensor:
        """log p."""
        members = self._mixed(logits)
        return (members + self.weights.log()).logsumexp(-1)

    def _mixed(self, logits: Tensor) -> Tensor:
        """Log probabilities of the three members, (batch, classes, 3)."""
        uniform = torch.zeros_like(logits)
        members = (logits / self.head.temperature, logits, uniform)
        return torch.stack([member.log_softmax(-1) for member in members], dim=-1)

    def _fit(self, logits: Tensor, y: Tensor) -> None:
        self.head.temperature.fill_(fit_temperature(logits, y))
        members = self._mixed(logits.double())
        likelihoods = members[torch.arange(len(y), device=y.device), y].exp()
        self.weights.copy_(fit_mixture(likelihoods))


@final
class VectorScaling(Calibrator):
    """Vector scaling (Guo et al., ICML 2017): softmax(v ⊙ g(z) + b).

    v and b minimise the NLL of the held-out slice and stay near temperature scaling: the weight of
    their l2 distance from it is chosen by cross-validation.
    """

    @dataclass(frozen=True)
    class Config(
        PostHocConfig,
        kind="vector_scaling",
        title="Vector scaling",
        rank=22,
        defines=("probs",),
    ):
        """How the network is trained; nothing else is to choose."""

    config: Config
    scale: Tensor
    bias: Tensor

    def setup(self, example: Tensor | None) -> None:
        """Add v and b."""
        super().setup(example)
        self.register_buffer("scale", torch.ones(self.num_classes))
        self.register_buffer("bias", torch.zeros(self.num_classes))

    def estimates(self) -> tuple[Estimate, ...]:
        """v and b, on the held-out slice."""
        return (self.logits_stage("vector", self._fit),)

    def calibrated(self, features: Tensor, logits: Tensor) -> Tensor:
        """v ⊙ g(z) + b."""
        return torch.addcmul(self.bias, self.scale, logits)

    def _fit(self, logits: Tensor, y: Tensor) -> None:
        scale, bias = fit_affine(logits, y, diagonal=True)
        self.scale.copy_(scale)
        self.bias.copy_(bias)


@final
class DirichletScaling(Calibrator):
    """Dirichlet calibration (Kull et al., NeurIPS 2019): softmax(W log softmax(g(z)) + b).

    W and b minimise the NLL of the held-out slice and stay near temperature scaling, which is
    W = I / T and b = 0: the weight of their l2 distance from it is chosen by cross-validation.
    """

    @dataclass(frozen=True)
    class Config(
        PostHocConfig,
        kind="dirichlet_scaling",
        title="Dirichlet scaling",
        rank=23,
        defines=("probs",),
    ):
        """How the network is trained; nothing else is to choose."""

    config: Config
    weight: Tensor
    bias: Tensor

    def setup(self, example: Tensor | None) -> None:
        """Add W and b."""
        super().setup(example)
        self.register_buffer("weight", torch.eye(self.num_classes))
        self.register_buffer("bias", torch.zeros(self.num_classes))

    def estimates(self) -> tuple[Estimate, ...]:
        """W and b, on the held-out slice."""
        return (self.logits_stage("matrix", self._fit),)

    def calibrated(self, features: Tensor, logits: Tensor) -> Tensor:
        """W log softmax(g(z)) + b."""
        return F.linear(logits.log_softmax(-1), self.weight, self.bias)

    def _fit(self, logits: Tensor, y: Tensor) -> None:
        weight, bias = fit_affine(logits.double().log_softmax(-1), y, diagonal=False)
        self.weight.copy_(weight)
        self.bias.copy_(bias)
