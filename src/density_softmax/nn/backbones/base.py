"""The contract of every encoder that a recipe can name, and of the residual blocks in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from density_softmax.config import Family
from density_softmax.errors import UserError
from density_softmax.nn.execution import evaluating, explained
from density_softmax.nn.lipschitz.bounds import Bounded, chain_bound, residual_bound


class Residual(Bounded, ABC):
    """y = s(x) + b(x), a linear shortcut plus a branch of modules that run one after another."""

    @abstractmethod
    def paths(self) -> tuple[nn.Module, Sequence[nn.Module]]:
        """s, and the modules of b."""

    def forward(self, x: Tensor) -> Tensor:
        """The output of the block."""
        shortcut, branch = self.paths()
        h = x
        for module in branch:
            h = module(h)
        y: Tensor = shortcut(x) + h
        return y

    def lipschitz_bound(self, x: Tensor) -> tuple[float, Tensor]:
        """That of shortcut and branch together."""
        return residual_bound(*self.paths(), x)


class Backbone(Bounded, ABC):
    """Maps a batch of inputs to feature vectors: f(x) = z in R^num_features.

    Attributes:
        num_features: the width of z.
        layer_names: modules, from shallow to deep, whose outputs are worth reading by name.
    """

    num_features: int
    layer_names: tuple[str, ...]

    @abstractmethod
    def initialize(self) -> None:
        """Draw the initial weights, in place of torch's defaults; `__init__` ends with it."""

    @abstractmethod
    def chain(self) -> Sequence[nn.Module]:
        """The modules of f, which run one after another."""

    def forward(self, x: Tensor) -> Tensor:
        """The features of a batch, (batch, num_features)."""
        for module in self.chain():
            x = module(x)
        return x

    def lipschitz_bound(self, x: Tensor) -> tuple[float, Tensor]:
        """The product over the chain."""
        return chain_bound(self.chain(), x)


class BackboneConfig(Family, ABC, package="density_softmax.nn.backbones"):
    """The family of backbone configs; each member builds its own backbone."""

    @abstractmethod
    def build(self, input_shape: tuple[int, ...]) -> Backbone:
        """A newly initialised backbone for inputs of `input_shape` (without the batch)."""


@torch.no_grad()
def feature_width(encoder: nn.Module, example: Tensor | None = None) -> int:
    """The width of an encoder's output: measured, its `num_features`, or that of its last layer.

    Args:
        encoder: any network.
        example: inputs to measure the width on, (batch, ...).
    """
    if example is not None:
        try:
            return measure_width(encoder, example)
        except (RuntimeError, IndexError) as error:
            raise explained(error, example) from error
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
    """The width of an encoder's output, from a pass in evaluation mode.

    Args:
        encoder: any network; its running statistics stay as they are.
        example: inputs, (batch, ...).
    """
    with evaluating(encoder):
        z = encoder(example)
    if z.ndim != 2:
        raise UserError(f"the encoder returns shape {tuple(z.shape)}: flatten it to vectors")
    return int(z.shape[1])
