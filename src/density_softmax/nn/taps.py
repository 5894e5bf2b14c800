"""Forward hooks that read layers of a model during one pass through it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from difflib import get_close_matches
from functools import partial
from threading import get_ident
from typing import Any, final

import torch
from torch import Tensor, nn

from density_softmax.errors import UserError
from density_softmax.nn.execution import full_precision
from density_softmax.types import Inputs

# Added to variances before their logarithm.
EPSILON = 1e-6
# Layers on sequences of shape (batch, channels, length).
SIGNAL_LAYERS = (
    *(nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.InstanceNorm1d, nn.GroupNorm),
    *(nn.MaxPool1d, nn.AvgPool1d, nn.LPPool1d, nn.AdaptiveMaxPool1d, nn.AdaptiveAvgPool1d),
)
# Layers on tokens of shape (batch, length, channels).
TOKEN_LAYERS = (nn.Embedding, nn.LayerNorm, nn.MultiheadAttention, nn.RNNBase)
# Of layers that are not there, so many others are named.
NUM_NAMED = 6
ALL_NAMES = "list all with [name for name, _ in model.named_modules()]"
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
        # All by thread: values and mask of the pass under way, and values of the last one.
        self._open: dict[int, dict[str, Any]] = {}
        self._masks: dict[int, Tensor | None] = {}
        self._recorded: dict[int, dict[str, Any]] = {}
        self._hooks_stay = False

    @contextlib.contextmanager
    def recording(self, model: nn.Module, mask: Tensor | None = None) -> Iterator[None]:
        """A context for one pass through `model` on this thread.

        Args:
            model: that has the layers.
            mask: which positions are not padding, (batch, length); `read` finds it as `mask`.
        """
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
        self._open[thread], self._masks[thread] = values, mask
        try:
            yield
        finally:
            del self._open[thread], self._masks[thread]
            for layer_hooks in hooks:
                del layer_hooks[id(values)]
        self._recorded[thread] = values

    def pop(self) -> dict[str, Any]:
        """Return and forget what was recorded in this thread's last pass, by layer."""
        return self._recorded.pop(_thread(), {})

    @property
    def mask(self) -> Tensor | None:
        """Which positions of the pass under way are not padding, (batch, length)."""
        return self._masks.get(_thread())

    def _record(self, name: str, layer: nn.Module, inputs: Any, output: Any) -> None:
        values = self._open.get(_thread())
        if values is not None:
            values[name] = self._read(name, inputs, output)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": {}, "_masks": {}, "_recorded": {}}


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
        self._padding = padding_of(encoder)
        self._channels_first = {name: is_signal(layer) for name, layer in layers.items()}
        self._recorder = CallRecorder(names, self._pooled_output, inside)

    def reading(self, encoder: nn.Module, x: Any = None) -> AbstractContextManager[None]:
        """A context for one pass through the encoder, which has no hooks before and after it.

        Args:
            encoder: the network.
            x: its inputs, which may tell what is padding.
        """
        if not self.names:
            return contextlib.nullcontext()
        return self._recorder.recording(encoder, mask_of(x, self._padding))

    def pop(self) -> list[Tensor]:
        """Return and forget what was read in the last pass, tensors of (batch, width)."""
        return [statistic for found in self.pop_by_layer().values() for statistic in found]

    def pop_by_layer(self) -> dict[str, tuple[Tensor, ...]]:
        """`pop`, by layer."""
        found = self._recorder.pop()
        missing = [name for name in self.names if name not in found]
        if missing:
            raise UserError(
                f"the encoder does not call its layer '{missing[0]}' when it predicts: "
                "name layers that it calls"
            )
        return {name: found[name] for name in self.names}

    def _pooled_output(self, name: str, inputs: Any, output: Any) -> tuple[Tensor, ...]:
        h = output[0] if isinstance(output, tuple) else output
        if not isinstance(h, Tensor):
            raise UserError(
                f"the layer '{name}' returns a {type(h).__name__}: name one that returns a tensor"
            )
        return pooled(h, self._channels_first[name], self._recorder.mask)


def padding_of(model: nn.Module) -> int | None:
    """The token number that an embedding of the model takes for padding.

    Args:
        model: any network.
    """
    embeddings = (module for module in model.modules() if isinstance(module, nn.Embedding))
    return next((each.padding_idx for each in embeddings if each.padding_idx is not None), None)


def mask_of(x: Any, padding: int | None) -> Tensor | None:
    """Which positions of token sequences are not padding, (batch, length), if it is known.

    Args:
        x: a batch of inputs; several may have an `attention_mask`.
        padding: the number of the token for padding.
    """
    if isinstance(x, Inputs):
        mask = x.tensors.get("attention_mask")
        return None if mask is None or mask.ndim != 2 else mask != 0
    tokens = isinstance(x, Tensor) and x.ndim == 2 and not x.is_floating_point()
    return x != padding if tokens and padding is not None else None


def _of_tokens(h: Tensor, mask: Tensor | None) -> Tensor | None:
    """Weights of the positions of h, (batch, length, 1), if the mask is one of them."""
    if mask is None or h.ndim != 3 or mask.shape != h.shape[:2]:
        return None
    weights = mask.float()[..., None]
    return weights / weights.sum(1, keepdim=True).clamp_min(1)


