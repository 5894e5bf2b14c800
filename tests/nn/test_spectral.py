import copy

import pytest
import torch
from torch import nn

from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.resnet import CifarResNet, ResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.lipschitz import spectral
from density_softmax.nn.lipschitz.bounds import _operator_norm
from density_softmax.nn.lipschitz.spectral import (
    Spectral,
    SpectralBatchNorm,
    SpectralConv2d,
    SpectralLinear,
    constrain,
    fold,
)

CONVOLUTIONS = {
    "same": ({"kernel_size": 3, "padding": 1}, (6, 5)),
    "stride 2, odd image": ({"kernel_size": 3, "stride": 2, "padding": 1}, (7, 5)),
    "stride 2, even image": ({"kernel_size": 3, "stride": 2, "padding": 1}, (6, 8)),
    "1×1, stride 2": ({"kernel_size": 1, "stride": 2}, (6, 5)),
    "stride 3, unpadded": ({"kernel_size": (2, 3), "stride": 3}, (8, 8)),
    "dilated, in groups": ({"kernel_size": 3, "dilation": 2, "padding": 2, "groups": 2}, (6, 6)),
    "circular": ({"kernel_size": 3, "padding": 1, "padding_mode": "circular"}, (5, 5)),
    "padding by name": ({"kernel_size": (3, 5), "padding": "same"}, (6, 6)),
}


def convolution(name: str) -> tuple[nn.Conv2d, tuple[int, ...]]:
    settings, size = CONVOLUTIONS[name]
    torch.manual_seed(0)
    return nn.Conv2d(2, 4, **settings, dtype=torch.float64), (2, *size)


def matrix(layer: nn.Module, shape: tuple[int, ...]) -> torch.Tensor:
    """The linear part of a layer, written out."""
    zero = torch.zeros(1, *shape, dtype=torch.float64)
    basis = torch.eye(zero.numel(), dtype=torch.float64).view(-1, *shape)
    with torch.no_grad():
        return (layer(basis) - layer(zero)).flatten(1).T


def largest(layer: nn.Module, shape: tuple[int, ...]) -> float:
    return torch.linalg.svdvals(matrix(layer, shape))[0].item()


def trained(layer: Spectral, shape: tuple[int, ...], steps: int = 200) -> Spectral:
    layer.train()
    for _ in range(steps):
        layer(torch.zeros(1, *shape, dtype=torch.float64))
    return layer.eval()


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_norm_of_a_convolution_is_the_largest_singular_value_of_its_matrix(name):
    layer, shape = convolution(name)
    expected = largest(layer, shape)
    bounded = SpectralConv2d(layer, 0.1, shape)
    assert bounded.norm.item() == pytest.approx(expected, rel=0.01)
    assert trained(bounded, shape).norm.item() == pytest.approx(expected, rel=1e-3)
    assert largest(bounded, shape) == pytest.approx(0.1, rel=1e-3)


def test_the_norm_of_the_kernel_as_a_matrix_is_another():
    layer, shape = convolution("same")
    reshaped = torch.linalg.matrix_norm(layer.weight.flatten(1), ord=2).item()
    assert abs(reshaped / largest(layer, shape) - 1) > 0.3


def test_norm_of_a_linear_layer_is_its_largest_singular_value():
    layer = nn.Linear(7, 5).double()
    expected = torch.linalg.svdvals(layer.weight)[0].item()
    bounded = trained(SpectralLinear(layer, 0.25, (7,)), (7,))
    assert bounded.norm.item() == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(bounded.bounded_weight(), layer.weight * 0.25 / expected)


@pytest.mark.parametrize("training", [True, False])
def test_below_the_bound_a_layer_is_left_exactly_alone(training):
    layer, shape = convolution("same")
    x = torch.randn(3, *shape, dtype=torch.float64)
    expected = layer(x)
    (gradient,) = torch.autograd.grad(expected.square().sum(), layer.weight)
    bounded = SpectralConv2d(layer, 1.01 * largest(layer, shape), shape).train(training)
    assert torch.equal(bounded(x), expected)
    assert torch.equal(torch.autograd.grad(bounded(x).square().sum(), bounded.weight)[0], gradient)


