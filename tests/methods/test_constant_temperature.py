import math

import pytest
import torch
from torch.nn import functional as F

import density_softmax as ds
from density_softmax.config import ConfigError
from density_softmax.data import ArraySource
from density_softmax.methods.base import Method
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.methods.deterministic import ConstantTemperature, Deterministic
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.densities import GaussianDensity
from density_softmax.nn.lipschitz.penalty import FrobeniusPenalty, NoPenalty
from density_softmax.nn.softmax.head import fit_temperature
from density_softmax.nn.softmax.scale import ConstantScale, RangeScale, TemperatureScale
from density_softmax.recipes import RECIPES, get_recipe
from density_softmax.training import Adam, Descent
from density_softmax.types import Batch

SHORT = Descent(epochs=3, batch_size=16, optimizer=Adam(lr=1e-2))
PENALTY = FrobeniusPenalty.Config(weight=0.5, every=2)
ENGINE = ds.EngineConfig(accelerator="cpu", threads=1)
NUM_CLASSES = 3


def points(num_samples: int, seed: int) -> ArraySource:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_samples, 2, generator=generator)
    return ArraySource(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())


def encoder(seed: int = 0) -> ResFFN:
    torch.manual_seed(seed)
    return ResFFN(2, depth=2, width=6)


def trained(method: Method) -> Method:
    ds.fit(method, points(40, 1), points(200, 2), seed=3, engine=ENGINE, progress=False)
    return method


def control(temperature: float | None, **changes) -> ConstantTemperature:
    settings = {"penalty": PENALTY, "descent": SHORT, "temperature": temperature} | changes
    return ConstantTemperature(encoder(), NUM_CLASSES, ConstantTemperature.Config(**settings))


@pytest.mark.parametrize("temperature", [0.5, 1.0, math.exp(0.5)])
def test_probabilities_are_the_softmax_of_logits_by_temperature(temperature: float) -> None:
    method, x = control(temperature), points(30, 4).x
    with torch.no_grad():
        logits = method.head.linear(method.encoder(x))
    probs, aleatoric, epistemic = method.predict(x)
    expected = torch.distributions.Categorical(logits=logits / temperature)
    torch.testing.assert_close(probs, expected.probs)
    torch.testing.assert_close(aleatoric, expected.entropy())
    assert torch.equal(aleatoric, epistemic)
    assert torch.equal(probs.argmax(1), logits.argmax(1))


def test_the_temperature_does_not_touch_training() -> None:
    cold, hot = trained(control(1.0)).state_dict(), trained(control(5.0)).state_dict()
    assert [name for name in cold if not torch.equal(cold[name], hot[name])] == ["head.temperature"]


def test_the_loss_is_cross_entropy_plus_the_mean_squared_distance_of_the_jacobian_from_one() -> (
    None
):
    method = control(2.0, penalty=FrobeniusPenalty.Config(weight=0.5))
    x, y = points(5, 4).x, torch.tensor([0, 1, 2, 0, 1])
    jacobians = torch.func.vmap(torch.func.jacrev(lambda v: method.encoder(v[None])[0]))(x)
    penalty = (torch.linalg.matrix_norm(jacobians) - 1).square().mean()
    expected = F.cross_entropy(method.head.linear(method.encoder(x)), y) + 0.5 * penalty
    torch.testing.assert_close(method.stages()[0].loss(Batch(x, y)), expected)


def test_without_penalty_and_at_temperature_one_it_is_erm() -> None:
    ours = trained(control(1.0, penalty=NoPenalty.Config()))
    erm = trained(Deterministic(encoder(), NUM_CLASSES, Deterministic.Config(descent=SHORT)))
    for mine, plain in zip(
        ours.predict(points(30, 4).x), erm.predict(points(30, 4).x), strict=True
    ):
        assert torch.equal(mine, plain)


def density_softmax(scale) -> DensitySoftmax:
    config = DensitySoftmax.Config(
        penalty=PENALTY,
        representation=SHORT,
        density=GaussianDensity.Config(),
        scale=scale,
        head=None,
    )
    return DensitySoftmax(encoder(), NUM_CLASSES, config)


@pytest.mark.parametrize(
    ("temperature", "scale"),
    [(1 / 0.6, ConstantScale.Config(factor=0.6)), (None, TemperatureScale.Config())],
    ids=["factor below 1", "factor 1, temperature fitted"],
)
def test_it_is_density_softmax_whose_density_says_the_same_of_every_input(
    temperature: float | None, scale
) -> None:
    ours, theirs = trained(control(temperature)), trained(density_softmax(scale))
    x = points(30, 4).x
    torch.testing.assert_close(ours.predict(x).probs, theirs.predict(x).probs)


def test_without_a_number_the_temperature_is_fitted_on_the_held_out_slice() -> None:
    method, heldout = trained(control(None)), points(200, 2)
    with torch.no_grad():
        logits = method.head.raw(method.features(heldout.x))
    expected = fit_temperature(logits, heldout.y)
    assert method.head.temperature.item() == pytest.approx(expected, rel=1e-5)
    assert [stage.name for stage in control(None).stages()] == ["representation", "temperature"]
    assert [stage.name for stage in control(1.6).stages()] == ["representation"]


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_that_is_none_is_refused(temperature: float) -> None:
    with pytest.raises(ConfigError, match=f"temperature={temperature}: choose one above 0"):
        ConstantTemperature.Config(temperature=temperature)


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_train_it_as_density_softmax_and_take_the_temperature_of_its_factor(
    recipe: str,
) -> None:
    ours, theirs = (
        get_recipe(recipe, m).method for m in ("constant_temperature", "density_softmax")
    )
    assert ours.penalty == theirs.penalty
    assert ours.descent == theirs.representation
    if isinstance(theirs.scale, RangeScale.Config):
        # Factors between exp(low) and exp(high): T is one over the middle, in the log domain.
        assert math.log(ours.temperature) == pytest.approx(
            -(theirs.scale.low + theirs.scale.high) / 2
        )
    else:
        assert ours.temperature is None
