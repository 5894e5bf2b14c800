"""Constants are computed at export, and the function stays the same."""

import copy
import math

import pytest
import torch
from exported_models import IMAGE_SHAPE, draw, image_model
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from density_softmax.deploy.graph import (
    Graph,
    OnnxArtifact,
    as_graph_input,
    to_onnx,
    trace,
)
from density_softmax.methods.deterministic import Deterministic
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.densities import (
    ClassAwareDensity,
    Density,
    FlowDensity,
    GaussianDensity,
)
from density_softmax.nn.densities.gaussian import WhitenedDensity
from density_softmax.nn.lipschitz import spectral
from density_softmax.nn.softmax import folded
from density_softmax.nn.softmax.scale import QuantileScale
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
def test_experts_of_one_product_are_those_of_each_density(
    columns: list[slice], energy: bool, classes: bool
) -> None:
    typicality = typicality_of(columns, energy, classes)
    z = torch.cat([features(50, seed=1), 3 * features(50, seed=2)])
    expected = [by_hand(density, z[:, c]) for _, density, c in typicality.readers()]
    expected += [logits_of(z).logsumexp(-1, keepdim=True)] * energy
    found = typicality.experts(z, logits_of(z))
    torch.testing.assert_close(found, torch.cat(expected, -1), rtol=1e-4, atol=1e-3)


def by_hand(density: Density, z: Tensor) -> Tensor:
    """The experts by their formulas, nothing folded."""
    if isinstance(density, GaussianDensity):
        y = (z - density.center) @ density.whitening.T
        return density.log_height - 0.5 * y.square().sum(-1, keepdim=True)
    assert isinstance(density, ClassAwareDensity)
    u = z / z.norm(dim=-1, keepdim=True)
    turned, rest = ((u - density.center) @ density.whitening.T).split(
        [density.num_turned, z.shape[1] - density.num_turned], dim=-1
    )
    nearest = (turned[:, None] - density.location).square().sum(-1).min(-1)
    near, between = nearest.values, density.location[nearest.indices]
    ratio = density.gather[-density.num_turned :, 1]
    first = density.height[0] - 0.5 * (near + rest.square().sum(-1))
    second = density.height[1] - 0.5 * (turned - between).square().sum(-1)
    return torch.stack([first, second + turned.square() @ ratio], dim=-1)


def test_other_densities_are_experts_beside_gaussians() -> None:
    densities = {"a": (GaussianDensity(2), slice(0, 2)), "b": (FlowDensity(2), slice(2, 4))}
    typicality, z = Typicality(densities), draw(5, 4)
    expected = [density.log_prob(z[:, c]) for _, density, c in typicality.readers()]
    torch.testing.assert_close(typicality.experts(z, draw(5, 3)), torch.stack(expected, -1))


def changed_by_fit(typicality: Typicality, z: Tensor) -> None:
    for _, density, columns in typicality.readers():
        assert isinstance(density, WhitenedDensity)
        fit_closed_form(density, z[:, columns], logits_of(z).argmax(1))


def changed_by_state(typicality: Typicality, z: Tensor) -> None:
    other = copy.deepcopy(typicality)
    changed_by_fit(other, z)
    typicality.load_state_dict(other.state_dict())


@pytest.mark.parametrize("change", [changed_by_fit, changed_by_state])
def test_what_was_derived_before_a_fit_is_not_used_after_it(change) -> None:
    typicality, z = typicality_of([slice(3, 7)], True, classes=True), features(200, seed=3)
    before = typicality(z, logits_of(z))
    change(typicality, 2 * z + 1)
    found = typicality(z, logits_of(z))
    assert not torch.allclose(found.log_prob, before.log_prob, rtol=0.01)
    anew = copy.deepcopy(typicality)  # which knows nothing that was derived
    assert torch.equal(found.log_prob, anew(z, logits_of(z)).log_prob)


@pytest.mark.parametrize("energy", [True, False])
@pytest.mark.parametrize("small", [0, 2**17], ids=["products", "one product"])
@pytest.mark.parametrize("columns", [[slice(0, 3)], [slice(3, 7), slice(0, 3)]])
def test_evidence_that_is_folded_is_the_same(
    columns: list[slice], small: int, energy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folded, "SMALL", small)
    typicality, scale = typicality_of(columns, energy, classes=True).double(), fitted_scale()
    z = torch.cat([features(50, seed=1), 3 * features(50, seed=2), torch.zeros(1, 7)]).double()
    log_prob, *expected = typicality(z, logits_of(z))
    evidence = folded.FoldedEvidence(typicality, scale)
    with torch.no_grad():
        assert evidence._constants_for(z) is not None
        found = evidence(z, logits_of(z))
    torch.testing.assert_close(found, (scale(log_prob)[:, None], *expected))
    assert 0.1 < (found[0] == 1).double().mean() < 0.9


def fitted_scale() -> QuantileScale:
    scale = QuantileScale().double()
    values = {"threshold": -2.0, "spread": 3.0, "farthest": -9.0, "decay": 0.7}
    for name, value in values.items():
        getattr(scale, name).fill_(value)
    return scale


def test_what_is_folded_follows_its_buffers_and_is_left_where_it_would_lose_digits() -> None:
    typicality, scale = typicality_of([slice(0, 3)], True, classes=True), fitted_scale().float()
    z, evidence = features(20), folded.FoldedEvidence(typicality, scale)
    with torch.no_grad():
        before = evidence(z, logits_of(z))[0]
        scale.decay.mul_(2)
        assert (evidence(z, logits_of(z))[0] < before).any()
        typicality.width.fill_(1e-6)
        assert evidence._constants_for(z) is None
        assert evidence(z, logits_of(z))[1].isfinite().all()


def test_a_mean_far_from_zero_is_subtracted_first() -> None:
    """W z − W m would lose the digits that the features have."""
    density, z = GaussianDensity(2), 1000 + 2.0**-9 * draw(500, 2).mul(64).round().div(64)
    fit_closed_form(density, z, torch.zeros(500, dtype=torch.long))
    exact = copy.deepcopy(density).double().log_prob(z.double())
    torch.testing.assert_close(density.log_prob(z).double(), exact, rtol=1e-4, atol=1e-4)


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


def test_batches_with_bad_rows_are_answered_as_single_rows_are() -> None:
    method, x = image_model(), spoiled(draw(12, *IMAGE_SHAPE))
    whole = method.predict(x)
    single = [method.predict(row[None]) for row in x]
    for found, *expected in zip(whole, *single, strict=True):
        torch.testing.assert_close(found, torch.cat(expected), rtol=1e-4, atol=1e-4)
    assert whole.epistemic.isinf().tolist()[4:] == [row < 7 for row in range(4, 12)]
