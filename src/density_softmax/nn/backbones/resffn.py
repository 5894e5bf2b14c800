"""The residual feed-forward network of the toy experiments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import nn

from density_softmax.config import ConfigError, at_least
from density_softmax.nn.backbones.base import Backbone, BackboneConfig, Residual

IDENTITY = nn.Identity()


@final
class ResFFN(Backbone):
    """ResFFN-depth-width (Liu et al. 2020): h_0 = W_0 x + b_0, then the residual blocks.

    Weights start Glorot-uniform and biases at zero, as in the original's Keras layers: with
    torch's narrower default the 1e-4 steps of the toy recipe are too few to separate two moons.

    Args:
        num_inputs: the width of x.
        depth: the number of residual blocks.
        width: the width of every h, and of the features.
    """

    @dataclass(frozen=True)
    class Config(BackboneConfig, kind="resffn"):
        """By default ResFFN-12-128 (Table "hyper-params" of the paper)."""

        depth: int = 12
        width: int = 128

        def __post_init__(self) -> None:
            at_least(self, depth=0, width=1)

        def build(self, input_shape: tuple[int, ...]) -> ResFFN:
            """A network for vectors of `input_shape`."""
            if len(input_shape) != 1:
                raise ConfigError(f"ResFFN reads vectors, not inputs of shape {input_shape}")
            return ResFFN(input_shape[0], self.depth, self.width)

    def __init__(self, num_inputs: int, depth: int = 12, width: int = 128) -> None:
        super().__init__()
        self.num_features = width
        self.input = nn.Linear(num_inputs, width)
        self.blocks = nn.ModuleList(ResidualBlock(width) for _ in range(depth))
        self.layer_names = tuple(f"blocks.{i}" for i in range(depth))
        self.initialize()

    def initialize(self) -> None:
        """Glorot-uniform weights, biases of zero."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def chain(self) -> Sequence[nn.Module]:
        """The first layer and the blocks."""
        return self.input, *self.blocks


class ResidualBlock(Residual):
    """h + relu(W h + b)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.activation = nn.ReLU()

    def paths(self) -> tuple[nn.Module, Sequence[nn.Module]]:
        """The identity, and relu(W h + b)."""
        return IDENTITY, (self.linear, self.activation)
