"""Folds change the number of operations and not the function."""

import pytest
import torch
from exported_models import draw, settle_statistics
from operations import num_operations
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from density_softmax.deploy.folding import (
    FusedFlow,
    FusedGaussians,
    fold_batch_norms,
    fold_spectral_norms,
    fuse_flows,
    fuse_gaussians,
)
from density_softmax.nn.backbones.resnet import BasicBlock
from density_softmax.nn.backbones.wide_resnet import PreActivationBlock
from density_softmax.nn.densities import FlowDensity, GaussianDensity
from density_softmax.nn.lipschitz import spectral
from density_softmax.nn.softmax.typicality import Typicality
from density_softmax.nn.taps import LayerReader
from density_softmax.types import Batch

IMAGES = draw(3, 4, 6, 6)


def norms(network: nn.Module) -> int:
    return sum(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules())


@pytest.mark.parametrize(
    ("block", "folded"),
    [
        (BasicBlock(4, 8, 2), ["bn1", "bn2"]),
        # Its first batch norm reads the input of the block, which the shortcut reads, too.
        (PreActivationBlock(4, 4, 1), ["bn2"]),
        (nn.Sequential(nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5, affine=False)), ["1"]),
        (nn.Sequential(nn.Flatten(), nn.Linear(144, 5), nn.BatchNorm1d(5)), ["2"]),
    ],
    ids=["basic", "pre-activation", "without affine", "linear"],
)
def test_batch_norms_behind_a_layer_are_folded_into_it(block, folded):
    torch.manual_seed(0)
    settle_statistics(block, IMAGES)
    before, expected = norms(block), block(IMAGES)
    assert fold_batch_norms(block, IMAGES) == folded
    assert norms(block) == before - len(folded)
    torch.testing.assert_close(block(IMAGES), expected, atol=1e-5, rtol=1e-4)


class Skipping(nn.Module):
    """A layer whose output the batch norm is not alone to read."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        h = self.layer(x)
        return h + self.norm(h)


class Shared(nn.Module):
    """A layer that stands before two batch norms."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.other = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.layer(x)) + self.other(self.layer(x + 1))


class Doubling(nn.Conv2d):
    """A layer that is more than its name."""

    def forward(self, x):
        return super().forward(x) * 2


@pytest.mark.parametrize(
    "network", [Skipping(), Shared(), nn.Sequential(Doubling(4, 4, 1), nn.BatchNorm2d(4))]
)
def test_what_cannot_be_folded_is_left_alone(network):
    settle_statistics(network, IMAGES)
    before, expected = norms(network), network(IMAGES)
    assert fold_batch_norms(network, IMAGES) == []
    assert norms(network) == before
    assert torch.equal(network(IMAGES), expected)


class Read(nn.Module):
    def __init__(self, network, name):
        super().__init__()
        self.network, self.reader = network, LayerReader(network, (name,))

    def forward(self, x):
        with self.reader.reading(self.network):
            h = self.network(x)
        return h, *self.reader.pop()


@pytest.mark.parametrize("name", ["0", "1"])
def test_a_layer_that_is_read_keeps_what_is_read(name):
    network = nn.Sequential(nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5), nn.ReLU())
    settle_statistics(network, IMAGES)
    reading = Read(network, name)
    expected = reading(IMAGES)
    fold_batch_norms(reading, IMAGES)
    torch.testing.assert_close(reading(IMAGES), expected)


def test_bounded_weights_are_written_into_plain_layers():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 5))
    spectral.constrain(network, 0.5, IMAGES)
    network.eval()
    expected = network(IMAGES)
    assert fold_spectral_norms(network, IMAGES) == ["0", "3"]
    assert [type(layer) for layer in network] == [nn.Conv2d, nn.ReLU, nn.Flatten, nn.Linear]
    torch.testing.assert_close(network(IMAGES), expected)


def test_parametrisations_of_torch_are_folded_too():
    torch.manual_seed(0)
    network = nn.Sequential(spectral_norm(nn.Linear(4, 6)), nn.ReLU()).eval()
    x = draw(5, 4)
    expected = network(x)
    assert fold_spectral_norms(network, x) == ["0"]
    assert set(network.state_dict()) == {"0.weight", "0.bias"}
    torch.testing.assert_close(network(x), expected)


