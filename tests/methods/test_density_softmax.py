import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torch.nn import functional as F

from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.methods.deterministic import Deterministic
from density_softmax.metrics import accuracy, confidence, ece
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.densities import Density, DensityConfig, FlowDensity
from density_softmax.nn.lipschitz.penalty import FrobeniusPenalty
from density_softmax.nn.softmax.head import entropy_of_logits
from density_softmax.nn.softmax.scale import MaxScale, QuantileScale, RangeScale, ScaleConfig
from density_softmax.training import Descent, Estimate, Stage, Train
from density_softmax.types import Batch, Prediction

SCALES = {
    "max": MaxScale.Config(),
    "range": RangeScale.Config(),
    "exponential": QuantileScale.Config(),
    "power": QuantileScale.Config(tail="power"),
}


class FirstCoordinate(Density):
    """Takes the first feature for the log density."""

    def log_prob_of_floats(self, z: Tensor) -> Tensor:
        return z[:, 0]

    def stages(self) -> tuple[Stage, ...]:
        return ()


class FirstCoordinateConfig(DensityConfig):
    def build(self, num_features: int, num_classes: int) -> FirstCoordinate:
        return FirstCoordinate()


def bare(scale: ScaleConfig, num_classes: int) -> DensitySoftmax:
    """A method whose input is (log density, logits), with a scale fitted on log p in [−9, 0]."""
    method = DensitySoftmax(
        nn.Identity(),
        num_classes,
        DensitySoftmax.Config(density=FirstCoordinateConfig(), scale=scale, head=None),
        example=torch.zeros(1, 1 + num_classes),
    ).eval()
    with torch.no_grad():
        method.head.linear.weight.copy_(torch.eye(num_classes, 1 + num_classes).roll(1, 1))
        method.head.linear.bias.zero_()
        logits = torch.randn(100, num_classes, generator=torch.Generator().manual_seed(0))
        method.scale.fit(lambda rows: torch.linspace(-9, 0, 100), 2 * logits, logits.argmax(1))
    return method.requires_grad_(False)


def predict(method: DensitySoftmax, log_prob: list[float], logits: list[float]) -> Prediction:
    """The same logits at several densities."""
    return method(torch.tensor([[value, *logits] for value in log_prob]))


BARE = {(name, k): bare(config, k) for name, config in SCALES.items() for k in (2, 5)}
logit_rows = st.lists(st.floats(-20, 20, width=32), min_size=5, max_size=5)


@pytest.fixture(scope="module", params=SCALES)
def method(request: pytest.FixtureRequest) -> DensitySoftmax:
    return BARE[request.param, 5]


@given(logits=logit_rows)
def test_density_to_zero_gives_uniform(method: DensitySoftmax, logits: list[float]) -> None:
    probs = predict(method, [-1e30], logits).probs
    torch.testing.assert_close(probs, torch.full((1, 5), 0.2))


@given(logits=logit_rows)
def test_likeliest_data_keep_the_plain_softmax(method: DensitySoftmax, logits: list[float]) -> None:
    # `range` never reaches 1 on the training data: only far above them.
    log_prob = 1e30 if isinstance(method.scale, RangeScale) else 0.0
    probs = predict(method, [log_prob], logits).probs
    assert torch.equal(probs, torch.tensor([logits]).softmax(1))


@pytest.mark.parametrize("name", ["max", "range", "exponential"])
def test_far_features_give_uniform_though_their_logits_grow(name: str) -> None:
    # A normal density and a linear head. A power of the distance need not beat the logits.
    distance = torch.tensor([[1e2], [1e4], [1e8]])
    logits = distance * torch.tensor([1.0, 0.0, -1.0, 2.0, 0.5])
    probs = BARE[name, 5](torch.cat([-(distance**2) / 2, logits], 1)).probs
    torch.testing.assert_close(probs, torch.full((3, 5), 0.2))


@pytest.mark.parametrize("name", ["exponential", "power"])
@given(logits=logit_rows)
def test_quantile_scale_keeps_the_plain_softmax_of_all_typical_data(
    name: str, logits: list[float]
) -> None:
    probs = predict(BARE[name, 5], [-8.0, -4.0, 0.0, 10.0], logits).probs
    assert torch.equal(probs, torch.tensor([logits] * 4).softmax(1))


@given(logits=logit_rows, log_prob=st.lists(st.floats(-100, 5, width=32), min_size=2, max_size=8))
def test_entropy_falls_as_the_density_rises(
    method: DensitySoftmax, logits: list[float], log_prob: list[float]
) -> None:
    probs = predict(method, sorted(log_prob), logits).probs.double()
    entropy = torch.special.entr(probs).sum(1)
    assert (entropy.diff() <= 1e-5).all()


@given(logits=logit_rows, log_prob=st.floats(-100, 5, width=32))
def test_class_stays_that_of_the_plain_softmax_and_confidence_never_rises(
    method: DensitySoftmax, logits: list[float], log_prob: float
) -> None:
    probs = predict(method, [log_prob], logits).probs[0]
    plain = torch.tensor(logits).softmax(0)
    assert probs[torch.tensor(logits).argmax()] == probs.max()
    assert probs.max() <= plain.max() + 1e-6


