"""Residual networks (He et al. 2016, https://arxiv.org/abs/1512.03385) for ImageNet and CIFAR."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.config import ConfigError
from density_softmax.nn.backbones.base import Backbone, BackboneConfig, Residual
from density_softmax.nn.lipschitz.bounds import LinearMap


def image_channels(input_shape: tuple[int, ...]) -> int:
    """The number of channels of an image; any other shape raises.

    Args:
        input_shape: (channels, height, width).
    """
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ConfigError(
            f"input_shape={tuple(input_shape)}: a residual network reads images, "
            "expected (channels, height, width)"
        )
    return input_shape[0]


def blocks_per_group(depth: int, offset: int) -> int:
    """The n >= 1 of depth = 6n + offset: three groups of n blocks of two convolutions each.

    Args:
        depth: the number of layers with weights.
        offset: how many of them are outside of the blocks.
    """
    n, rest = divmod(depth - offset, 6)
    if n < 1 or rest:
        nearest = sorted({6 * max(n, 1) + offset, 6 * max(n + 1, 1) + offset})
        raise ConfigError(
            f"depth={depth}: expected 6n + {offset} with n >= 1; "
            f"the nearest is {' or '.join(map(str, nearest))}"
        )
    return n


def conv(in_channels: int, out_channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the image size up to its stride.

    Args:
        in_channels: of the input.
        out_channels: of the output.
        size: of the kernel, odd.
        stride: in both directions.
    """
    return nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, bias=False)


def group(
    block: Callable[[int, int, int], nn.Module],
    in_channels: int,
    out_channels: int,
    num_blocks: int,
    stride: int,
) -> nn.Sequential:
    """Blocks in a row, of which the first changes the number of channels and the image size.

    Args:
        block: makes a block from its input channels, output channels and stride.
        in_channels: of the first block.
        out_channels: of all blocks.
        num_blocks: how many there are.
        stride: of the first block.
    """
    first = block(in_channels, out_channels, stride)
    rest = (block(out_channels, out_channels, 1) for _ in range(num_blocks - 1))
    return nn.Sequential(first, *rest)


class SubsampleAndPad(LinearMap):
    """The shortcut without parameters (option A of He et al.).

    Takes every `stride`-th pixel and adds channels of zeros, half before and half after.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        added = out_channels - in_channels
        self.stride = stride
        self.padding = (0, 0, 0, 0, added // 2, added - added // 2)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in, height, width) to (batch, out, ⌈height/stride⌉, ⌈width/stride⌉)."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], self.padding)


class MeanOverPixels(LinearMap):
    """(batch, channels, height, width) to (batch, channels)."""

    def forward(self, x: Tensor) -> Tensor:
        """The mean of each channel."""
        return x.mean(dim=(2, 3))


MAX_POOL = nn.MaxPool2d(3, stride=2, padding=1)
MEAN_POOL = MeanOverPixels()


class BasicBlock(Residual):
    """y = relu(s(x) + bn(conv(relu(bn(conv(x)))))) with 3×3 convolutions and an option-A s."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(in_channels, out_channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv(out_channels, out_channels, 3)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.activation = nn.ReLU()
        self.shortcut = SubsampleAndPad(in_channels, out_channels, stride)

    def paths(self) -> tuple[nn.Module, Sequence[nn.Module]]:
        """The shortcut and the branch before they are added."""
        return self.shortcut, (self.conv1, self.bn1, self.activation, self.conv2, self.bn2)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, at 1/stride of the size of `x`."""
        y: Tensor = self.activation(super().forward(x))
        return y


class Bottleneck(Residual):
    """1×1, 3×3 and 1×1 convolutions, the middle one with a quarter of the output channels.

    The stride is on the 3×3 convolution ("v1.5"), as in torchvision and uncertainty-baselines;
    the paper has it on the first 1×1.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        channels = out_channels // 4
        self.conv1 = conv(in_channels, channels, 1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv(channels, channels, 3, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = conv(channels, out_channels, 1)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.activation = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels)
            )

    def paths(self) -> tuple[nn.Module, Sequence[nn.Module]]:
        """The shortcut and the branch before they are added."""
        first, second = (self.conv1, self.bn1), (self.conv2, self.bn2)
        branch = *first, self.activation, *second, self.activation, self.conv3, self.bn3
        return self.downsample, branch

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, at 1/stride of the size of `x`."""
        y: Tensor = self.activation(super().forward(x))
        return y


class ImageBackbone(Backbone, ABC):
    """A convolutional network whose convolutions start as N(0, 2 / fan_in).

    This is the variance of uncertainty-baselines' `he_normal`, which is cut off at two standard
    deviations.
    """

    def initialize(self) -> None:
        """Draw all convolutions."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")


