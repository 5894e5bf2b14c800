"""Wide residual networks (Zagoruyko & Komodakis 2016, https://arxiv.org/abs/1605.07146)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from density_softmax.config import at_least
from density_softmax.nn.backbones.base import BackboneConfig, Residual
from density_softmax.nn.backbones.resnet import (
    MEAN_POOL,
    ImageBackbone,
    blocks_per_group,
    conv,
    group,
    image_channels,
)


class PreActivationBlock(Residual):
    """y = s(x) + conv(relu(bn(conv(relu(bn(x)))))) with 3×3 convolutions.

    The shortcut s is the identity, or a 1×1 convolution where the shape changes. That
    convolution reads the raw x, as in uncertainty-baselines; the authors' own code gives it
    relu(bn(x)). The number of parameters is the same.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv(in_channels, out_channels, 3, stride)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv(out_channels, out_channels, 3)
        self.activation = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = conv(in_channels, out_channels, 1, stride)

    def paths(self) -> tuple[nn.Module, Sequence[nn.Module]]:
        """The shortcut and the branch."""
        first, second = (self.bn1, self.activation, self.conv1), (self.bn2, self.activation)
        return self.shortcut, (*first, *second, self.conv2)


@final
class WideResNet(ImageBackbone):
    """WRN-depth-width: groups of 16, 32 and 64 times `width` channels, without dropout.

    z = pool(relu(bn(x))) of the last group's output x. Blocks and initialisation are those of
    uncertainty-baselines (version 2), except that PyTorch pads strided convolutions evenly.
    """

    layer_names = ("stem", "group1", "group2", "group3")

    @dataclass(frozen=True)
    class Config(BackboneConfig, kind="wide_resnet"):
        """WRN-28-10, the CIFAR backbone of the Density-Softmax paper and uncertainty-baselines.

        Attributes:
            depth: number of convolutions with those of the three shortcuts, 6n + 4.
            width: how many times wider than the CIFAR ResNet of He et al. 2016.
            stem_stride: stride of the first convolution. With 2, which is not the paper's, the
                network costs a quarter.
            channels_last: hold images as (height, width, channels) in memory. The function stays
                the same; small networks train up to a fifth faster on a CPU.
        """

        depth: int = 28
        width: int = 10
        stem_stride: int = 1
        channels_last: bool = False

        def __post_init__(self) -> None:
            blocks_per_group(self.depth, offset=4)
            at_least(self, width=1, stem_stride=1)

        def build(self, input_shape: tuple[int, ...]) -> WideResNet:
            """A newly initialised wide ResNet for images of `input_shape`."""
            return WideResNet(self, image_channels(input_shape))

    def __init__(self, config: Config, in_channels: int) -> None:
        super().__init__()
        n, k = blocks_per_group(config.depth, offset=4), config.width
        self.num_features = 64 * k
        self.stem = conv(in_channels, 16, 3, config.stem_stride)
        self.group1 = group(PreActivationBlock, 16, 16 * k, n, stride=1)
        self.group2 = group(PreActivationBlock, 16 * k, 32 * k, n, stride=2)
        self.group3 = group(PreActivationBlock, 32 * k, 64 * k, n, stride=2)
        self.bn = nn.BatchNorm2d(64 * k)
        self.activation = nn.ReLU()
        self.memory_format = torch.channels_last if config.channels_last else torch.preserve_format
        self.initialize()

    def chain(self) -> Sequence[nn.Module]:
        """The stem, the groups, the last batch norm and the pooling."""
        groups = (self.group1, self.group2, self.group3)
        return self.stem, *groups, self.bn, self.activation, MEAN_POOL

    def forward(self, x: Tensor) -> Tensor:
        """The features of a batch of images, (batch, 64 · width)."""
        # All layers keep the memory format of their input.
        return super().forward(x.to(memory_format=self.memory_format))
