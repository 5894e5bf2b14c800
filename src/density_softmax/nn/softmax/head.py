"""The last layer: logits, divided by a temperature that is a buffer."""

from __future__ import annotations

import math
from typing import final

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.nn.execution import at_least_float32

__all__ = ["Head", "entropy_of_logits", "fit_temperature", "nll_of_logits"]


@final
class Head(nn.Module):
    """g(z) = (W z + b) / T. The temperature T is estimated, never trained."""

    temperature: Tensor

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_classes)
        self.register_buffer("temperature", torch.ones(()))

    def forward(self, z: Tensor) -> Tensor:
        """The logits of a batch of features."""
        return self.raw(z) / self.temperature

    def raw(self, z: Tensor) -> Tensor:
        """W z + b. Not through the layer itself, which may be a model's own, with hooks on it."""
        weight = self.linear.weight
        return at_least_float32(F.linear(z.to(weight.dtype), weight, self.linear.bias))


def entropy_of_logits(logits: Tensor) -> Tensor:
    """H(softmax(logits)) = −Σ p log p in nats, finite where a probability is 0."""
    log_probs = logits.log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)


# Far outside of any temperature a trained network has needed.
LOG_BOUNDS = (math.log(1e-2), math.log(1e2))


def nll_of_logits(logits: Tensor, y: Tensor) -> float:
    """Mean of −log softmax(logits)_y."""
    return -_log_probs(logits).gather(-1, y[:, None]).mean().item()


def fit_temperature(logits: Tensor, y: Tensor) -> float:
    """The T that minimises the NLL of softmax(logits / T) on n samples and one more.

    On held-out samples without a single error plain NLL sends T to 0, and with it the believed
    error rate. One pseudo-sample keeps T finite (the idea of Platt 1999): any class is as likely
    to be its own, and it lies where errors happen, spread over the √n least certain samples. Its
    weight vanishes as 1/n.
    """
    logits = logits.double()
    uncertain = logits[_margins(logits).argsort()[: math.isqrt(len(logits))]]

    def cost(log_t: float) -> float:
        t = math.exp(log_t)
        pseudo_sample = -_log_probs(uncertain / t).mean().item()
        return nll_of_logits(logits / t, y) + pseudo_sample / len(logits)

    best = minimize_scalar(cost, bounds=LOG_BOUNDS, method="bounded", options={"xatol": 1e-6})
    return math.exp(best.x)


def _log_probs(logits: Tensor) -> Tensor:
    return logits.double().log_softmax(-1)


def _margins(logits: Tensor) -> Tensor:
    """How far the largest logit of each sample is above the second."""
    first, second = logits.topk(2, dim=-1).values.unbind(-1)
    return first - second