@final
class ResNet(ImageBackbone):
    """The ImageNet ResNet of bottleneck blocks; z is the pooled output of the last group.

    Its modules have torchvision's names: a published state dict without its `fc.*` loads as is.
    """

    num_features = 2048
    layer_names = ("layer1", "layer2", "layer3", "layer4")

    NUM_BLOCKS: ClassVar[dict[int, tuple[int, int, int, int]]] = {
        50: (3, 4, 6, 3),
        101: (3, 4, 23, 3),
        152: (3, 8, 36, 3),
    }

    @dataclass(frozen=True)
    class Config(BackboneConfig, kind="resnet"):
        """ResNet-50, the ImageNet backbone of the Density-Softmax paper.

        Attributes:
            depth: number of layers with weights, 50, 101 or 152 (He et al. 2016, Table 1).
        """

        depth: int = 50

        def __post_init__(self) -> None:
            if self.depth not in ResNet.NUM_BLOCKS:
                depths = ", ".join(map(str, ResNet.NUM_BLOCKS))
                raise ConfigError(f"depth={self.depth}: choose one of {depths}")

        def build(self, input_shape: tuple[int, ...]) -> ResNet:
            """A newly initialised ResNet for images of `input_shape`."""
            return ResNet(self, image_channels(input_shape))

    def __init__(self, config: Config, in_channels: int) -> None:
        super().__init__()
        n1, n2, n3, n4 = self.NUM_BLOCKS[config.depth]
        self.conv1 = conv(in_channels, 64, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.activation = nn.ReLU()
        self.layer1 = group(Bottleneck, 64, 256, n1, stride=1)
        self.layer2 = group(Bottleneck, 256, 512, n2, stride=2)
        self.layer3 = group(Bottleneck, 512, 1024, n3, stride=2)
        self.layer4 = group(Bottleneck, 1024, 2048, n4, stride=2)
        self.initialize()

    def chain(self) -> Sequence[nn.Module]:
        """The stem, the groups and the pooling."""
        stem = (self.conv1, self.bn1, self.activation, MAX_POOL)
        return *stem, self.layer1, self.layer2, self.layer3, self.layer4, MEAN_POOL


@final
class CifarResNet(ImageBackbone):
    """The CIFAR ResNet of basic blocks with 16, 32 and 64 channels; z is its pooled output."""

    num_features = 64
    layer_names = ("layer1", "layer2", "layer3")

    @dataclass(frozen=True)
    class Config(BackboneConfig, kind="cifar_resnet"):
        """ResNet-20, the smallest of He et al. 2016, Section 4.2.

        Attributes:
            depth: number of layers with weights, 6n + 2; the paper has 20, 32, 44, 56 and 110.
        """

        depth: int = 20

        def __post_init__(self) -> None:
            blocks_per_group(self.depth, offset=2)

        def build(self, input_shape: tuple[int, ...]) -> CifarResNet:
            """A newly initialised CIFAR ResNet for images of `input_shape`."""
            return CifarResNet(self, image_channels(input_shape))

    def __init__(self, config: Config, in_channels: int) -> None:
        super().__init__()
        n = blocks_per_group(config.depth, offset=2)
        self.conv1 = conv(in_channels, 16, 3)
        self.bn1 = nn.BatchNorm2d(16)
        self.activation = nn.ReLU()
        self.layer1 = group(BasicBlock, 16, 16, n, stride=1)
        self.layer2 = group(BasicBlock, 16, 32, n, stride=2)
        self.layer3 = group(BasicBlock, 32, 64, n, stride=2)
        self.initialize()

    def chain(self) -> Sequence[nn.Module]:
        """The stem, the groups and the pooling."""
        groups = (self.layer1, self.layer2, self.layer3)
        return self.conv1, self.bn1, self.activation, *groups, MEAN_POOL
