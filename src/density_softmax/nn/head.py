"""The last layer: logits, divided by a temperature that is a buffer."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.nn.precision import at_least_float32

__all__ = ["Head", "entropy_of_logits"]


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