def test_above_the_bound_gradients_go_through_the_norm():
    layer = nn.Linear(6, 4).double()
    bounded = trained(SpectralLinear(layer, 0.5, (6,)), (6,)).train()
    x = torch.randn(9, 6, dtype=torch.float64)

    def loss(weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight, layer.bias).pow(3).sum()

    plain = layer.weight.detach().clone().requires_grad_()
    normalised = 0.5 * plain / torch.linalg.matrix_norm(plain, ord=2)
    (expected,) = torch.autograd.grad(loss(normalised), plain)
    (found,) = torch.autograd.grad(loss(bounded.bounded_weight()), bounded.weight)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_vectors_move_in_training_only():
    layer, shape = convolution("same")
    bounded = SpectralConv2d(layer, 0.1, shape).eval()
    state = {name: value.clone() for name, value in bounded.state_dict().items()}
    x = torch.randn(2, *shape, dtype=torch.float64)
    bounded(x)
    assert all(torch.equal(state[name], value) for name, value in bounded.state_dict().items())
    bounded.train()(x)
    assert not torch.equal(state["v"], bounded.v)
    assert bounded.norm > state["norm"]  # power iteration approaches the norm from below


def test_evaluation_begins_with_the_norm_of_the_weights_of_the_moment():
    bounded = SpectralLinear(nn.Linear(3, 3), 0.5, (3,)).train()
    with torch.no_grad():
        bounded.weight.mul_(10)
    bounded.eval()
    assert torch.linalg.matrix_norm(bounded.bounded_weight(), ord=2).item() == pytest.approx(
        0.5, rel=1e-2
    )


def test_two_passes_before_one_backward_pass_are_possible():
    bounded = SpectralLinear(nn.Linear(3, 3), 0.1, (3,)).train()
    (bounded(torch.ones(1, 3)).sum() + bounded(torch.ones(1, 3)).sum()).backward()
    assert bounded.weight.grad.isfinite().all()


def test_a_layer_of_zeros_stays_one():
    layer = nn.Linear(3, 2)
    nn.init.zeros_(layer.weight)
    bounded = SpectralLinear(layer, 1.0, (layer.in_features,)).train()
    bounded(torch.ones(4, 3)).sum().backward()
    torch.testing.assert_close(bounded.weight.grad, torch.full((2, 3), 4.0))


def batch_norm(affine: bool = True) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(4, affine=affine).double()
    layer.running_var.copy_(torch.tensor([0.01, 1.0, 4.0, 0.25]))
    layer.running_mean.copy_(torch.arange(4.0))
    if affine:
        nn.init.uniform_(layer.weight, 0.5, 1.0)
        nn.init.uniform_(layer.bias)
    return layer


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_is_shrunk_to_the_bound_as_a_whole(affine):
    layer = batch_norm(affine).eval()
    before = matrix(layer, (4, 1, 1))
    bounded = SpectralBatchNorm(layer, 3.0).eval()
    after = matrix(bounded, (4, 1, 1))
    assert before.abs().max() > 3
    assert after.abs().max().item() == pytest.approx(3.0)
    torch.testing.assert_close(after, before * 3 / before.abs().max())


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_below_the_bound_is_a_plain_one(training):
    plain = batch_norm().train(training)
    bounded = SpectralBatchNorm(copy.deepcopy(plain), 100.0).train(training)
    x = torch.randn(5, 4, 3, 3, dtype=torch.float64)
    assert torch.equal(bounded(x), plain(x))
    assert all(
        torch.equal(bounded.state_dict()[name], value) for name, value in plain.state_dict().items()
    )


NETWORKS = {
    "resffn": (lambda: ResFFN(2, depth=2, width=8), (2,), 3),
    "wide_resnet": (lambda: WideResNet.Config(10, 1).build((3, 8, 8)), (3, 8, 8), 9),
    "cifar_resnet": (lambda: CifarResNet.Config(8).build((3, 8, 8)), (3, 8, 8), 7),
}


def example(shape: tuple[int, ...], num_samples: int = 3) -> torch.Tensor:
    return torch.randn(num_samples, *shape, generator=torch.Generator().manual_seed(1))


