"""A network that reads several inputs at once: only its first layer has to change."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from density_softmax.errors import UserError
from density_softmax.nn.backbone import measure_width
from density_softmax.nn.surgery import WEIGHT_LAYERS, replace_layers

__all__ = ["side_by_side", "widen_input"]

M = TypeVar("M", bound=nn.Module)


def side_by_side(x: Tensor) -> Tensor:
    """Inputs (members, batch, channels, ...) as one batch of (batch, members · channels, ...)."""
    return x.transpose(0, 1).flatten(1, 2)


def widen_input(network: nn.Module, num_inputs: int, example: Tensor | None = None) -> str:
    """Let a network read `num_inputs` inputs side by side; returns the name of the new layer.

    That is its first linear layer or convolution. The network changes in place. If it cannot
    read an `example` afterwards, because more than that layer depends on the width of its input,
    an error says so.
    """
    layers = [m for m in network.modules() if isinstance(m, WEIGHT_LAYERS)]
    if not layers:
        raise UserError(
            f"{type(network).__name__} has no linear layer and no convolution that could read "
            f"{num_inputs} inputs at once"
        )
    name, *_ = replace_layers(
        network, lambda _, layer: widened(layer, num_inputs) if layer is layers[0] else None
    )
    if example is not None:
        _try(network, name, example.expand(num_inputs, *example.shape))
    return name


@torch.no_grad()
def widened(layer: M, num_inputs: int) -> M:
    """The same layer for `num_inputs` times as many channels.

    The first input keeps the weights and the others get them in random order, all divided by
    √num_inputs: whatever distribution they were drawn from, they have it still, scaled to the
    larger fan-in.
    """
    if getattr(layer, "groups", 1) != 1:
        raise UserError(f"{layer} is grouped: its groups would not see all inputs")
    weight = layer.get_parameter("weight")
    shuffled = [_shuffled(weight) for _ in range(num_inputs - 1)]
    wide = copy.deepcopy(layer)
    wide.weight = nn.Parameter(torch.cat([weight, *shuffled], dim=1) / num_inputs**0.5)
    width = "in_features" if isinstance(layer, nn.Linear) else "in_channels"
    setattr(wide, width, wide.weight.shape[1])
    return wide


def _shuffled(weight: Tensor) -> Tensor:
    order = torch.randperm(weight.numel(), device=weight.device)
    return weight.flatten()[order].view_as(weight)


def _try(network: nn.Module, name: str, inputs: Tensor) -> None:
    try:
        measure_width(network, side_by_side(inputs))
    except RuntimeError as error:
        raise UserError(
            f"{type(network).__name__} cannot read {len(inputs)} inputs side by side: more than "
            f"its layer '{name}' depends on the width of the input ({error})"
        ) from None
