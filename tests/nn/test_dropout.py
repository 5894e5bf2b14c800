"""Dropout in both modes, and the places where it is put."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from density_softmax.errors import UserError
from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.resnet import CifarResNet, ResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.layers.variational import (
    MonteCarloDropout,
    add_dropout,
    add_training_dropout,
)


@pytest.mark.parametrize("training", [True, False])
def test_kept_values_are_scaled_so_that_the_mean_stays(training):
    torch.manual_seed(0)
    dropped = MonteCarloDropout(0.1).train(training)(torch.ones(200_000))
    assert set(dropped.unique().tolist()) == {0.0, torch.tensor(1 / 0.9).item()}
    share = (dropped == 0).float().mean().item()
    assert share == pytest.approx(0.1, abs=4 * (0.09 / 200_000) ** 0.5)


def test_no_rate_leaves_every_value_as_it_is():
    h = torch.randn(5, 3)
    assert torch.equal(MonteCarloDropout(0.0)(h), h)


def test_masks_are_elementwise_and_never_the_same():
    torch.manual_seed(0)
    dropout = MonteCarloDropout(0.5)
    first, second = dropout(torch.ones(4, 3, 8, 8)), dropout(torch.ones(4, 3, 8, 8))
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])  # another sample
    assert not torch.equal(first[0, 0], first[0, 1])  # another channel
    assert 0 < (first[0, 0] == 0).float().mean() < 1  # single values, not whole channels


class Block(nn.Module):
    """A user's own block, whose shortcut is a block of nothing but a layer in a container."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.up = nn.Linear(4, 4)
        self.down = nn.Linear(4, 4)
        self.shortcut = nn.Sequential(nn.Linear(4, 4))

    def forward(self, h):
        return self.shortcut(h) + self.down(F.relu(self.up(self.norm(h))))


class Net(nn.Module):
    """A user's own network: its stem is not part of a block."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(2, 4)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return h


class Plain(nn.Module):
    """A user's own network without blocks."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(2, 4)
        self.fc2 = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


def two_a_group(name: str, groups: tuple[str, ...]) -> list[str]:
    return [f"{group}.{i}.{name}" for group in groups for i in range(2)]


BLOCKS = {
    "ResFFN": (lambda: ResFFN(2, depth=2, width=4), ["blocks.0.linear", "blocks.1.linear"]),
    "WRN": (
        lambda: WideResNet.Config(depth=16, width=1).build((3, 8, 8)),
        two_a_group("conv1", ("group1", "group2", "group3")),
    ),
    "CIFAR ResNet": (
        lambda: CifarResNet.Config(depth=14).build((3, 8, 8)),
        two_a_group("conv1", ("layer1", "layer2", "layer3")),
    ),
    "user's": (Net, ["blocks.0.up", "blocks.1.up"]),
    "behind a preparation": (
        lambda: nn.Sequential(nn.Identity(), ResFFN(2, depth=1, width=4)),
        ["1.blocks.0.linear"],
    ),
    "in a trained model": (
        lambda: Headless(nn.Sequential(ResFFN(2, depth=1, width=4), nn.Linear(4, 2)), "1"),
        ["model.0.blocks.0.linear"],
    ),
}


@pytest.mark.parametrize("case", BLOCKS)
def test_each_block_drops_once_behind_its_first_weight_layer(case):
    build, expected = BLOCKS[case]
    network = build()
    assert add_dropout(network, 0.1) == expected
    for name in expected:
        assert isinstance(network.get_submodule(name)[-1], MonteCarloDropout)
    found = [m for m in network.modules() if isinstance(m, MonteCarloDropout)]
    assert len(found) == len(expected)


def test_resnet_50_drops_behind_the_first_convolution_of_its_16_blocks():
    names = add_dropout(ResNet.Config(depth=50).build((3, 32, 32)), 0.1)
    assert len(names) == 16
    assert all(name.startswith("layer") and name.endswith(".conv1") for name in names)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))


@pytest.mark.parametrize(
    ("build", "expected"), [(mlp, ["0", "2.0"]), (Plain, ["fc1", "fc2"])], ids=["MLP", "user's"]
)
def test_a_network_without_blocks_drops_behind_all_weight_layers(build, expected):
    assert add_dropout(build(), 0.1) == expected


def test_weights_stay_the_same_objects():
    network = ResFFN(2, depth=2, width=4)
    before = list(network.parameters())
    add_dropout(network, 0.1)
    after = list(network.parameters())
    assert len(before) == len(after)
    assert {id(p) for p in before} == {id(p) for p in after}


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Sequential(nn.Flatten()), "Sequential has no linear layer and no convolution"),
        (nn.Linear(2, 2), r"Linear itself would have to be replaced: wrap it in nn\.Sequential"),
    ],
)
def test_networks_without_a_place_are_refused(network, message):
    with pytest.raises(UserError, match=message):
        add_dropout(network, 0.1)


def test_dropout_is_not_added_twice():
    network = ResFFN(2, depth=1, width=4)
    add_dropout(network, 0.1)
    with pytest.raises(UserError, match="ResFFN has dropout already: pass a new encoder"):
        add_dropout(network, 0.1)


def test_training_dropout_stands_between_the_activation_and_the_second_convolution():
    encoder = WideResNet.Config(depth=10, width=1).build((3, 8, 8))
    names = add_training_dropout(encoder, 0.3)
    assert names == [f"group{number}.0.conv2" for number in (1, 2, 3)]
    seen = []
    conv2 = encoder.group1[0].conv2
    conv2.layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    torch.manual_seed(0)
    encoder.train()(torch.randn(4, 3, 8, 8))
    # Half of the normalised values are cut off by the ReLU, and of the others 30 %.
    assert (seen[0] == 0).float().mean().item() == pytest.approx(0.5 + 0.5 * 0.3, abs=0.05)


def test_training_dropout_leaves_evaluation_as_it_was():
    torch.manual_seed(0)
    encoder, x = (
        WideResNet.Config(depth=10, width=1).build((3, 8, 8)).eval(),
        torch.randn(2, 3, 8, 8),
    )
    before = encoder(x)
    add_training_dropout(encoder, 0.3)
    assert torch.equal(encoder(x), before)
    assert not torch.equal(encoder.train()(x), encoder(x))


def test_training_dropout_needs_a_block_of_two_layers():
    with pytest.raises(UserError, match="no block with two weight layers"):
        add_training_dropout(nn.Sequential(nn.Linear(2, 3)), 0.3)