def pooled(
    h: Tensor, channels_first: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Mean and log standard deviation of each channel over positions, both (batch, channels).

    Contrast multiplies deviations, so their logs are closer to the normal distribution that a
    Gaussian density assumes. A vector has no positions and is returned as it is.

    Args:
        h: vectors (batch, channels), tokens (batch, length, channels), or images
            (batch, channels, height, width).
        channels_first: take three dimensions for signals, (batch, channels, length).
        mask: which tokens are not padding, (batch, length); the others are left out.
    """
    if h.ndim == 2:
        return (h.clone(),)  # the next layer may work in place
    if not channels_first and (weights := _of_tokens(h, mask)) is not None:
        with full_precision(h):
            mean = (h.float() * weights).sum(1)
            variance = ((h.float() - mean[:, None]).square() * weights).sum(1)
            return mean, (variance + EPSILON).log() / 2
    if h.ndim == 3 and not channels_first:
        h = h.transpose(1, 2)
    with full_precision(h):
        h = h.float()
        if torch.compiler.is_compiling():  # or exporting: var_mean would be three passes over h
            dims = tuple(range(2, h.ndim))
            mean = h.mean(dims, keepdim=True)
            residual = h - mean
            variance = (residual * residual).mean(dims)  # in onnxruntime faster than a square
            return mean.flatten(1), (variance + EPSILON).log() / 2
        # Group norm gives both in one operation; torch.var_mean takes fifty times as long.
        h = h.contiguous()
        batch, channels, *sizes = h.shape
        _, mean, inverse_std = torch.native_group_norm(
            h, None, None, batch, channels, math.prod(sizes), channels, EPSILON
        )
        return mean, -inverse_std.log()


def first_tensor(value: Any) -> Tensor | None:
    """A tensor, or the first of what a layer takes or returns, if there is one.

    Args:
        value: the inputs or the output of a layer.
    """
    if isinstance(value, Tensor):
        return None if value.is_nested else value
    if isinstance(value, Mapping):
        value = list(value.values())
    found = first_tensor(value[0]) if isinstance(value, tuple | list) and value else None
    return found


def vectors_of(h: Tensor | None, layer: nn.Module, mask: Tensor | None = None) -> Tensor | None:
    """A vector for each sample, the mean over positions; None for what is no batch of floats.

    Args:
        h: what a layer takes or returns, (batch, ...).
        layer: tells signals from tokens.
        mask: which tokens are not padding, (batch, length); the others are left out.
    """
    if h is None or not h.is_floating_point() or h.ndim < 1:
        return None
    if h.ndim < 3:
        return h.clone() if h.ndim == 2 else h[:, None].clone()  # what follows may work in place
    if h.ndim == 3 and not is_signal(layer):
        weights = _of_tokens(h, mask)
        return h.mean(1) if weights is None else (h * weights.to(h.dtype)).sum(1)
    return h.flatten(2).mean(2)


def is_signal(layer: nn.Module) -> bool:
    """Whether a layer returns signals, (batch, channels, length), and not tokens.

    Activations and dropout return what they are given. A block of its owner's making is told by
    what it is made of.

    Args:
        layer: any module.
    """
    if isinstance(layer, nn.Sequential):
        steps = [step for step in layer if type(step).__module__ not in ELEMENTWISE]
        return bool(steps) and is_signal(steps[-1])
    if isinstance(layer, SIGNAL_LAYERS) or not any(layer.children()):
        return isinstance(layer, SIGNAL_LAYERS)
    parts = list(layer.modules())
    convolves = any(isinstance(part, nn.Conv1d) for part in parts)
    return convolves and not any(isinstance(part, TOKEN_LAYERS) for part in parts)


def suggestion(name: str, known: Iterable[str]) -> str:
    """What a message says of the names that there are: those alike, or the first and the last.

    Args:
        name: one that is none of them.
        known: names of layers.
    """
    known = [other for other in known if other]
    alike = get_close_matches(name, known, n=NUM_NAMED, cutoff=0.5)
    # Deep names end in what is looked for, such as `1.conv2` in `layer2.1.conv2`.
    alike += [other for other in known if name and name in other and other not in alike]
    meant = f"did you mean {', '.join(alike[:NUM_NAMED])}? " if alike else ""
    few = known if len(known) <= 2 * NUM_NAMED else [*known[:NUM_NAMED], "...", *known[-NUM_NAMED:]]
    return f"{meant}there are: {', '.join(few) or 'none'}; {ALL_NAMES}"


def _named_layers(encoder: nn.Module, names: tuple[str, ...]) -> dict[str, nn.Module]:
    modules = dict(encoder.named_modules())
    for number, name in enumerate(names):
        if name not in modules or name == "":
            raise UserError(f"the encoder has no layer '{name}'; {suggestion(name, modules)}")
        if name in names[:number]:
            raise UserError(f"the layer '{name}' is named twice: name it once")
    return {name: modules[name] for name in names}