def test_uncertainties_are_entropy_of_the_plain_softmax_and_negative_log_density(
    method: DensitySoftmax,
) -> None:
    logits = [1.0, 0.0, -1.0, 2.0, 0.5]
    served = predict(method, [-50.0, 0.0], logits)
    torch.testing.assert_close(served.aleatoric, entropy_of_logits(torch.tensor([logits] * 2)))
    assert served.epistemic.tolist() == [50, 0]


@pytest.mark.parametrize("name", SCALES)
def test_ece_of_an_overconfident_model_falls(name: str) -> None:
    rng = np.random.default_rng(0)
    margin = torch.from_numpy(rng.uniform(2, 6, 2000)).float()
    right = torch.from_numpy(rng.uniform(size=2000) < 0.6)
    x = torch.stack([torch.full_like(margin, -9.3), margin, torch.zeros_like(margin)], 1)
    y = (~right).long()
    plain, served = x[:, 1:].softmax(1), BARE[name, 2](x).probs
    # The premise of Proposition 1: less accurate than confident in every bin.
    assert accuracy(plain, y) < 0.65 < plain.max(1).values.min()
    assert accuracy(served, y) == accuracy(plain, y)
    assert confidence(served) < confidence(plain)
    assert ece(served, y) < ece(plain, y)


def trained_like(config: DensitySoftmax.Config | None = None) -> DensitySoftmax:
    """A method on points of the plane with constants away from their defaults."""
    torch.manual_seed(0)
    method = DensitySoftmax(ResFFN(2, depth=2, width=6), 3, config).eval()
    with torch.no_grad():
        method.density.mean.uniform_()
        method.density.scale.uniform_(0.5, 2)
        method.density.log_volume.copy_(method.density.scale.log().sum())
        method.head.temperature.fill_(1.7)
    return method


X = torch.randn(40, 2, generator=torch.Generator().manual_seed(3))
Y = torch.arange(40) % 3


