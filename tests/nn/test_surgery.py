import pytest
import torch
from torch import nn

from density_softmax.nn.layers.surgery import replace_layers


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 4)), nn.ReLU())


def leaky(name: str, layer: nn.Module) -> nn.Module | None:
    return nn.LeakyReLU() if isinstance(layer, nn.ReLU) else None


def test_every_layer_the_rule_names_is_replaced_and_no_other():
    layers = network()
    kept = [layers[0], layers[1][1]]
    assert replace_layers(layers, leaky) == ["1.0", "2"]
    assert isinstance(layers[1][0], nn.LeakyReLU)
    assert isinstance(layers[2], nn.LeakyReLU)
    assert [layers[0], layers[1][1]] == kept


def test_a_rule_can_wrap_what_it_replaces_without_end():
    layers = network()

    def wrap(name: str, layer: nn.Module) -> nn.Module | None:
        return nn.Sequential(layer, nn.Dropout()) if isinstance(layer, nn.Linear) else None

    assert replace_layers(layers, wrap) == ["0", "1.1"]
    assert layers(torch.zeros(5, 2)).shape == (5, 4)


def test_a_layer_in_two_places_stays_one_layer():
    shared = nn.Linear(2, 2)
    layers = nn.Sequential(shared, shared)
    replace_layers(
        layers, lambda name, layer: nn.Linear(2, 2) if isinstance(layer, nn.Linear) else None
    )
    assert layers[0] is layers[1] is not shared


def test_the_whole_network_cannot_be_replaced():
    with pytest.raises(ValueError, match=r"ReLU itself would have to be replaced: wrap it"):
        replace_layers(nn.ReLU(), leaky)
