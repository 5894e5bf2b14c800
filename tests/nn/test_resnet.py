from __future__ import annotations

import pytest
import torch
from torch import nn

from density_softmax.config import ConfigError, from_dict, override, to_dict
from density_softmax.nn.backbones.base import BackboneConfig
from density_softmax.nn.backbones.resnet import (
    BasicBlock,
    Bottleneck,
    CifarResNet,
    ResNet,
    SubsampleAndPad,
    blocks_per_group,
)

CONFIGS = [ResNet.Config(), CifarResNet.Config()]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def num_parameters(config: BackboneConfig, num_classes: int) -> int:
    """The parameters of a backbone on RGB images with a linear head."""
    with torch.device("meta"):
        backbone = config.build((3, 32, 32))
        head = nn.Linear(backbone.num_features, num_classes)
    return sum(p.numel() for module in (backbone, head) for p in module.parameters())


@pytest.mark.parametrize(
    ("depth", "count"), [(50, 25_557_032), (101, 44_549_160), (152, 60_192_808)]
)
def test_parameter_counts_are_those_published_for_imagenet(depth: int, count: int) -> None:
    assert num_parameters(ResNet.Config(depth), num_classes=1000) == count


@pytest.mark.parametrize(("depth", "count"), [(20, 269_722), (32, 464_154), (56, 853_018)])
def test_parameter_counts_are_those_published_for_cifar(depth: int, count: int) -> None:
    assert num_parameters(CifarResNet.Config(depth), num_classes=10) == count


def torchvision_names(num_blocks: tuple[int, ...]) -> set[str]:
    """The state dict names of torchvision's bottleneck ResNets, without those of `fc`."""
    convs, norms = {"conv1"}, {"bn1"}
    for layer, count in enumerate(num_blocks, start=1):
        for block in range(count):
            convs |= {f"layer{layer}.{block}.conv{i}" for i in (1, 2, 3)}
            norms |= {f"layer{layer}.{block}.bn{i}" for i in (1, 2, 3)}
        convs.add(f"layer{layer}.0.downsample.0")
        norms.add(f"layer{layer}.0.downsample.1")
    tensors = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    return {f"{conv}.weight" for conv in convs} | {f"{bn}.{t}" for bn in norms for t in tensors}


def test_names_are_those_of_torchvision() -> None:
    with torch.device("meta"):
        state = ResNet.Config().build((3, 224, 224)).state_dict()
    assert len(state) == 318
    assert set(state) == torchvision_names((3, 4, 6, 3))
    assert state["conv1.weight"].shape == (64, 3, 7, 7)
    assert state["layer1.0.downsample.0.weight"].shape == (256, 64, 1, 1)
    assert state["layer3.5.conv2.weight"].shape == (256, 256, 3, 3)
    assert state["layer4.2.bn3.running_var"].shape == (2048,)


def test_names_of_the_cifar_resnet_have_no_head_and_no_shortcut() -> None:
    with torch.device("meta"):
        state = CifarResNet.Config(20).build((3, 32, 32)).state_dict()
    weights = {f"layer{k}.{i}.conv{j}.weight" for k in (1, 2, 3) for i in (0, 1, 2) for j in (1, 2)}
    assert {name for name in state if "conv" in name} == weights | {"conv1.weight"}
    assert all(name.startswith(("conv1", "bn1", "layer")) for name in state)


def test_bottleneck_has_its_stride_on_the_3x3_convolution() -> None:
    block = Bottleneck(8, 16, 2)
    assert [conv.stride[0] for conv in (block.conv1, block.conv2, block.conv3)] == [1, 2, 1]


def test_only_changes_of_shape_have_a_projection() -> None:
    assert isinstance(Bottleneck(16, 16, 1).downsample, nn.Identity)
    assert isinstance(Bottleneck(16, 32, 1).downsample, nn.Sequential)
    assert isinstance(Bottleneck(16, 16, 2).downsample, nn.Sequential)


