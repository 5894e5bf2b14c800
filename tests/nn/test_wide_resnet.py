from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from density_softmax.config import ConfigError, from_dict, override, to_dict
from density_softmax.nn.backbones.base import BackboneConfig
from density_softmax.nn.backbones.wide_resnet import PreActivationBlock, WideResNet

SMALL = WideResNet.Config(depth=10, width=1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("depth", "width", "millions"), [(16, 8, 11.0), (22, 8, 17.2), (28, 10, 36.5), (40, 4, 8.9)]
)
def test_parameter_counts_are_those_of_the_paper(depth: int, width: int, millions: float) -> None:
    with torch.device("meta"):
        backbone = WideResNet.Config(depth, width).build((3, 32, 32))
    count = sum(p.numel() for p in backbone.parameters()) + 10 * (backbone.num_features + 1)
    assert round(count / 1e6, 1) == millions


def test_wrn_28_10_has_36_479_194_parameters() -> None:
    stem = 9 * 3 * 16
    widths = {16: 160, 160: 320, 320: 640}
    first = sum(9 * i * o + 9 * o * o + i * o + 2 * (i + o) for i, o in widths.items())
    rest = 3 * sum(2 * 9 * o * o + 2 * (o + o) for o in widths.values())
    head = 640 * 10 + 10
    assert stem + first + rest + 2 * 640 + head == 36_479_194
    with torch.device("meta"):
        backbone = WideResNet.Config().build((3, 32, 32))
    assert sum(p.numel() for p in backbone.parameters()) + head == 36_479_194


def test_depth_counts_all_convolutions_with_three_projections() -> None:
    with torch.device("meta"):
        backbone = WideResNet.Config().build((3, 32, 32))
    convs = [m for m in backbone.modules() if isinstance(m, nn.Conv2d)]
    projections = sum(conv.kernel_size == (1, 1) for conv in convs)
    assert (len(convs), projections) == (28, 3)


def test_block_without_residual_is_the_identity() -> None:
    block = PreActivationBlock(4, 4, 1)
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 4, 5, 5)
    assert torch.equal(block(x), x)


def test_projection_reads_the_input_before_its_activation() -> None:
    block = PreActivationBlock(4, 8, 2)
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 4, 6, 6)
    assert torch.equal(block(x), block.shortcut(x))
    torch.testing.assert_close(block(-x), -block(x))


def test_features_are_not_negative() -> None:
    backbone = SMALL.build((3, 8, 8))
    assert backbone(torch.randn(4, 3, 8, 8)).min() >= 0


@pytest.mark.parametrize("input_shape", [(3, 32, 32), (1, 28, 28), (3, 13, 9)], ids=str)
def test_features_have_the_declared_width(input_shape: tuple[int, ...]) -> None:
    backbone = WideResNet.Config(depth=10, width=2).build(input_shape)
    assert backbone.num_features == 128
    assert backbone(torch.randn(2, *input_shape)).shape == (2, 128)


@pytest.mark.parametrize("stem_stride", [1, 2])
def test_groups_halve_the_image_twice_after_the_stem(stem_stride: int) -> None:
    backbone = WideResNet.Config(depth=10, width=1, stem_stride=stem_stride).build((3, 32, 32))
    sizes = []
    for name in backbone.layer_names:
        backbone.get_submodule(name).register_forward_hook(
            lambda module, args, output: sizes.append(output.shape[1:])
        )
    backbone(torch.randn(1, 3, 32, 32))
    side = 32 // stem_stride
    stem, *groups = sizes
    assert stem == (16, side, side)
    assert groups == [(16, side, side), (32, side // 2, side // 2), (64, side // 4, side // 4)]


def test_features_of_a_batch_are_those_of_its_parts() -> None:
    backbone = SMALL.build((3, 16, 16)).eval().double()
    x = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(backbone(x), torch.cat([backbone(x[:1]), backbone(x[1:])]))


def test_channels_last_changes_the_layout_and_not_the_features() -> None:
    rows = SMALL.build((3, 16, 16)).eval().double()
    last = override(SMALL, "channels_last=true").build((3, 16, 16)).eval().double()
    last.load_state_dict(rows.state_dict())
    outputs: list[Tensor] = []
    last.group3.register_forward_hook(lambda module, args, output: outputs.append(output))
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(copy.deepcopy(last)(x), rows(x))
    assert last(x).shape == (2, 64)
    assert outputs[-1].is_contiguous(memory_format=torch.channels_last)


def test_same_seed_gives_the_same_backbone() -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(7)
        states.append(SMALL.build((3, 8, 8)).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_layer_names_name_modules_from_shallow_to_deep() -> None:
    backbone = SMALL.build((3, 8, 8))
    names = [name for name, _ in backbone.named_modules()]
    positions = [names.index(name) for name in backbone.layer_names]
    assert positions == sorted(positions)


@pytest.mark.parametrize("config", [WideResNet.Config(), WideResNet.Config(16, 4, 2, True)])
def test_config_survives_its_dictionary(config: WideResNet.Config) -> None:
    assert from_dict(BackboneConfig, to_dict(config)) == config


@pytest.mark.parametrize(("depth", "nearest"), [(29, "28 or 34"), (20, "16 or 22"), (4, "10")])
def test_depths_between_the_legal_ones_name_their_neighbours(depth: int, nearest: str) -> None:
    with pytest.raises(ConfigError, match=rf"depth={depth}: .* the nearest is {nearest}$"):
        WideResNet.Config(depth=depth)


@pytest.mark.parametrize("assignment", ["width=0", "stem_stride=0"])
def test_sizes_below_one_are_refused(assignment: str) -> None:
    with pytest.raises(ConfigError, match=f"{assignment}: choose 1 or more"):
        override(WideResNet.Config(), assignment)


@pytest.mark.parametrize("input_shape", [(784,), (32, 32), (1, 3, 32, 32)], ids=str)
def test_inputs_that_are_no_images_are_refused(input_shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"input_shape=\(.*expected \(channels, height, width\)"):
        SMALL.build(input_shape)
