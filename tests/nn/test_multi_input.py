"""A widened first layer reads several inputs as the sum of what it makes of each."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from density_softmax.errors import UserError
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.resnet import CifarResNet, ResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.layers.surgery import _widened, concatenate_inputs, widen_input

IMAGE, VECTOR = torch.zeros(1, 3, 8, 8), torch.zeros(1, 2)


@pytest.mark.parametrize("shape", [(3,), (3, 5, 5)])
def test_inputs_stand_side_by_side_on_the_channels(shape):
    x = torch.randn(2, 4, *shape)
    joined = concatenate_inputs(x)
    assert joined.shape == (4, 6, *shape[1:])
    assert torch.equal(joined[:, :3], x[0])
    assert torch.equal(joined[:, 3:], x[1])


@pytest.mark.parametrize(
    ("build", "example", "name"),
    [
        (lambda: ResFFN(2, depth=1, width=4), VECTOR, "input"),
        (lambda: WideResNet.Config(depth=10, width=1).build((3, 8, 8)), IMAGE, "stem"),
        (lambda: CifarResNet.Config(depth=8).build((3, 8, 8)), IMAGE, "conv1"),
        (lambda: nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 4)), VECTOR, "0"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), IMAGE, "1"),
    ],
    ids=["ResFFN", "WRN", "CIFAR ResNet", "MLP", "flattened images"],
)
def test_the_layer_that_reads_the_input_is_widened_and_no_other(build, example, name):
    network = build()
    before = {key: value.shape for key, value in network.state_dict().items()}
    assert widen_input(network, 3, example) == name
    after = {key: value.shape for key, value in network.state_dict().items()}
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {f"{name}.weight"}
    assert after[f"{name}.weight"][1] == 3 * before[f"{name}.weight"][1]


def test_resnet_50_reads_inputs_with_its_first_convolution():
    network = ResNet.Config(depth=50).build((3, 32, 32))
    assert widen_input(network, 2) == "conv1"
    assert network.conv1.in_channels == 6
    assert network.conv1.stride == (2, 2)


LAYERS = {
    "linear": nn.Linear(6, 5),
    "convolution": nn.Conv2d(
        6, 5, 3, stride=2, padding=1, bias=False, dilation=2, padding_mode="circular"
    ),
}


@pytest.mark.parametrize("case", LAYERS)
def test_the_wide_layer_is_the_sum_of_one_layer_per_input(case):
    layer = LAYERS[case]
    wide = _widened(layer, 3)
    shape = (6,) if case == "linear" else (6, 9, 9)
    x = torch.randn(3, 4, *shape)
    total = torch.zeros(())
    for weight, inputs in zip(wide.weight.chunk(3, dim=1), x, strict=True):
        part = _widened(layer, 1)
        part.weight = nn.Parameter(weight)
        part.bias = None
        total = total + part(inputs)
    bias = 0 if layer.bias is None else layer.bias
    torch.testing.assert_close(wide(concatenate_inputs(x)), total + bias)


def test_one_input_keeps_the_layer_as_it_is():
    layer = LAYERS["convolution"]
    x = torch.randn(2, 6, 7, 7)
    assert torch.equal(_widened(layer, 1)(x), layer(x))


def test_weights_keep_their_distribution_up_to_the_larger_fan_in():
    torch.manual_seed(0)
    layer = nn.Conv2d(16, 32, 3)
    nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu")
    wide = _widened(layer, 3)
    parts = wide.weight.chunk(3, dim=1)
    for part in parts:
        expected = layer.weight.flatten().sort().values / 3**0.5
        torch.testing.assert_close(part.flatten().sort().values, expected)
    # He's standard deviation for 3 · 16 channels, and no two inputs with the same weights.
    assert wide.weight.std().item() == pytest.approx((2 / (48 * 9)) ** 0.5, rel=0.02)
    correlations = torch.corrcoef(torch.stack([part.flatten() for part in parts]))
    assert (correlations - torch.eye(3)).abs().max() < 0.08


class TwoReaders(nn.Module):
    """Two layers read the input: to widen the first is not enough."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(2, 4), nn.Linear(2, 4)

    def forward(self, x):
        return self.left(x) + F.relu(self.right(x))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Sequential(nn.Flatten()), "no linear layer and no convolution that could read 3"),
        (nn.Linear(2, 2), r"Linear itself would have to be replaced: wrap it in nn\.Sequential"),
        (TwoReaders(), "cannot read 3 inputs side by side: more than its layer 'left' depends"),
        (nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 2)), "more than its layer '1' depends"),
    ],
    ids=["no layer", "only a layer", "two readers", "fixed width before"],
)
def test_networks_that_cannot_be_widened_are_refused(network, message):
    with pytest.raises(UserError, match=message):
        widen_input(network, 3, VECTOR)


def test_grouped_convolutions_are_refused():
    with pytest.raises(UserError, match=r"groups=2.* is grouped"):
        widen_input(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)), 3)
