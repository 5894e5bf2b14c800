"""What a density reads: the last features, and pooled statistics of layers by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from density_softmax.errors import UserError
from density_softmax.nn.headless import Headless
from density_softmax.nn.listening import Listener
from density_softmax.nn.precision import full_precision

__all__ = ["LayerReader", "pooled"]

EPSILON = 1e-6
# On sequences of shape (batch, channels, length).
SIGNAL_LAYERS = (
    *(nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.InstanceNorm1d, nn.GroupNorm),
    *(nn.MaxPool1d, nn.AvgPool1d, nn.LPPool1d, nn.AdaptiveMaxPool1d, nn.AdaptiveAvgPool1d),
)
ELEMENTWISE = ("torch.nn.modules.activation", "torch.nn.modules.dropout")


class LayerReader:
    """Keeps the pooled outputs of named layers while an encoder runs and someone listens.

    Nothing of the encoder is copied, renamed or wrapped.
    """

    def __init__(self, encoder: nn.Module, names: tuple[str, ...]) -> None:
        self.names = names
        self._channels_first = {n: _channels_first(m) for n, m in _layers(encoder, names).items()}
        inside = "model" if isinstance(encoder, Headless) else ""
        self._listener = Listener(names, self._pooled_output, inside)

    def listening(self, encoder: nn.Module) -> AbstractContextManager[None]:
        """A context for one pass through the encoder, which has no hooks before and after it."""
        return self._listening(encoder) if self.names else contextlib.nullcontext()

    def take(self) -> list[Tensor]:
        """What the layers gave in the last pass, each (batch, width); it is then forgotten."""
        heard = self._listener.take()
        silent = [name for name in self.names if name not in heard]
        if silent:
            raise UserError(
                f"the encoder does not call its layer '{silent[0]}' when it predicts: "
                "name layers that it calls"
            )
        return [part for name in self.names for part in heard[name]]

    @contextlib.contextmanager
    def _listening(self, encoder: nn.Module) -> Iterator[None]:
        self._listener.start(encoder)
        try:
            yield
        finally:
            self._listener.stop()

    def _pooled_output(self, name: str, inputs: Any, output: Any) -> tuple[Tensor, ...]:
        h = output[0] if isinstance(output, tuple) else output
        if not isinstance(h, Tensor):
            raise UserError(
                f"the layer '{name}' returns a {type(h).__name__}: name one that returns a tensor"
            )
        return pooled(h, self._channels_first[name])


def pooled(h: Tensor, channels_first: bool = False) -> tuple[Tensor, ...]:
    """Mean and log standard deviation of each channel over positions, both (batch, channels).

    Contrast multiplies deviations, so their logs are closer to the normal distribution that a
    Gaussian density assumes. Images have their channels first, and so have sequences if they say
    so; other sequences are tokens, with their channels last. A vector has no positions and is
    read as it is.
    """
    if h.ndim == 2:
        return (h.clone(),)  # what comes next may work in place
    if h.ndim == 3 and not channels_first:
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


def _channels_first(layer: nn.Module) -> bool:
    """Whether a layer is one on signals; activations and dropout are what is before them."""
    if not isinstance(layer, nn.Sequential):
        return isinstance(layer, SIGNAL_LAYERS)
    steps = [step for step in layer if type(step).__module__ not in ELEMENTWISE]
    return bool(steps) and _channels_first(steps[-1])


def _layers(encoder: nn.Module, names: tuple[str, ...]) -> dict[str, nn.Module]:
    # Of a trained model the names are those that its owner knows.
    root = encoder.model if isinstance(encoder, Headless) else encoder
    modules = dict(root.named_modules())
    for number, name in enumerate(names):
        if name not in modules or name == "":
            known = [other for other in modules if other and other.count(".") < 2]
            raise UserError(f"the encoder has no layer '{name}'; there are: {', '.join(known)}")
        if name in names[:number]:
            raise UserError(f"the layer '{name}' is named twice: name it once")
    return {name: modules[name] for name in names}
