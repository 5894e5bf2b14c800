"""The residual feed-forward network of the toy experiments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn

from density_softmax.config import ConfigError, at_least
from density_softmax.nn.backbones.base import Backbone, BackboneConfig, Residual
from density_softmax.nn.lipschitz.bounds import Bounded

IDENTITY = nn.Identity()
# Of inputs that are clipped; their squares are finite in float32.
LARGEST_INPUT = 1e6


@final
class ResFFN(Backbone):
    """ResFFN-depth-width (Liu et al. 2020): h_0 = W_0 x + b_0, then the residual blocks.

    Weights start Glorot-uniform and biases at zero, as in the original's Keras layers: with
    torch's narrower default the 1e-4 steps of the toy recipe are too few to separate two moons.

    Args:
        num_inputs: the width of x.
        depth: the number of residual blocks.
        width: the width of every h, and of the features.
        clip: where inputs level off (`SmoothClip`), or None to take them as they are. The layer
            `columns` then returns them unclipped, for a density to read.
    """

    @dataclass(frozen=True)
    class Config(BackboneConfig, kind="resffn"):
        """By default ResFFN-12-128 (Table "hyper-params" of the paper)."""

        depth: int = 12
        width: int = 128
        clip: float | None = None

        def __post_init__(self) -> None:
            at_least(self, depth=0, width=1)
            if self.clip is not None and self.clip <= 0:
                raise ConfigError(f"clip={self.clip}: choose a number above 0, or null")

        def build(self, input_shape: tuple[int, ...]) -> ResFFN:
            """A network for vectors of `input_shape`."""
            if len(input_shape) != 1:
                raise ConfigError(f"ResFFN reads vectors, not inputs of shape {input_shape}")
            return ResFFN(input_shape[0], self.depth, self.width, self.clip)

    def __init__(
        self, num_inputs: int, depth: int = 12, width: int = 128, clip: float | None = None
    ) -> None:
        super().__init__()
        self.num_features = width
        self.clips = clip is not None
        if clip is not None:
            self.columns: nn.Module = nn.Identity()
            self.clip = SmoothClip(clip)
        self.input = nn.Linear(num_inputs, width)
        self.blocks = nn.ModuleList(ResidualBlock(width) for _ in range(depth))
        names = tuple(f"blocks.{i}" for i in range(depth))
        self.layer_names = ("columns", *names) if self.clips else names
        self.initialize()

    def initialize(self) -> None:
        """Glorot-uniform weights, biases of zero."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def chain(self) -> Sequence[nn.Module]:
        """The clip, if there is one, the first layer and the blocks."""
        clip = (self.columns, self.clip) if self.clips else ()
        return *clip, self.input, *self.blocks


@final
class SmoothClip(Bounded):
    """x / √(1 + (x/c)²) of each entry: x near 0, ±c far away.

    Tables have columns with heavy tails, and a network that is linear in them is extreme there.

    Args:
        limit: c.
    """

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        """The clipped entries."""
        x = x.clamp(-LARGEST_INPUT, LARGEST_INPUT)
        return x * (1 + (x / self.limit).square()).rsqrt()

    def lipschitz_bound(self, x: Tensor) -> tuple[float, Tensor]:
        """The slope is 1 at 0, and less elsewhere."""
        return 1.0, self(x)


class ResidualBlock(Residual):
    """h + relu(W h + b)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.activation = nn.ReLU()

    def paths(self) -> tuple[nn.Module, Sequence[nn.Module]]:
        """The identity, and relu(W h + b)."""
        return IDENTITY, (self.linear, self.activation)
