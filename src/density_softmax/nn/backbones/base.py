"""The contract of every encoder that a recipe can name."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from density_softmax.config import Family
from density_softmax.errors import UserError
from density_softmax.nn.execution import evaluating

__all__ = ["Backbone", "BackboneConfig", "feature_width"]


class Backbone(nn.Module, ABC):
    """Maps a batch of inputs to feature vectors: f(x) = z in R^num_features.

    Attributes:
        num_features: the width of z.
        layer_names: modules, from shallow to deep, whose outputs are worth reading by name.
    """

    num_features: int
    layer_names: tuple[str, ...]

    @abstractmethod
    def initialize(self) -> None:
        """Draw the first weights, over those that the layers drew by themselves.

        `__init__` ends with it.
        """

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The features of a batch, (batch, num_features)."""


class BackboneConfig(Family, ABC):
    """The family of backbone configs; each member builds its own backbone."""

    @abstractmethod
    def build(self, input_shape: tuple[int, ...]) -> Backbone:
        """A freshly initialised backbone for inputs of `input_shape` (without the batch)."""


@torch.no_grad()
def feature_width(encoder: nn.Module, example: Tensor | None = None) -> int:
    """The width of an encoder's output: measured, told by it, or that of its last linear layer."""
    if example is not None:
        return measure_width(encoder, example)
    width = getattr(encoder, "num_features", None)
    if isinstance(width, int):
        return width
    linear = [module for module in encoder.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise UserError(
            f"cannot tell how many features {type(encoder).__name__} returns: "
            "pass example=, a batch of inputs"
        )
    return linear[-1].out_features


def measure_width(encoder: nn.Module, example: Tensor) -> int:
    """The width of what the encoder makes of a batch; its running statistics stay as they are."""
    with evaluating(encoder):
        z = encoder(example)
    if z.ndim != 2:
        raise UserError(f"the encoder returns shape {tuple(z.shape)}: flatten it to vectors")
    return int(z.shape[1])
