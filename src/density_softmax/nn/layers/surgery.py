"""Variants of a network by replacing its layers, never by writing the network again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.errors import UserError
from density_softmax.nn.backbones.base import Backbone, measure_width
from density_softmax.nn.backbones.resnet import SubsampleAndPad

__all__ = [
    "WEIGHT_LAYERS",
    "KernelLayer",
    "fresh_copy",
    "make_sensitive",
    "num_channels",
    "over_channels",
    "replace_layers",
    "side_by_side",
    "widen_input",
    "with_kernel",
]

# Layers that map channels (dimension 1 of their weight) to channels (dimension 0).
WEIGHT_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

Rule = Callable[[str, nn.Module], nn.Module | None]


def replace_layers(network: nn.Module, rule: Rule) -> list[str]:
    """Put `rule(name, layer)` in the place of every layer for which it is not None.

    The network changes in place; the names of the replaced layers are returned. A layer that
    stands in several places is replaced by one and the same new layer in all of them. What a
    replacement contains is not visited again.
    """
    if rule("", network) is not None:
        raise UserError(
            f"{type(network).__name__} itself would have to be replaced: wrap it in nn.Sequential"
        )
    chosen: dict[nn.Module, nn.Module] = {}
    places: list[tuple[str, nn.Module]] = []
    for name, layer in network.named_modules(remove_duplicate=False):
        inside = any(name.startswith(f"{place}.") for place, _ in places)
        if name == "" or inside:
            continue
        new = chosen[layer] if layer in chosen else rule(name, layer)
        if new is not None:
            chosen[layer] = new
            places.append((name, new))
    for name, new in places:
        network.set_submodule(name, new)
    return [name for name, _ in places]


KernelLayer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


def num_channels(layer: KernelLayer) -> tuple[int, int]:
    """How many channels the layer reads and writes."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return layer.in_channels, layer.out_channels


def over_channels(layer: KernelLayer, vectors: Tensor, x: Tensor) -> Tensor:
    """A vector per sample, (batch, channels), shaped to multiply an input or output `x`.

    In the type of `x`, because under autocast a float32 factor would double the activations.
    """
    places = [1] * (x.ndim - 2)
    num_rows, width = vectors.shape
    last = isinstance(layer, nn.Linear)
    shape = (num_rows, *places, width) if last else (num_rows, width, *places)
    return vectors.to(x.dtype).reshape(shape)


def with_kernel(layer: KernelLayer, x: Tensor, kernel: Tensor) -> Tensor:
    """What the layer would give with another kernel and without its bias."""
    if isinstance(layer, nn.Linear):
        return F.linear(x, kernel)
    # Torch's own forward pass, which knows every padding mode.
    return layer._conv_forward(x, kernel, None)


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


# What residual blocks call the path around their convolutions, here and in torchvision.
SHORTCUTS = ("shortcut", "downsample")


def make_sensitive(network: nn.Module) -> list[str]:
    """Replace ReLUs by leaky ones, and shortcuts that change the shape by average pooling.

    These are the changes of DDU (Mukhoti et al. 2023). A pooling shortcut pads the missing
    channels with zeros: unlike a learned projection it cannot drop what it is given, and unlike
    a strided one it skips no pixel. Returns the names of what was replaced.
    """
    return replace_layers(network, _sensitive)


def _sensitive(name: str, layer: nn.Module) -> nn.Module | None:
    if isinstance(layer, nn.ReLU):
        return nn.LeakyReLU(inplace=layer.inplace)
    return _pooling(layer) if name.rpartition(".")[2] in SHORTCUTS else None


def _pooling(shortcut: nn.Module) -> nn.Module | None:
    """An average-pooling shortcut of the same shape; None where nothing changes the shape."""
    if isinstance(shortcut, SubsampleAndPad):
        return _pool_and_pad(shortcut.stride, sum(shortcut.padding))
    convolutions = [layer for layer in shortcut.modules() if isinstance(layer, nn.Conv2d)]
    if not convolutions:
        return None
    first, last = convolutions[0], convolutions[-1]
    return _pool_and_pad(first.stride[0], last.out_channels - first.in_channels)


def _pool_and_pad(stride: int, num_added: int) -> nn.Sequential:
    # Where the stride does not divide the size, a convolution has one more pixel: so does this.
    return nn.Sequential(nn.AvgPool2d(stride, ceil_mode=True), SubsampleAndPad(0, num_added, 1))


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
