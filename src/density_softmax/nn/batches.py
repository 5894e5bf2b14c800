"""What a network needs for one input, to choose how many it computes at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from density_softmax.nn.execution import evaluating, seeded
from density_softmax.nn.taps import CallRecorder
from density_softmax.types import Inputs, tensors_of


@torch.no_grad()
def widest_layer(network: nn.Module, x: Tensor | Inputs) -> float:
    """Bytes per input that the layer with the largest activations reads and writes.

    The network runs once. Layers are modules without children, and the network itself.

    Args:
        network: any that takes a batch.
        x: a batch like those that it will read, (batch, ...); two inputs are enough.
    """
    layers = [name for name, layer in network.named_modules() if not any(layer.children())]
    recorder = CallRecorder(tuple(name for name in layers if name), _touched)
    with evaluating(network), seeded(0, x.device), recorder.recording(network):
        output = network(x)
    whole = sum(part.nbytes for part in tensors_of(x)) + _bytes_of(output)
    return max([whole, *recorder.pop().values()]) / len(x)


def _touched(name: str, inputs: Any, output: Any) -> int:
    return _bytes_of(inputs) + _bytes_of(output)


def _bytes_of(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        value = list(value.values())
    return sum(map(_bytes_of, value)) if isinstance(value, list | tuple) else 0
