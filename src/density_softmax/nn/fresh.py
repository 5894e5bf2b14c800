"""Copies of a network that start from other weights."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import nn

from density_softmax.errors import UserError
from density_softmax.nn.backbone import Backbone

__all__ = ["fresh_copy"]

M = TypeVar("M", bound=nn.Module)


def fresh_copy(network: M) -> M:
    """A copy whose weights are drawn anew, in the order in which construction draws them.

    Every layer draws its own by `reset_parameters`, as torch's layers do when they are made;
    a `Backbone` then initialises itself. Batch norms forget what they have seen. Layers that are
    frozen keep all they have.
    """
    fresh = copy.deepcopy(network)
    for name, module in fresh.named_modules():
        _reset(name, module)
    for module in fresh.modules():
        if isinstance(module, Backbone):
            module.initialize()
    for module, original in zip(fresh.modules(), network.modules(), strict=True):
        if _is_frozen(original):
            module.load_state_dict(original.state_dict())
    return fresh


def _is_frozen(module: nn.Module) -> bool:
    """Whether it has weights, none of which may change."""
    weights = list(module.parameters())
    return bool(weights) and not any(weight.requires_grad for weight in weights)


def _reset(name: str, module: nn.Module) -> None:
    """Let a layer draw its weights; one that has any and cannot is an error."""
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
    elif next(module.parameters(recurse=False), None) is not None:
        kind = type(module).__name__
        raise UserError(
            f"cannot draw new weights for {kind} '{name}': give {kind} a method reset_parameters()"
        )