def flow_of(
    num_features: int,
    num_couplings: int = 2,
    hidden: tuple[int, ...] = (16, 16, 16, 16),
    standardize: bool = True,
) -> FlowDensity:
    """A flow with weights large enough to bend, on features of different units."""
    torch.manual_seed(0)
    config = FlowDensity.Config(standardize=standardize, couplings=num_couplings, hidden=hidden)
    density = FlowDensity(num_features, config)
    with torch.no_grad():
        for parameter in density.parameters():
            parameter.mul_(2)
    if standardize:
        density.mean.copy_(draw(num_features, seed=1))
        density.scale.copy_(torch.logspace(-2, 2, num_features))
        density.log_volume.copy_(density.scale.log().sum())
    return density


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("hidden", [(16, 16, 16, 16), (5, 3), ()], ids=str)
@pytest.mark.parametrize("num_couplings", [1, 2, 3])
@pytest.mark.parametrize("num_features", [2, 3, 7, 64])
def test_a_fused_flow_has_the_same_density(num_features, num_couplings, hidden, standardize):
    density = flow_of(num_features, num_couplings, hidden, standardize)
    network = nn.ModuleDict({"density": density})
    z = density.mean + density.scale * 2 * draw(20, num_features)
    assert fuse_flows(network, z) == ["density"]
    assert isinstance(network["density"], FusedFlow)
    torch.testing.assert_close(
        network["density"].log_prob(z), density.log_prob(z), rtol=1e-4, atol=1e-4
    )


def test_a_fused_flow_without_weights_is_a_normal_distribution():
    density = flow_of(3)
    with torch.no_grad():
        for parameter in density.parameters():
            parameter.zero_()
    z = density.mean + density.scale * draw(5, 3)
    normal = torch.distributions.Normal(density.mean, density.scale)
    torch.testing.assert_close(FusedFlow(density).log_prob(z), normal.log_prob(z).sum(-1))


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("num_couplings", [1, 2, 3])
def test_a_fused_flow_needs_at_most_half_of_the_operations(num_couplings, standardize):
    density, z = flow_of(7, num_couplings, standardize=standardize), draw(4, 7)
    fused = FusedFlow(density)
    assert 2 * num_operations(fused.log_prob, z) <= num_operations(density.log_prob, z)


def test_a_fused_flow_has_nothing_left_to_fit():
    density = FusedFlow(flow_of(3))
    assert density.stages() == ()
    assert not list(density.parameters())


@pytest.mark.parametrize("density", [flow_of(1, 1), flow_of(2, 0)], ids=["constants", "nothing"])
def test_flows_without_conditioners_are_left_alone(density):
    network = nn.Sequential(density)
    assert fuse_flows(network, draw(2, 1)) == []
    assert network[0] is density


def typicality_of(columns: list[slice], energy: bool, num_samples: int = 200) -> Typicality:
    """Gaussians fitted to features of different units, each expert with a spread of its own."""
    z = features(num_samples)
    found = {}
    for number, place in enumerate(columns):
        gaussian = GaussianDensity(place.stop - place.start)
        (stage,) = gaussian.stages()
        labels = torch.zeros(num_samples, dtype=torch.long)
        stage.finish(stage.statistics(Batch(z[:, place], labels)))
        found[f"expert{number}"] = (gaussian, place)
    typicality = Typicality(found, energy)
    typicality.fit(typicality.experts(z, logits_of(z)))
    return typicality


def features(num_samples: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(num_samples, 7, generator=generator) @ torch.linspace(-1, 2, 49).view(7, 7)
    noise = torch.randn(num_samples, 7, generator=generator)
    return (mixed + noise) * torch.logspace(-3, 2, 7) + 5


def logits_of(z: Tensor) -> Tensor:
    return z[:, :3] / 2


@pytest.mark.parametrize("energy", [True, False])
@pytest.mark.parametrize(
    "columns",
    [[slice(0, 7)], [slice(3, 7)], [slice(3, 7), slice(0, 3)]],
    ids=["last", "layers", "both"],
)
def test_fused_gaussians_give_the_same_typicality(columns: list[slice], energy: bool) -> None:
    network = nn.ModuleDict({"typicality": typicality_of(columns, energy)})
    z = torch.cat([features(50, seed=1), 3 * features(50, seed=2)])
    expected = network["typicality"](z, logits_of(z))
    assert fuse_gaussians(network, z) == ["typicality"]
    assert isinstance(network["typicality"], FusedGaussians)
    found = network["typicality"](z, logits_of(z))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_a_typicality_with_other_densities_is_left_alone() -> None:
    densities = {"a": (GaussianDensity(2), slice(0, 2)), "b": (FlowDensity(2), slice(2, 4))}
    network = nn.ModuleDict({"typicality": Typicality(densities)})
    assert fuse_gaussians(network, torch.zeros(1, 4)) == []
    assert isinstance(network["typicality"], Typicality)


def test_a_single_density_is_passed_on_as_it_is() -> None:
    density = flow_of(3)
    typicality = Typicality({"last": (density, slice(2, 5))})
    z, logits = draw(4, 6), draw(4, 2)
    expected = density.log_prob(z[:, 2:5])
    assert torch.equal(typicality(z, logits), expected)
    assert torch.equal(typicality.combined(typicality.experts(z, logits)), expected)
