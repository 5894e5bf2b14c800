"""The contract of every encoder that a recipe can name."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from density_softmax.config import Family

__all__ = ["Backbone", "BackboneConfig"]


class Backbone(nn.Module, ABC):
    """Maps a batch of inputs to feature vectors: f(x) = z in R^num_features.

    Attributes:
        num_features: the width of z.
        layer_names: modules, from shallow to deep, whose outputs are worth reading by name.
    """

    num_features: int
    layer_names: tuple[str, ...]

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The features of a batch, (batch, num_features)."""


class BackboneConfig(Family, ABC):
    """The family of backbone configs; each member builds its own backbone."""

    @abstractmethod
    def build(self, input_shape: tuple[int, ...]) -> Backbone:
        """A freshly initialised backbone for inputs of `input_shape` (without the batch)."""
