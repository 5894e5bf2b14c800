import pytest
import torch
from torch import nn

from density_softmax.nn.layers.batch_statistics import (
    batch_statistics,
    set_momentum,
    set_statistics,
    statistics_of,
)

X = 5 + 3 * torch.randn(60, 2, generator=torch.Generator().manual_seed(0))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.9), nn.BatchNorm1d(4)
    ).eval()


@pytest.mark.parametrize("look", [lambda net: net(X), lambda net: statistics_of(net, X)])
def test_looking_leaves_modes_and_running_statistics_as_they_were(look) -> None:
    net = network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with batch_statistics(net):
        look(net)
    assert not any(module.training for module in net.modules())
    assert net[1].momentum == 0.1
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_inside_features_are_normalised_by_their_batch() -> None:
    net = network()
    with batch_statistics(net):
        torch.testing.assert_close(net(X).mean(0), torch.zeros(4), atol=1e-5, rtol=0)


def test_statistics_of_one_batch_make_evaluation_see_what_training_sees() -> None:
    net = network()
    with batch_statistics(net):
        expected = net(X)
    set_statistics(net, statistics_of(net, X))
    torch.testing.assert_close(net(X), expected, rtol=0.02, atol=0.02)  # variances of n and n − 1


def test_statistics_of_several_batches_are_their_mean_by_size() -> None:
    net = network()
    parts = [statistics_of(net, part) for part in X.split([40, 20])]
    set_statistics(net, {name: parts[0][name] + parts[1][name] for name in parts[0]})
    h = net[0](X)
    torch.testing.assert_close(net[1].running_mean, h.mean(0))
    variance = (40 * h[:40].var(0) + 20 * h[40:].var(0)) / 60
    torch.testing.assert_close(net[1].running_var, variance)


def test_momentum_is_set_for_every_norm_that_keeps_statistics():
    norms = nn.BatchNorm2d(2), nn.Sequential(nn.BatchNorm1d(3), nn.LayerNorm(2))
    network = nn.Sequential(*norms)
    set_momentum(network, 0.01)
    assert [norm.momentum for norm in (network[0], network[1][0])] == [0.01, 0.01]
