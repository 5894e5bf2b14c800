"""Layers of a model, heard in one pass through it and in no other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any, final

import torch
from torch import nn

__all__ = ["Listener"]


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
