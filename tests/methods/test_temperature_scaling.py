import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from torch import nn

import density_softmax as ds
from density_softmax.data import ArraySource
from density_softmax.methods.base import Method
from density_softmax.methods.deterministic import Deterministic, TemperatureScaling
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.softmax.head import fit_temperature
from density_softmax.training import Adam, Descent

NUM_CLASSES = 3
# Long enough at this rate to be overconfident on labels that are noise.
OVERFIT = Descent(epochs=40, batch_size=32, optimizer=Adam(lr=1e-2))
ENGINE = ds.EngineConfig(accelerator="cpu", threads=1)


def noisy(num_samples: int, seed: int) -> ArraySource:
    """Points of three classes whose labels are half noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_samples, 2, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    other = torch.randint(NUM_CLASSES, (num_samples,), generator=generator)
    return ArraySource(x, y.where(torch.rand(num_samples, generator=generator) > 0.5, other))


TRAIN, HELDOUT = noisy(96, seed=1), noisy(2000, seed=2)


def trained(kind: type[Method], descent: Descent = OVERFIT) -> Method:
    torch.manual_seed(0)
    method = kind.Config(descent=descent).build(ResFFN(2, depth=2, width=16), NUM_CLASSES)
    ds.fit(method, TRAIN, HELDOUT, seed=5, engine=ENGINE, progress=False)
    return method


@pytest.fixture(scope="module")
def scaled() -> Method:
    return trained(TemperatureScaling)


@pytest.fixture(scope="module")
def erm() -> Method:
    return trained(Deterministic)


def raw_logits(method: Method) -> torch.Tensor:
    with torch.no_grad():
        return method.head.raw(method.features(HELDOUT.x))


def test_the_temperature_minimises_the_nll_of_the_held_out_slice(scaled: Method) -> None:
    logits, y = raw_logits(scaled).double().numpy(), HELDOUT.y.numpy()

    def nll(temperature: float) -> float:
        return -log_softmax(logits / temperature, axis=1)[np.arange(len(y)), y].mean()

    best = minimize_scalar(nll, bounds=(0.1, 50), method="bounded", options={"xatol": 1e-6}).x
    temperature = scaled.head.temperature.item()
    assert temperature > 1.2
    # One pseudo-sample beside 2,000, as everywhere in the package, moves the minimum a little.
    assert temperature == pytest.approx(best, rel=0.02)
    assert nll(temperature) == pytest.approx(nll(best), abs=1e-4)


def test_the_fit_is_the_one_that_density_softmax_uses(scaled: Method) -> None:
    expected = fit_temperature(raw_logits(scaled), HELDOUT.y)
    assert scaled.head.temperature.item() == pytest.approx(expected, rel=1e-6)


def test_weights_and_classes_are_those_of_erm(scaled: Method, erm: Method) -> None:
    theirs = erm.state_dict()
    for name, value in scaled.state_dict().items():
        assert torch.equal(value, theirs[name]) == (name != "head.temperature"), name
    ours, plain = scaled.predict(HELDOUT.x), erm.predict(HELDOUT.x)
    assert torch.equal(ours.probs.argmax(1), plain.probs.argmax(1))
    assert (ours.epistemic > plain.epistemic).all()


def test_at_temperature_one_it_is_erm(scaled: Method, erm: Method) -> None:
    method = TemperatureScaling(ResFFN(2, depth=2, width=16), NUM_CLASSES)
    method.load_state_dict(scaled.state_dict())
    method.head.temperature.fill_(1)
    for ours, plain in zip(method.predict(HELDOUT.x), erm.predict(HELDOUT.x), strict=True):
        assert torch.equal(ours, plain)


def test_probabilities_are_the_softmax_of_logits_by_temperature(scaled: Method) -> None:
    probs, aleatoric, epistemic = scaled.predict(HELDOUT.x)
    expected = torch.distributions.Categorical(logits=raw_logits(scaled) / scaled.head.temperature)
    torch.testing.assert_close(probs, expected.probs)
    torch.testing.assert_close(aleatoric, expected.entropy())
    assert torch.equal(aleatoric, epistemic)


def test_it_is_trained_at_temperature_one_however_it_starts() -> None:
    results = []
    for temperature in (1.0, 7.0):
        torch.manual_seed(0)
        method = TemperatureScaling(nn.Linear(2, 4), 3, TemperatureScaling.Config(Descent(2)))
        method.head.temperature.fill_(temperature)
        ds.fit(method, TRAIN, HELDOUT, engine=ENGINE, progress=False)
        results.append(method.state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_the_temperature_stage_changes_the_temperature_alone() -> None:
    method = TemperatureScaling(ResFFN(2, depth=1, width=4), NUM_CLASSES)
    stage = method.stages()[1]
    assert (stage.name, stage.split, stage.on) == ("temperature", "heldout", "features")
    before = {name: value.clone() for name, value in method.state_dict().items()}
    batch = next(HELDOUT.read([range(50)], torch.device("cpu")))
    with torch.no_grad():
        stage.finish(stage.statistics(batch._replace(x=method.features(batch.x))))
    after = method.state_dict()
    assert [n for n in before if not torch.equal(before[n], after[n])] == ["head.temperature"]


def test_a_perfect_held_out_slice_leaves_the_temperature_finite() -> None:
    method = TemperatureScaling(nn.Identity(), 2, example=torch.zeros(1, 2))
    with torch.no_grad():
        method.head.linear.weight.copy_(torch.eye(2))
        method.stages()[1].finish({"logits": torch.eye(2), "y": torch.arange(2)})
    assert math.isfinite(method.head.temperature.item())
    assert method.head.temperature > 0
