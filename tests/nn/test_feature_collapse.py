import pytest
import torch
from torch import nn

from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.resnet import CifarResNet, ResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.layers.surgery import prevent_feature_collapse

NETWORKS = {
    "wide_resnet": lambda: WideResNet.Config(10, 2).build((3, 9, 9)),
    "cifar_resnet": lambda: CifarResNet.Config(8).build((3, 9, 9)),
    "resnet": lambda: ResNet.Config(50).build((3, 9, 9)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_no_relu_and_no_learned_shortcut_remains_and_shapes_stay(name):
    network = NETWORKS[name]().eval()
    x = torch.randn(2, 3, 9, 9)  # an odd size, which strides do not divide
    before = network(x)
    names = prevent_feature_collapse(network)
    assert network(x).shape == before.shape
    assert not any(isinstance(layer, nn.ReLU) for layer in network.modules())
    shortcuts = [n for n in names if n.endswith(("shortcut", "downsample"))]
    assert shortcuts
    assert not any(list(network.get_submodule(n).parameters()) for n in shortcuts)
    assert prevent_feature_collapse(network) == []


def test_shortcut_averages_pixels_and_pads_channels():
    network = WideResNet.Config(10, 2).build((3, 8, 8))
    prevent_feature_collapse(network)
    x = torch.randn(1, 32, 8, 8)
    y = network.group2[0].shortcut(x)
    pooled = x.unflatten(2, (4, 2)).unflatten(4, (4, 2)).mean(dim=(3, 5))
    torch.testing.assert_close(y[:, 16:48], pooled)
    assert not y[:, :16].any()
    assert not y[:, 48:].any()


def test_a_shortcut_that_is_the_identity_stays():
    network = WideResNet.Config(16, 1).build((3, 8, 8))
    prevent_feature_collapse(network)
    assert isinstance(network.group2[1].shortcut, nn.Identity)


def test_a_network_without_images_gets_leaky_activations_only():
    network = ResFFN(2, depth=2, width=4)
    assert prevent_feature_collapse(network) == ["blocks.0.activation", "blocks.1.activation"]
