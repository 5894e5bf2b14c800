"""Forward hooks that read layers of a model during one pass through it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from threading import get_ident
from typing import Any, final

import torch
from torch import Tensor, nn

from density_softmax.errors import UserError, choices
from density_softmax.nn.execution import full_precision

# Added to variances before their logarithm.
EPSILON = 1e-6
# Layers on sequences of shape (batch, channels, length).
SIGNAL_LAYERS = (
    *(nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.InstanceNorm1d, nn.GroupNorm),
    *(nn.MaxPool1d, nn.AvgPool1d, nn.LPPool1d, nn.AdaptiveMaxPool1d, nn.AdaptiveAvgPool1d),
)
ELEMENTWISE = ("torch.nn.modules.activation", "torch.nn.modules.dropout")


@final
class CallRecorder:
    """Records, for each named layer, what `read(name, inputs, output)` returns of its last call.

    Outside of a recorded pass the layers have no hooks, and calls on other threads are not
    recorded. Code that torch compiles cannot add hooks: compiling registers permanent ones, which
    do nothing outside of a pass. A copy starts without recorded values.

    Args:
        names: of the layers.
        read: what to record of a call.
        inside: the submodule that the names are relative to; by default the whole model.
    """

    def __init__(
        self, names: tuple[str, ...], read: Callable[[str, Any, Any], Any], inside: str = ""
    ) -> None:
        self._paths = {n: [part for part in f"{inside}.{n}".split(".") if part] for n in names}
        self._read = read
        # Both by thread: values of the pass under way, and of the last one.
        self._open: dict[int, dict[str, Any]] = {}
        self._recorded: dict[int, dict[str, Any]] = {}
        self._hooks_stay = False

    @contextlib.contextmanager
    def recording(self, model: nn.Module) -> Iterator[None]:
        """A context for one pass through `model` on this thread."""
        thread = _thread()
        values: dict[str, Any] = {}
        hooks: list[dict[int, Any]] = []
        if torch.compiler.is_dynamo_compiling():
            _register_permanently(self, model)
        elif not self._hooks_stay:
            # What `register_forward_hook` does, in a tenth of its time.
            for name, path in self._paths.items():
                layer_hooks = _submodule(model, path)._forward_hooks
                layer_hooks[id(values)] = partial(self._record, name)
                hooks.append(layer_hooks)
        self._open[thread] = values
        try:
            yield
        finally:
            del self._open[thread]
            for layer_hooks in hooks:
                del layer_hooks[id(values)]
        self._recorded[thread] = values

    def pop(self) -> dict[str, Any]:
        """Return and forget what was recorded in this thread's last pass, by layer."""
        return self._recorded.pop(_thread(), {})

    def _record(self, name: str, layer: nn.Module, inputs: Any, output: Any) -> None:
        values = self._open.get(_thread())
        if values is not None:
            values[name] = self._read(name, inputs, output)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": {}, "_recorded": {}}


def _register_permanently(recorder: CallRecorder, model: nn.Module) -> None:
    if not recorder._hooks_stay:
        for name, path in recorder._paths.items():
            _submodule(model, path).register_forward_hook(partial(recorder._record, name))
        recorder._hooks_stay = True


# What `torch.compiler.assume_constant_result` does, which would import all of torch's compiler.
_register_permanently._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _submodule(model: nn.Module, path: list[str]) -> nn.Module:
    layer: Any = model
    for name in path:
        layer = layer._modules[name]  # ten times as fast as `get_submodule`
    assert isinstance(layer, nn.Module)
    return layer


def _thread() -> int:
    # Code that is being compiled cannot ask for its thread, and is traced on one.
    return 0 if torch.compiler.is_compiling() else get_ident()


class LayerReader:
    """Reads the pooled outputs of named layers while an encoder runs, without changing it.

    Args:
        encoder: the network that has the layers.
        names: of the layers.
        inside: the submodule that the names are relative to; by default the whole encoder.
    """

    def __init__(self, encoder: nn.Module, names: tuple[str, ...], inside: str = "") -> None:
        self.names = names
        layers = _named_layers(encoder.get_submodule(inside), names)
        self._channels_first = {name: _channels_first(layer) for name, layer in layers.items()}
        self._recorder = CallRecorder(names, self._pooled_output, inside)

    def reading(self, encoder: nn.Module) -> AbstractContextManager[None]:
        """A context for one pass through the encoder, which has no hooks before and after it."""
        return self._recorder.recording(encoder) if self.names else contextlib.nullcontext()

    def pop(self) -> list[Tensor]:
        """Return and forget what was read in the last pass, tensors of (batch, width)."""
        found = self._recorder.pop()
        missing = [name for name in self.names if name not in found]
        if missing:
            raise UserError(
                f"the encoder does not call its layer '{missing[0]}' when it predicts: "
                "name layers that it calls"
            )
        return [statistic for name in self.names for statistic in found[name]]

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
    Gaussian density assumes. A vector has no positions and is returned as it is.

    Args:
        h: vectors (batch, channels), tokens (batch, length, channels), or images
            (batch, channels, height, width).
        channels_first: take three dimensions for signals, (batch, channels, length).
    """
    if h.ndim == 2:
        return (h.clone(),)  # the next layer may work in place
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
    """Whether a layer returns signals; activations and dropout return what they are given."""
    if not isinstance(layer, nn.Sequential):
        return isinstance(layer, SIGNAL_LAYERS)
    steps = [step for step in layer if type(step).__module__ not in ELEMENTWISE]
    return bool(steps) and _channels_first(steps[-1])


def _named_layers(encoder: nn.Module, names: tuple[str, ...]) -> dict[str, nn.Module]:
    modules = dict(encoder.named_modules())
    for number, name in enumerate(names):
        if name not in modules or name == "":
            known = [other for other in modules if other and other.count(".") < 2]
            raise UserError(f"the encoder has no layer '{name}'; {choices(name, known)}")
        if name in names[:number]:
            raise UserError(f"the layer '{name}' is named twice: name it once")
    return {name: modules[name] for name in names}
