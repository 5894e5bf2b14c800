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

KernelLayer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
# Layers that map channels (dimension 1 of their weight) to channels (dimension 0).
WEIGHT_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# What residual blocks call the path around their convolutions, here and in torchvision.
SHORTCUTS = ("shortcut", "downsample")

Rule = Callable[[str, nn.Module], nn.Module | None]
M = TypeVar("M", bound=nn.Module)


def replace_layers(network: nn.Module, rule: Rule) -> list[str]:
    """Replace every layer for which `rule(name, layer)` is not None; returns their names.

    A layer that is used in several places is replaced by the same new layer in all of them. The
    inside of a replacement is not visited again.

    Args:
        network: changed in place.
        rule: returns the new layer, or None to keep the old one.
    """
    if rule("", network) is not None:
        raise UserError(
            f"{type(network).__name__} itself would have to be replaced: wrap it in nn.Sequential"
        )
    chosen: dict[nn.Module, nn.Module] = {}
    replaced: dict[str, nn.Module] = {}
    for name, layer in network.named_modules(remove_duplicate=False):
        if name == "" or any(name.startswith(f"{outer}.") for outer in replaced):
            continue
        new = chosen[layer] if layer in chosen else rule(name, layer)
        if new is not None:
            chosen[layer] = replaced[name] = new
    for name, new in replaced.items():
        network.set_submodule(name, new)
    return list(replaced)


def num_channels(layer: KernelLayer) -> tuple[int, int]:
    """How many channels the layer reads and writes.

    Args:
        layer: a linear layer or a convolution.
    """
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return layer.in_channels, layer.out_channels


def over_channels(layer: KernelLayer, vectors: Tensor, x: Tensor) -> Tensor:
    """Vectors in a shape that multiplies the channels of `x`.

    They take the type of `x`: under autocast a float32 factor would double the activations.

    Args:
        layer: whose input or output `x` is.
        vectors: one per sample, (batch, channels).
        x: (batch, ..., channels) of a linear layer, (batch, channels, ...) of a convolution.
    """
    ones = [1] * (x.ndim - 2)
    num_rows, width = vectors.shape
    linear = isinstance(layer, nn.Linear)
    shape = (num_rows, *ones, width) if linear else (num_rows, width, *ones)
    return vectors.to(x.dtype).reshape(shape)


def with_kernel(layer: KernelLayer, x: Tensor, kernel: Tensor) -> Tensor:
    """The output of the layer with another kernel and without its bias.

    Args:
        layer: a linear layer or a convolution.
        x: its input.
        kernel: of the shape of its weight.
    """
    if isinstance(layer, nn.Linear):
        return F.linear(x, kernel)
    # Torch's own forward pass, which knows every padding mode.
    return layer._conv_forward(x, kernel, None)


def reinitialized_copy(network: M) -> M:
    """A copy with new random weights, drawn in the order in which construction draws them.

    Every layer draws its own by `reset_parameters`, as torch's layers do when they are made;
    a `Backbone` then initialises itself. The statistics of batch norms are reset.

    Args:
        network: layers in it that are frozen keep their weights.
    """
    new = copy.deepcopy(network)
    for name, module in new.named_modules():
        _reset(name, module)
    for module in new.modules():
        if isinstance(module, Backbone):
            module.initialize()
    for module, original in zip(new.modules(), network.modules(), strict=True):
        weights = list(original.parameters())
        if weights and not any(weight.requires_grad for weight in weights):
            module.load_state_dict(original.state_dict())
    return new


def _reset(name: str, module: nn.Module) -> None:
    """Let a layer draw its weights; one that has weights and cannot draw them is an error."""
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
    elif next(module.parameters(recurse=False), None) is not None:
        kind = type(module).__name__
        raise UserError(
            f"cannot draw new weights for {kind} '{name}': give {kind} a method reset_parameters()"
        )


def prevent_feature_collapse(network: nn.Module) -> list[str]:
    """Replace ReLUs by leaky ones, and shortcuts that change the shape by average pooling.

    These are the changes of DDU (Mukhoti et al. 2023). A pooling shortcut pads the missing
    channels with zeros: unlike a learned projection it cannot discard directions of its input,
    and unlike a strided one it skips no pixel. Returns the names of what was replaced.

    Args:
        network: changed in place.
    """

    def rule(name: str, layer: nn.Module) -> nn.Module | None:
        if isinstance(layer, nn.ReLU):
            return nn.LeakyReLU(inplace=layer.inplace)
        return _pooling(layer) if name.rpartition(".")[2] in SHORTCUTS else None

    return replace_layers(network, rule)


def _pooling(shortcut: nn.Module) -> nn.Module | None:
    """An average-pooling shortcut of the same shape; None where nothing changes the shape."""
    convolutions = [layer for layer in shortcut.modules() if isinstance(layer, nn.Conv2d)]
    if isinstance(shortcut, SubsampleAndPad):
        stride, num_added = shortcut.stride, sum(shortcut.padding)
    elif convolutions:
        first, last = convolutions[0], convolutions[-1]
        stride, num_added = first.stride[0], last.out_channels - first.in_channels
    else:
        return None
    # Where the stride does not divide the size, a convolution has one more pixel: so does this.
    return nn.Sequential(nn.AvgPool2d(stride, ceil_mode=True), SubsampleAndPad(0, num_added, 1))


def concatenate_inputs(x: Tensor) -> Tensor:
    """The inputs of all members as one, (batch, members · channels, ...).

    Args:
        x: (members, batch, channels, ...).
    """
    return x.transpose(0, 1).flatten(1, 2)


def widen_input(network: nn.Module, num_inputs: int, example: Tensor | None = None) -> str:
    """Let the first weight layer of a network read several inputs at once; returns its name.

    Args:
        network: changed in place.
        num_inputs: how many inputs, as `concatenate_inputs` gives them.
        example: one input each, (batch, ...), to check that the network can read them: an error
            says if more than its first layer depends on the width of the input.
    """
    layers = [m for m in network.modules() if isinstance(m, WEIGHT_LAYERS)]
    if not layers:
        raise UserError(
            f"{type(network).__name__} has no linear layer and no convolution that could read "
            f"{num_inputs} inputs at once"
        )
    name, *_ = replace_layers(
        network, lambda _, layer: _widened(layer, num_inputs) if layer is layers[0] else None
    )
    if example is not None:
        try:
            measure_width(network, concatenate_inputs(example.expand(num_inputs, *example.shape)))
        except RuntimeError as error:
            raise UserError(
                f"{type(network).__name__} cannot read {num_inputs} inputs side by side: more than "
                f"its layer '{name}' depends on the width of the input ({error})"
            ) from None
    return name


@torch.no_grad()
def _widened(layer: M, num_inputs: int) -> M:
    """The same layer for `num_inputs` times as many channels.

    The first input keeps the weights and the others get them in random order, all divided by
    √num_inputs: whatever distribution they were drawn from, they have it still, scaled to the
    larger fan-in.
    """
    if getattr(layer, "groups", 1) != 1:
        raise UserError(f"{layer} is grouped: its groups would not see all inputs")
    weight = layer.get_parameter("weight")
    orders = [torch.randperm(weight.numel(), device=weight.device) for _ in range(num_inputs - 1)]
    shuffled = [weight.flatten()[order].view_as(weight) for order in orders]
    wide = copy.deepcopy(layer)
    wide.weight = nn.Parameter(torch.cat([weight, *shuffled], dim=1) / num_inputs**0.5)
    width = "in_features" if isinstance(layer, nn.Linear) else "in_channels"
    setattr(wide, width, wide.weight.shape[1])
    return wide