def test_shortcut_takes_every_second_pixel_between_channels_of_zeros() -> None:
    x = torch.arange(18.0).reshape(1, 2, 3, 3)
    expected = torch.zeros(1, 4, 2, 2)
    expected[0, 1] = torch.tensor([[0.0, 2.0], [6.0, 8.0]])
    expected[0, 2] = torch.tensor([[9.0, 11.0], [15.0, 17.0]])
    assert torch.equal(SubsampleAndPad(2, 4, stride=2)(x), expected)


def test_shortcut_without_change_of_shape_is_the_identity() -> None:
    x = torch.randn(2, 4, 5, 5)
    assert torch.equal(SubsampleAndPad(4, 4, stride=1)(x), x)


def test_basic_block_without_residual_is_its_rectified_shortcut() -> None:
    block = BasicBlock(4, 8, 2)
    nn.init.zeros_(block.bn2.weight)
    x = torch.randn(2, 4, 6, 6)
    assert torch.equal(block(x), SubsampleAndPad(4, 8, 2)(x).relu())


def test_he_initialisation_has_variance_two_over_fan_in() -> None:
    conv = CifarResNet.Config(depth=20).build((3, 32, 32)).layer3[1].conv1
    assert conv.weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
@pytest.mark.parametrize("input_shape", [(1, 32, 32), (3, 17, 23)], ids=str)
def test_features_have_the_declared_width(
    config: BackboneConfig, input_shape: tuple[int, ...]
) -> None:
    backbone = config.build(input_shape)
    assert backbone(torch.randn(2, *input_shape)).shape == (2, backbone.num_features)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_features_of_a_batch_are_those_of_its_parts(config: BackboneConfig) -> None:
    backbone = config.build((3, 16, 16)).eval().double()
    x = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    parts = torch.cat([backbone(x[:1]), backbone(x[1:])])
    torch.testing.assert_close(backbone(x), parts)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_same_seed_gives_the_same_backbone(config: BackboneConfig) -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(7)
        states.append(config.build((3, 8, 8)).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_layer_names_name_modules_from_shallow_to_deep(config: BackboneConfig) -> None:
    with torch.device("meta"):
        backbone = config.build((3, 32, 32))
    names = [name for name, _ in backbone.named_modules()]
    positions = [names.index(name) for name in backbone.layer_names]
    assert positions == sorted(positions)


@pytest.mark.parametrize("config", [*CONFIGS, ResNet.Config(101), CifarResNet.Config(32)])
def test_config_survives_its_dictionary(config: BackboneConfig) -> None:
    assert from_dict(BackboneConfig, to_dict(config)) == config


@pytest.mark.parametrize("n", [1, 3, 5, 18])
def test_depth_6n_plus_2_has_n_blocks_per_group(n: int) -> None:
    assert blocks_per_group(6 * n + 2, offset=2) == n


@pytest.mark.parametrize(
    ("depth", "nearest"), [(21, "20 or 26"), (25, "20 or 26"), (2, "8"), (-5, "8")]
)
def test_depths_between_the_legal_ones_name_their_neighbours(depth: int, nearest: str) -> None:
    with pytest.raises(ConfigError, match=rf"depth={depth}: .* the nearest is {nearest}$"):
        CifarResNet.Config(depth)


def test_impossible_depth_lists_the_possible_ones() -> None:
    with pytest.raises(ConfigError, match=r"depth=34: choose one of 50, 101, 152"):
        override(ResNet.Config(), "depth=34")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
@pytest.mark.parametrize("input_shape", [(784,), (32, 32), (1, 3, 32, 32), (0, 8, 8)], ids=str)
def test_inputs_that_are_no_images_are_refused(
    config: BackboneConfig, input_shape: tuple[int, ...]
) -> None:
    with pytest.raises(ConfigError, match=r"input_shape=\(.*expected \(channels, height, width\)"):
        config.build(input_shape)
