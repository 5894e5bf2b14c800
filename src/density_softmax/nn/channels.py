"""What convolutions and dense layers share: a kernel that maps channels to channels."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["KernelLayer", "num_channels", "over_channels", "with_kernel"]

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
