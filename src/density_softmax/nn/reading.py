"""What a density reads: the last features, and pooled statistics of layers by name."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from density_softmax.errors import UserError
from density_softmax.nn.headless import Headless
from density_softmax.nn.precision import full_precision

__all__ = ["LayerReader", "pooled"]

EPSILON = 1e-6


class LayerReader:
    """Keeps the pooled outputs of named layers while an encoder runs.

    Hooks leave the encoder as it is: nothing of it is copied, renamed or wrapped.
    """

    def __init__(self, encoder: nn.Module, names: tuple[str, ...]) -> None:
        self.names = names
        self._kept: dict[str, tuple[Tensor, ...]] = {}
        for name in names:
            _submodule(encoder, name).register_forward_hook(partial(self._keep, name))

    def take(self) -> list[Tensor]:
        """What the layers gave in the last pass, each (batch, width); it is then forgotten."""
        return [part for name in self.names for part in self._kept.pop(name)]

    def _keep(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        self._kept[name] = pooled(output[0] if isinstance(output, tuple) else output)


def pooled(h: Tensor) -> tuple[Tensor, ...]:
    """Mean and log standard deviation of each channel over positions, both (batch, channels).

    Contrast multiplies deviations, so their logs are closer to the normal distribution that a
    Gaussian density assumes. Images have their channels first, token sequences last. A vector
    has no positions and is read as it is.
    """
    if h.ndim == 2:
        return (h,)
    if h.ndim == 3:
        h = h.transpose(1, 2)
    with full_precision(h):
        h = h.float()
        if torch.compiler.is_compiling():  # or exporting: what is traced is fused later
            variance, mean = torch.var_mean(h, dim=tuple(range(2, h.ndim)), correction=0)
            return mean, (variance + EPSILON).log() / 2
        # Group norm gives both in one operation; torch.var_mean takes fifty times as long.
        h = h.flatten(2).contiguous()
        batch, channels, positions = h.shape
        _, mean, inverse_std = torch.native_group_norm(
            h, None, None, batch, channels, positions, channels, EPSILON
        )
        return mean, -inverse_std.log()


def _submodule(encoder: nn.Module, name: str) -> nn.Module:
    # Of a trained model the names are those that its owner knows.
    root = encoder.model if isinstance(encoder, Headless) else encoder
    modules = dict(root.named_modules())
    if name not in modules or name == "":
        known = [other for other in modules if other and other.count(".") < 2]
        raise UserError(f"the encoder has no layer '{name}'; there are: {', '.join(known)}")
    return modules[name]