def numbers(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def network(layers: nn.Module, x: np.ndarray) -> np.ndarray:
    linear = [layer for layer in layers.modules() if isinstance(layer, nn.Linear)]
    for number, layer in enumerate(linear):
        x = np.maximum(x, 0) if number else x
        x = x @ numbers(layer.weight).T + numbers(layer.bias)
    return x


def test_forward_is_equation_7_written_out() -> None:
    method = trained_like()
    scale: Any = method.scale
    with torch.no_grad():
        scale.threshold.fill_(-6.5)
        scale.spread.fill_(2.0)
        scale.farthest.fill_(-9.0)
        scale.decay.fill_(0.6)
    z = numbers(method.encoder(X))
    u = (z - numbers(method.density.mean)) / numbers(method.density.scale)
    a, b, log_det = u[:, :3], u[:, 3:], -np.log(numbers(method.density.scale)).sum()
    first, second = method.density.get_submodule("flow.couplings")
    s = np.tanh(network(first.scale, a))
    b, log_det = b * np.exp(s) + network(first.shift, a), log_det + s.sum(1)
    s = np.tanh(network(second.scale, b))
    a, log_det = a * np.exp(s) + network(second.shift, b), log_det + s.sum(1)
    log_prob = log_det - (a**2 + b**2).sum(1) / 2 - 3 * math.log(2 * math.pi)
    logits = (z @ numbers(method.head.linear.weight).T + numbers(method.head.linear.bias)) / 1.7
    surprise = np.maximum(0, (-6.5 - log_prob) / 2)
    beyond = np.maximum(0, (-9.0 - log_prob) / 2)
    p = np.exp(-4 * (0.6 * ((1 + surprise) ** 0.25 - 1) + 0.5 * ((1 + beyond) ** 0.25 - 1)))
    assert 0 < (beyond > 0).sum() < len(p)
    assert 0 < (p < 1).sum() < len(p)
    served = method(X)
    np.testing.assert_allclose(numbers(served.probs), softmax(p[:, None] * logits, 1), rtol=1e-4)
    np.testing.assert_allclose(numbers(served.epistemic), -log_prob, rtol=1e-4)
    plain = softmax(logits, 1)
    entropy = -(plain * np.log(plain)).sum(1)
    np.testing.assert_allclose(numbers(served.aleatoric), entropy, rtol=1e-4)


def test_predicted_class_is_that_of_empirical_risk_minimisation() -> None:
    method = trained_like()
    erm = Deterministic(method.encoder, 3)
    erm.head = method.head
    x = 5 * X
    assert torch.equal(method.predict(x).probs.argmax(1), erm.predict(x).probs.argmax(1))


def test_stages_are_those_of_algorithm_1() -> None:
    method = trained_like()
    stages = method.stages()
    assert [(s.name, s.on, s.split) for s in stages] == [
        ("representation", "inputs", "train"),
        ("standardize", "features", "train"),
        ("density", "features", "train"),
        ("scale", "features", "heldout"),
        ("head", "features", "train"),
    ]
    trained = {s.name: s.parameters for s in stages if isinstance(s, Train)}
    encoder, head = list(method.encoder.parameters()), list(method.head.parameters())
    expected = {
        "representation": encoder + head,
        "density": list(method.density.parameters()),
        "head": head,
    }
    assert {name: {id(p) for p in parameters} for name, parameters in trained.items()} == {
        name: {id(p) for p in parameters} for name, parameters in expected.items()
    }
    descents = [s.descent for s in stages if isinstance(s, Train)]
    config = method.config
    assert descents == [config.representation, FlowDensity.Config().descent, config.head]


@pytest.mark.parametrize(
    ("scale", "split"), [("max", "train"), ("range", "train"), ("power", "heldout")]
)
def test_constants_of_the_scale_come_from_its_own_split(scale: str, split: str) -> None:
    stages = trained_like(DensitySoftmax.Config(scale=SCALES[scale])).stages()
    assert [s.split for s in stages if s.name == "scale"] == [split]


def test_parts_that_are_left_out_have_no_stage() -> None:
    config = DensitySoftmax.Config(density=FlowDensity.Config(standardize=False), head=None)
    names = [stage.name for stage in trained_like(config).stages()]
    assert names == ["representation", "density", "scale"]


def stage_named(method: DensitySoftmax, name: str) -> Any:
    (stage,) = [stage for stage in method.stages() if stage.name == name]
    return stage


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_representation_loss_is_equation_4_written_out(weight: float) -> None:
    method = trained_like(DensitySoftmax.Config(penalty=FrobeniusPenalty.Config(weight=weight)))
    norms = [jacobian(lambda v: method.encoder(v[None])[0], x).norm() for x in X]
    expected = F.cross_entropy(method.head(method.encoder(X)), Y)
    expected = expected + weight * (torch.stack(norms) - 1).square().mean()
    loss = stage_named(method, "representation").loss(Batch(X, Y))
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(p.grad is not None for p in method.encoder.parameters())


def test_head_loss_is_equation_6_and_agrees_with_the_prediction() -> None:
    method = trained_like()
    log_prob = method.density.log_prob(method.encoder(X)).detach()
    method.scale.fit(lambda rows: log_prob, torch.randn(40, 3), Y)
    stage = stage_named(method, "head")
    batch = Batch(method.encoder(X).detach(), Y)
    expected = -method(X).probs.log()[torch.arange(40), Y]
    torch.testing.assert_close(stage.monitor(batch)["nll"], expected)
    torch.testing.assert_close(stage.loss(batch), expected.mean())


def fit_scale(method: DensitySoftmax) -> None:
    stage = stage_named(method, "scale")
    assert isinstance(stage, Estimate)
    assert stage.reduce == "concat"
    with torch.no_grad():
        z = method.features(X)
        # Right nine times in ten.
        y = (method.head(z).argmax(1) + (torch.arange(40) % 10 == 0)) % 3
        parts = [stage.statistics(Batch(z[i : i + 7], y[i : i + 7])) for i in range(0, 40, 7)]
        stage.finish({name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def test_head_is_trained_at_fixed_factors_and_its_energy_is_measured_again() -> None:
    scale = QuantileScale.Config(quantile=0.9, budget=0.5)
    method = trained_like(DensitySoftmax.Config(energy=True, scale=scale, head=Descent(1)))
    fit_scale(method)
    z = method.features(X).detach()
    with torch.no_grad():
        _, evidence = method.logits_and_evidence(z)
        factor = method.scale(evidence.log_prob)[:, None]
    assert (factor < 0.99).any()
    loss = F.cross_entropy(factor * method.head(z), Y)
    weight = method.head.linear.weight
    (expected,) = torch.autograd.grad(loss, weight)
    (found,) = torch.autograd.grad(stage_named(method, "head").loss(Batch(z, Y)), weight)
    torch.testing.assert_close(found, expected)
    assert [stage.name for stage in method.stages()][-3:] == ["scale", "head", "scale-again"]


def test_scale_stage_sets_constants_and_temperature_and_repeats_itself() -> None:
    method = trained_like(DensitySoftmax.Config(representation=Descent(1)))
    fit_scale(method)
    constants = {name: buffer.clone() for name, buffer in method.named_buffers()}
    assert constants["head.temperature"] != 1.7
    assert constants["scale.threshold"] != 0
    fit_scale(method)
    torch.testing.assert_close(dict(method.named_buffers()), constants, rtol=1e-2, atol=1e-3)


def test_an_encoder_that_is_read_stays_its_owners() -> None:
    encoder = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    x, config = torch.randn(6, 5), DensitySoftmax.Config(layers=("0",))
    first, second = (DensitySoftmax(encoder, 2, config, example=x) for _ in range(2))
    assert first.features(x).shape == (6, 7)
    encoder(x)
    assert not any(module._forward_hooks for module in encoder.modules())
    assert first.reader._recorder.pop() == second.reader._recorder.pop() == {}
