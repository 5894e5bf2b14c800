"""The last layer: plain or Gaussian logits from features, and their temperature."""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.nn.execution import at_least_float32, full_precision

# Far outside of any temperature a trained network has needed.
LOG_BOUNDS = (math.log(1e-2), math.log(1e2))


@final
class Head(nn.Module):
    """g(z) = (W z + b) / T. The temperature T is a buffer: estimated, never trained.

    Args:
        num_features: the width of z.
        num_classes: the number of logits.
    """

    temperature: Tensor

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_classes)
        self.register_buffer("temperature", torch.ones(()))

    def forward(self, z: Tensor) -> Tensor:
        """The logits of a batch of features, (batch, classes)."""
        return self.raw(z) / self.temperature

    def raw(self, z: Tensor) -> Tensor:
        """W z + b. Not through the layer itself, which may be a model's own, with hooks on it."""
        weight = self.linear.weight
        return at_least_float32(F.linear(z.to(weight.dtype), weight, self.linear.bias))


class Noise(NamedTuple):
    """Standard normal draws, which all samples of a batch share.

    Attributes:
        common: ε, (draws, factors), moves all logits together.
        own: ε′, (draws, classes), moves each logit alone.
    """

    common: Tensor
    own: Tensor

    def split(self, size: int) -> list[Noise]:
        """The same draws in chunks of at most `size`."""
        chunks = zip(self.common.split(size), self.own.split(size), strict=True)
        return [Noise(*chunk) for chunk in chunks]


class GaussianLogits(NamedTuple):
    """u = μ + V ε + d ⊙ ε′ for a batch: N(μ, V Vᵀ + diag(d²)).

    Attributes:
        mean: μ, (batch, classes).
        factors: V, (batch, classes, factors).
        scale: d, (batch, classes).
    """

    mean: Tensor
    factors: Tensor
    scale: Tensor

    def noise(self, num_draws: int) -> Noise:
        """Draw ε and ε′."""
        *_, num_classes, num_factors = self.factors.shape
        return Noise(
            torch.randn(num_draws, num_factors, device=self.mean.device),
            torch.randn(num_draws, num_classes, device=self.mean.device),
        )

    def sample(self, noise: Noise) -> Tensor:
        """One u per draw, (draws, batch, classes)."""
        with full_precision(self.mean):
            common = noise.common @ self.factors.permute(1, 2, 0)
        own = self.scale.T[:, None] * noise.own.T[:, :, None]
        # Computed class by class: the layout in which averages over thousands of draws are cheap.
        return (self.mean.T[:, None] + common + own).movedim(0, -1)


@final
class GaussianHead(nn.Module):
    """μ(z), V(z) and d(z) = softplus(·) + `min_scale`, each from a linear layer on the features.

    The two layers of the covariance start like Keras' dense layers, Glorot-uniform with zero
    biases, as in the authors' code.

    Args:
        num_features: the width of z.
        num_classes: the number of logits.
        num_factors: the number of columns of V.
        min_scale: added to d.
    """

    def __init__(
        self, num_features: int, num_classes: int, num_factors: int, min_scale: float
    ) -> None:
        super().__init__()
        self.mean = Head(num_features, num_classes)
        self.factors = nn.Linear(num_features, num_classes * num_factors)
        self.scale = nn.Linear(num_features, num_classes)
        self.min_scale = min_scale
        for layer in (self.factors, self.scale):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, z: Tensor) -> GaussianLogits:
        """The distribution of the logits of a batch of features."""
        mean = self.mean(z).float()
        factors = self.factors(z).float().unflatten(-1, (mean.shape[-1], -1))
        scale = F.softplus(self.scale(z).float()) + self.min_scale
        return GaussianLogits(mean, factors, scale)


def entropy_of_logits(logits: Tensor) -> Tensor:
    """H(softmax(logits)) = −Σ p log p in nats, (...), finite where a probability is 0.

    Args:
        logits: (..., classes).
    """
    log_probs = logits.log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def energy_of_logits(logits: Tensor) -> Tensor:
    """log Σ exp(logits), (..., 1).

    Args:
        logits: (..., classes).
    """
    if torch.compiler.is_compiling():  # or exporting, where it is one operation
        return logits.logsumexp(-1, keepdim=True)
    # Half of what `torch.logsumexp` does.
    return logits[..., :1] - logits.log_softmax(-1)[..., :1]


def nll_of_samples(logits: Tensor, y: Tensor) -> Tensor:
    """−log softmax(logits)_y in float64, (samples,).

    Args:
        logits: (samples, classes).
        y: the true classes, (samples,).
    """
    return -_log_probs(logits).gather(-1, y[:, None]).squeeze(-1)


def fit_temperature(logits: Tensor, y: Tensor) -> float:
    """The T that minimises the NLL of softmax(logits / T) on n samples and one more.

    On held-out samples without a single error plain NLL sends T to 0, and with it the believed
    error rate. One pseudo-sample keeps T finite (the idea of Platt 1999): its class is any class
    with equal probability, and it is spread over the √n least certain samples, where errors
    happen. Its weight vanishes as 1/n.

    Args:
        logits: (samples, classes).
        y: the true classes, (samples,).
    """
    from scipy.optimize import minimize_scalar

    logits = logits.double()
    uncertain = logits[_margins(logits).argsort()[: math.isqrt(len(logits))]]

    def cost(log_t: float) -> float:
        t = math.exp(log_t)
        pseudo_sample = -_log_probs(uncertain / t).mean().item()
        return nll_of_samples(logits / t, y).mean().item() + pseudo_sample / len(logits)

    best = minimize_scalar(cost, bounds=LOG_BOUNDS, method="bounded", options={"xatol": 1e-6})
    return math.exp(best.x)


def _log_probs(logits: Tensor) -> Tensor:
    return logits.double().log_softmax(-1)


def _margins(logits: Tensor) -> Tensor:
    """By how much the largest logit of each sample exceeds the second."""
    first, second = logits.topk(2, dim=-1).values.unbind(-1)
    return first - second
