"""Constants are computed at export, and the function stays the same."""

import copy
import math

import pytest
import torch
from exported_models import IMAGE_SHAPE, draw, image_model
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from density_softmax.deploy.graph import (
    FusedTypicality,
    Graph,
    OnnxArtifact,
    as_graph_input,
    fuse_gaussians,
    to_onnx,
    trace,
)
from density_softmax.methods.deterministic import Deterministic
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.densities import ClassAwareDensity, FlowDensity, GaussianDensity
from density_softmax.nn.densities.gaussian import WhitenedDensity
from density_softmax.nn.lipschitz import spectral
from density_softmax.nn.softmax.typicality import Typicality
from density_softmax.training import Estimate
from density_softmax.types import Batch


def bounded() -> nn.Module:
    encoder = WideResNet.Config(depth=10, width=1).build(IMAGE_SHAPE)
    spectral.constrain(encoder, 0.95, draw(2, *IMAGE_SHAPE))
    return encoder


def parametrised() -> nn.Module:
    """With a weight of more elements than the exporter folds by default."""
    return nn.Sequential(nn.Flatten(), spectral_norm(nn.Linear(192, 64)), nn.ReLU())


@pytest.mark.parametrize("encoder", [bounded, parametrised])
def test_bounded_weights_are_constants_of_the_graph(encoder) -> None:
    torch.manual_seed(0)
    x = draw(3, *IMAGE_SHAPE)
    method = Deterministic(encoder(), 4, example=x).eval()
    artifact = OnnxArtifact(to_onnx(trace(Graph(method).eval(), x)))
    graph = artifact.proto.graph
    constants = {tensor.name for tensor in graph.initializer}
    layers = [node for node in graph.node if node.op_type in ("Conv", "Gemm")]
    assert layers
    assert all(node.input[1] in constants for node in layers)
    found = artifact.run(as_graph_input(x.double()).numpy())
    torch.testing.assert_close(torch.from_numpy(found.probs), method.predict(x).probs)


def fit_closed_form(density: WhitenedDensity, z: Tensor, y: Tensor) -> None:
    for stage in density.stages():
        assert isinstance(stage, Estimate)
        stage.finish(stage.statistics(Batch(z, y)))


def typicality_of(
    columns: list[slice], energy: bool, classes: bool = False, num_samples: int = 200
) -> Typicality:
    """Gaussians fitted to features of different units, each expert with a spread of its own."""
    z = features(num_samples)
    found = {}
    for number, read in enumerate(columns):
        gaussian = GaussianDensity(read.stop - read.start)
        fit_closed_form(gaussian, z[:, read], torch.zeros(num_samples, dtype=torch.long))
        found[f"expert{number}"] = (gaussian, read)
    if classes:
        aware = ClassAwareDensity(3, 3)
        fit_closed_form(aware, z[:, :3], logits_of(z).argmax(1))
        found["classes"] = (aware, slice(0, 3))
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


@pytest.mark.parametrize("classes", [True, False])
@pytest.mark.parametrize("energy", [True, False])
@pytest.mark.parametrize(
    "columns",
    [[slice(0, 7)], [slice(3, 7)], [slice(3, 7), slice(0, 3)]],
    ids=["last", "layers", "both"],
)
def test_fused_gaussians_give_the_same_typicality(
    columns: list[slice], energy: bool, classes: bool
) -> None:
    network = nn.ModuleDict({"typicality": typicality_of(columns, energy, classes)})
    z = torch.cat([features(50, seed=1), 3 * features(50, seed=2)])
    expected = network["typicality"](z, logits_of(z))
    assert fuse_gaussians(network) == ["typicality"]
    assert isinstance(network["typicality"], FusedTypicality)
    found = network["typicality"](z, logits_of(z))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_a_typicality_with_other_densities_is_left_alone() -> None:
    densities = {"a": (GaussianDensity(2), slice(0, 2)), "b": (FlowDensity(2), slice(2, 4))}
    network = nn.ModuleDict({"typicality": Typicality(densities)})
    assert fuse_gaussians(network) == []
    assert isinstance(network["typicality"], Typicality)


def test_a_single_density_is_passed_on_as_it_is() -> None:
    density = FlowDensity(3)
    typicality = Typicality({"last": (density, slice(2, 5))})
    z, logits = draw(4, 6), draw(4, 2)
    expected = density.log_prob(z[:, 2:5])
    evidence = typicality(z, logits)
    assert torch.equal(evidence.log_prob, expected)
    assert torch.equal(evidence.surprise, -expected)


def spoiled(x: Tensor) -> Tensor:
    """The same with a row of everything that is too large or no number."""
    x = x.clone()
    for row, value in enumerate([1e10, 1e30, 3e38, math.inf, -math.inf, math.nan], start=1):
        x[row].view(-1)[0] = value
    return x


def test_a_fused_method_predicts_and_flags_the_same() -> None:
    method, x = image_model(), spoiled(draw(12, *IMAGE_SHAPE))
    network = copy.deepcopy(method)
    assert fuse_gaussians(network) == ["typicality"]
    expected, found = method.predict(x), network.predict(x)
    torch.testing.assert_close(found.probs, expected.probs, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.aleatoric, expected.aleatoric, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.epistemic, expected.epistemic, rtol=1e-4, atol=1e-4)
    assert found.epistemic.isinf().tolist()[4:] == [row < 7 for row in range(4, 12)]
