"""Behind the encoder, what is folded answers as before, also where numbers end."""

import copy
import math

import pytest
import torch
from exported_models import IMAGE_SHAPE, draw, image_model, vector_model
from operations import num_operations
from torch import Tensor, nn

from density_softmax.deploy.folding import FoldedScale, fold_all, fold_scales
from density_softmax.nn.softmax.scale import (
    ConstantScale,
    MaxScale,
    QuantileScale,
    RangeScale,
    Scale,
    ScaleConfig,
    TemperatureScale,
)

CONFIGS = {
    "range": RangeScale.Config(),
    "stretched": QuantileScale.Config(tail="stretched"),
    "exponential": QuantileScale.Config(tail="exponential"),
    "power": QuantileScale.Config(tail="power"),
}
LOG_PROB = -200 + 20 * draw(300)
FAR = torch.tensor([-1e3, -1e6, -1e30, -3e38, -math.inf, 0.0, 1e30, math.inf])


def folded(scale: Scale) -> FoldedScale:
    network = nn.ModuleDict({"scale": scale})
    assert fold_scales(network, draw(1, 2)) == ["scale"]
    found = network["scale"]
    assert isinstance(found, FoldedScale)
    return found


def fitted(config: ScaleConfig, log_prob: Tensor = LOG_PROB) -> Scale:
    scale = config.build()
    scale.fit(log_prob, 3 * draw(300, 4), torch.arange(300) % 4)
    return scale


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("fit", [True, False], ids=["fitted", "as built"])
def test_a_folded_scale_has_the_same_factors(name: str, fit: bool) -> None:
    scale = fitted(CONFIGS[name]) if fit else CONFIGS[name].build()
    log_prob = torch.cat([LOG_PROB, FAR])
    torch.testing.assert_close(folded(scale)(log_prob), scale(log_prob), rtol=2e-5, atol=1e-30)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_folded_scale_tells_log_densities_apart_that_differ_by_little(name: str) -> None:
    log_prob = 118 + 1e-5 * torch.arange(300)
    scale = fitted(CONFIGS[name], log_prob)
    torch.testing.assert_close(folded(scale)(log_prob), scale(log_prob))


@pytest.mark.parametrize("name", CONFIGS)
def test_folded_factors_rise_with_the_density_and_stay_in_0_1(name: str) -> None:
    factor = folded(fitted(CONFIGS[name]))(torch.cat([FAR, LOG_PROB]).sort().values)
    assert (factor.diff() >= 0).all()
    assert (factor > 0).all()
    assert (factor <= 1).all()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_folded_scale_passes_on_what_is_no_number(name: str) -> None:
    assert folded(fitted(CONFIGS[name]))(torch.tensor([math.nan])).isnan().all()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_folded_scale_needs_fewer_operations(name: str) -> None:
    scale = CONFIGS[name].build()
    assert num_operations(folded(scale), LOG_PROB) < num_operations(scale, LOG_PROB)


@pytest.mark.parametrize("scale", [ConstantScale(0.5), TemperatureScale(), MaxScale()])
def test_scales_that_are_as_short_as_can_be_are_left_alone(scale: Scale) -> None:
    network = nn.Sequential(scale)
    assert fold_scales(network, draw(1, 2)) == []
    assert network[0] is scale


def spoiled(x: Tensor) -> Tensor:
    """The same with a row of everything that is too large or no number."""
    x = x.clone()
    for row, value in enumerate([1e10, 1e30, 3e38, math.inf, -math.inf, math.nan], start=1):
        x[row].view(-1)[0] = value
    return x


@pytest.mark.parametrize(
    ("model", "shape"), [(vector_model, (2,)), (image_model, IMAGE_SHAPE)], ids=["flow", "experts"]
)
def test_a_folded_method_predicts_and_flags_the_same(model, shape) -> None:
    method, x = model(), spoiled(draw(12, *shape))
    network = copy.deepcopy(method)
    fold_all(network, draw(2, *shape))
    expected, found = method.predict(x), network.predict(x)
    torch.testing.assert_close(found.probs, expected.probs, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.aleatoric, expected.aleatoric, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.epistemic, expected.epistemic, rtol=1e-4, atol=1e-4)
    assert found.epistemic.isinf().tolist()[4:] == [row < 7 for row in range(4, 12)]
