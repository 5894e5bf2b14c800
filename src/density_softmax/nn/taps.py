"""Layers of a model, heard in one pass through it and in no other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from threading import get_ident
from typing import Any, final

import torch
from torch import Tensor, nn

from density_softmax.errors import UserError
from density_softmax.nn.execution import full_precision

__all__ = ["LayerReader", "Listener", "pooled"]


@final
class Listener:
    """Keeps what `read` makes of the last call of each layer: of its name, inputs and output.

    The layers are their owner's: outside of a pass they have no hooks, and what other threads
    make them compute is not kept. Code that torch compiles cannot add hooks; compiling leaves
    them on the layers, deaf outside of a pass. A copy has heard nothing.

    Args:
        names: of the layers.
        read: what to keep of a call.
        inside: the part of the model that the names are those of, if not all of it.
    """

    def __init__(
        self, names: tuple[str, ...], read: Callable[[str, Any, Any], Any], inside: str = ""
    ) -> None:
        self._paths = {n: [part for part in f"{inside}.{n}".split(".") if part] for n in names}
        self._read = read
        # By thread.
        self._open: dict[int, tuple[dict[str, Any], list[dict[int, Any]]]] = {}
        self._heard: dict[int, dict[str, Any]] = {}
        self._hooks_stay = False

    def start(self, model: nn.Module) -> None:
        """Begin a pass through `model`."""
        heard: dict[str, Any] = {}
        hooks: list[dict[int, Any]] = []
        if torch.compiler.is_dynamo_compiling():
            _leave_hooks(self, model)
        elif not self._hooks_stay:
            # What `register_forward_hook` does, in a tenth of its time.
            for name, path in self._paths.items():
                layer_hooks = _layer(model, path)._forward_hooks
                layer_hooks[id(heard)] = partial(self._hear, name)
                hooks.append(layer_hooks)
        self._open[_thread()] = heard, hooks

    def stop(self) -> None:
        """End this thread's pass."""
        thread = _thread()
        heard, hooks = self._open.pop(thread)
        for layer_hooks in hooks:
            del layer_hooks[id(heard)]
        self._heard[thread] = heard

    def take(self) -> dict[str, Any]:
        """What was heard in this thread's last pass; it is then forgotten."""
        return self._heard.pop(_thread(), {})

    def _hear(self, name: str, layer: nn.Module, inputs: Any, output: Any) -> None:
        current = self._open.get(_thread())
        if current is not None:
            current[0][name] = self._read(name, inputs, output)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": {}, "_heard": {}}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _leave_hooks(listener: Listener, model: nn.Module) -> None:
    if not listener._hooks_stay:
        for name, path in listener._paths.items():
            _layer(model, path).register_forward_hook(partial(listener._hear, name))
        listener._hooks_stay = True


def _layer(model: nn.Module, path: list[str]) -> nn.Module:
    layer: Any = model
    for name in path:
        layer = layer._modules[name]  # ten times as fast as `get_submodule`
    assert isinstance(layer, nn.Module)
    return layer


def _thread() -> int:
    # Code that is being compiled cannot ask for its thread, and is traced on one.
    return 0 if torch.compiler.is_compiling() else get_ident()


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

    Args:
        encoder: the network that has the layers.
        names: of the layers.
        inside: the part of the encoder in which they have these names, if not all of it.
    """

    def __init__(self, encoder: nn.Module, names: tuple[str, ...], inside: str = "") -> None:
        self.names = names
        layers = _layers(encoder.get_submodule(inside), names)
        self._channels_first = {name: _channels_first(layer) for name, layer in layers.items()}
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
    modules = dict(encoder.named_modules())
    for number, name in enumerate(names):
        if name not in modules or name == "":
            known = [other for other in modules if other and other.count(".") < 2]
            raise UserError(f"the encoder has no layer '{name}'; there are: {', '.join(known)}")
        if name in names[:number]:
            raise UserError(f"the layer '{name}' is named twice: name it once")
    return {name: modules[name] for name in names}
