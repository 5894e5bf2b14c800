"""The residual feed-forward network of the toy experiments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor, nn

from density_softmax.config import ConfigError, at_least
from density_softmax.nn.backbones.base import Backbone, BackboneConfig
from density_softmax.nn.lipschitz.bounds import Bounded, chain_bound, residual_bound

__all__ = ["ResFFN"]


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
        """ResFFN-12-128 unless told otherwise (Table "hyper-params" of the paper)."""

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

    def forward(self, x: Tensor) -> Tensor:
        """The features of a batch, (batch, width)."""
        h: Tensor = self.input(x)
        for block in self.blocks:
            h = block(h)
        return h

    def lipschitz_bound(self, x: Tensor) -> tuple[float, Tensor]:
        """The product over the first layer and the blocks."""
        return chain_bound([self.input, *self.blocks], x)


class ResidualBlock(Bounded):
    """h + relu(W h + b)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.activation = nn.ReLU()

    def forward(self, h: Tensor) -> Tensor:
        """The input plus its residual."""
        return h + self.activation(self.linear(h))

    def lipschitz_bound(self, x: Tensor) -> tuple[float, Tensor]:
        """That of the identity and the branch together."""
        return residual_bound(nn.Identity(), [self.linear, self.activation], x)