def constrained(name: str) -> nn.Module:
    """A constrained network after one training pass."""
    build, shape, num_layers = NETWORKS[name]
    torch.manual_seed(0)
    network = build()
    assert len(constrain(network, 0.6, example(shape))) == num_layers
    network.train()(example(shape))
    return network.eval().requires_grad_(False)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_layer_of_a_network_is_within_the_bound(name):
    network, shape = constrained(name), NETWORKS[name][1]
    inputs: dict[nn.Module, torch.Tensor] = {}
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    for layer in layers:
        layer.register_forward_pre_hook(lambda layer, x: inputs.update({layer: x[0][:1]}))
    network(example(shape))
    assert set(inputs) == set(layers)
    for layer, x in inputs.items():
        layer.bias = None
        assert _operator_norm(layer, x.clone()) <= 0.6 * 1.02


@pytest.mark.parametrize("name", NETWORKS)
def test_a_constrained_network_is_copied_and_saved_as_it_is(name):
    network, (build, shape, _) = constrained(name), NETWORKS[name]
    x = example(shape, 5)
    expected = network(x)
    assert torch.equal(copy.deepcopy(network)(x), expected)
    other = build()
    constrain(other, 0.6, x)
    other.load_state_dict(network.state_dict())
    assert torch.equal(other.eval()(x), expected)


def test_a_constrained_network_is_exported_as_it_is():
    network, x = constrained("wide_resnet"), example((3, 8, 8))
    exported = torch.export.export(network, (x,)).module()
    torch.testing.assert_close(exported(x), network(x))


@pytest.mark.parametrize("name", NETWORKS)
def test_folding_leaves_plain_layers_of_the_same_function(name):
    network, shape = constrained(name), NETWORKS[name][1]
    expected = network(example(shape))
    names = fold(network)
    assert {type(network.get_submodule(name)) for name in names} <= {nn.Linear, nn.Conv2d}
    assert not any(isinstance(layer, Spectral) for layer in network.modules())
    torch.testing.assert_close(network(example(shape)), expected)


def test_folding_takes_batch_norms_with_it():
    network = nn.Sequential(batch_norm())
    constrain(network, 3.0, norms=True)
    x = torch.randn(2, 4, 3, 3, dtype=torch.float64)
    expected = network.eval()(x)
    assert fold(network) == ["0"]
    assert type(network[0]) is nn.BatchNorm2d
    torch.testing.assert_close(network(x), expected)


def test_all_convolutions_and_batch_norms_of_a_resnet_are_found(monkeypatch):
    monkeypatch.setattr(spectral, "MAX_ITERATIONS", 1)
    network = ResNet.Config(50).build((3, 32, 32))
    names = constrain(network, 3.0, torch.zeros(1, 3, 32, 32), norms=True)
    assert len(names) == 53 + 53
    assert "layer1.0.downsample.0" in names
    assert network.layer2[0].conv2.v.shape == (1, 128, 8, 8)


def test_constraining_again_changes_the_bound_only():
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    weight = network[0].weight
    constrain(network, 0.5, norms=True)
    constrain(network, 0.25, norms=True)
    assert network[0].weight is weight
    assert network[0].bound == 0.25
    fold(network)
    assert type(network[1]) is nn.BatchNorm1d


def test_a_convolution_without_an_example_asks_for_one():
    with pytest.raises(ValueError, match=r"convolution '0' depends on the size .*: pass example="):
        constrain(nn.Sequential(nn.Conv2d(1, 1, 3)), 1.0)


@pytest.mark.parametrize(("bound", "iterations"), [(0.0, 1), (-1.0, 1), (1.0, 0)])
def test_a_bound_that_bounds_nothing_is_refused(bound, iterations):
    with pytest.raises(ValueError, match="choose a positive bound and at least one iteration"):
        constrain(nn.Sequential(nn.Linear(2, 2)), bound, num_iterations=iterations)


def test_a_batch_norm_without_running_statistics_is_refused():
    network = nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False))
    with pytest.raises(ValueError, match="set track_running_stats=True"):
        constrain(network, 1.0, norms=True)
