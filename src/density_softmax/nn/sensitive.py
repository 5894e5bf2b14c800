"""Residual networks that lose less of their input, by surgery."""

from __future__ import annotations

from torch import nn

from density_softmax.nn.resnet import SubsampleAndPad
from density_softmax.nn.surgery import replace_layers

__all__ = ["make_sensitive"]

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
