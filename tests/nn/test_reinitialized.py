import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from density_softmax.errors import UserError
from density_softmax.nn.backbones.base import BackboneConfig
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.resnet import CifarResNet, ResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.layers.surgery import reinitialized_copy

BACKBONES = {
    "resffn": (ResFFN.Config(depth=2, width=5), (3,)),
    "wide_resnet": (WideResNet.Config(depth=10, width=1), (1, 8, 8)),
    "resnet": (ResNet.Config(depth=50), (1, 8, 8)),
    "cifar_resnet": (CifarResNet.Config(depth=8), (1, 8, 8)),
}


def seeded_build(config: BackboneConfig, shape: tuple[int, ...], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return config.build(shape)


def used(network: nn.Module) -> nn.Module:
    """The network with other weights and statistics than it was made with."""
    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.add_(1)
    return network


@pytest.mark.parametrize("name", BACKBONES)
def test_a_reinitialized_copy_is_what_building_the_network_anew_would_give(name: str) -> None:
    config, shape = BACKBONES[name]
    network = used(seeded_build(config, shape, seed=0))
    torch.manual_seed(1)
    fresh, anew = reinitialized_copy(network), seeded_build(config, shape, seed=1)
    assert fresh.state_dict().keys() == anew.state_dict().keys()
    for key, value in anew.state_dict().items():
        assert torch.equal(fresh.state_dict()[key], value), key


def test_the_original_keeps_its_weights_and_shares_none_with_the_copy() -> None:
    network = WideResNet.Config(depth=10, width=1).build((1, 8, 8))
    before = {key: value.clone() for key, value in network.state_dict().items()}
    used(reinitialized_copy(network))
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


def test_copies_differ_from_the_original_and_from_each_other() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Conv1d(2, 2, 1))
    copies = [network, reinitialized_copy(network), reinitialized_copy(network)]
    weights = [torch.cat([p.flatten() for p in each.parameters()]) for each in copies]
    assert all((weights[a] != weights[b]).all() for a, b in [(0, 1), (0, 2), (1, 2)])


def test_a_backbone_inside_another_network_initialises_itself() -> None:
    network = nn.Sequential(ResFFN(2, depth=1, width=64), nn.Linear(64, 3))
    fresh = reinitialized_copy(used(network))
    assert (fresh[0].input.bias == 0).all()
    assert (fresh[1].bias != 0).any()
    assert fresh[0].blocks[0].linear.weight.abs().max() > 64**-0.5  # wider than torch's default


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("layer", "place"),
    [
        (Scaled(), "Scaled '0'"),
        (nn.Sequential(Scaled()), "Scaled '0.0'"),
        (parametrizations.spectral_norm(nn.Linear(2, 2)), "ParametrizationList '0.param"),
    ],
    ids=["own", "nested", "parametrized"],
)
def test_a_layer_that_cannot_be_redrawn_is_named(layer: nn.Module, place: str) -> None:
    with pytest.raises(UserError, match=rf"new weights for {place}.*reset_parameters"):
        reinitialized_copy(nn.Sequential(layer))


def test_a_reinitialized_copy_keeps_what_is_frozen() -> None:
    network = used(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)))
    network[:2].requires_grad_(False)
    fresh = reinitialized_copy(network)
    for name, value in network.state_dict().items():
        assert torch.equal(value, fresh.state_dict()[name]) == name.startswith(("0", "1")), name
