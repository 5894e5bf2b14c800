import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from torch import Tensor

from density_softmax.config import ConfigError
from density_softmax.nn.softmax.scale import (
    MaxScale,
    QuantileScale,
    RangeScale,
    Scale,
    ScaleConfig,
    TemperatureScale,
)

CONFIGS = {
    "max": MaxScale.Config(),
    "range": RangeScale.Config(),
    "stretched": QuantileScale.Config(tail="stretched"),
    "exponential": QuantileScale.Config(tail="exponential"),
    "power": QuantileScale.Config(tail="power"),
}
TINY = torch.finfo(torch.float32).tiny


class Sample(NamedTuple):
    """In-domain data as a scale sees them."""

    log_prob: Tensor
    logits: Tensor
    y: Tensor


def sample(seed: int = 0, num_samples: int = 300, num_classes: int = 4) -> Sample:
    """Log densities with a long lower tail, and logits as reliable there as elsewhere."""
    rng = np.random.default_rng(seed)
    log_prob = -200 - 10 * rng.gamma(2.0, size=num_samples)
    logits = 3 * rng.standard_normal((num_samples, num_classes))
    y = np.argmax(logits / 1.5 + rng.gumbel(size=logits.shape), axis=1)
    return Sample(
        torch.from_numpy(log_prob).float(), torch.from_numpy(logits).float(), torch.from_numpy(y)
    )


def fitted(config: ScaleConfig, data: Sample | None = None) -> Scale:
    scale = config.build()
    fit(scale, data or sample())
    return scale


def fit(scale: Scale, data: Sample) -> float:
    """The temperature; the log densities depend on no constants."""
    return scale.fit(lambda rows: data.log_prob, data.logits, data.y)


@pytest.fixture(scope="module", params=CONFIGS)
def scale(request: pytest.FixtureRequest) -> Scale:
    return fitted(CONFIGS[request.param])


log_probs = st.lists(st.floats(-1e5, 1e5, width=32), min_size=1, max_size=30)


@given(values=log_probs)
def test_factor_rises_with_the_density_and_stays_in_0_1(scale: Scale, values: list[float]) -> None:
    factor = scale(torch.tensor(sorted(values)))
    assert (factor.diff() >= 0).all()
    assert (factor > 0).all()
    assert (factor <= 1).all()


def test_factor_vanishes_far_away_and_is_1_at_the_top(scale: Scale) -> None:
    far, top = scale(torch.tensor([-1e30, 1e30]))
    assert far <= 1e-30
    assert top == 1


def test_factor_of_a_density_that_underflowed_is_positive(scale: Scale) -> None:
    assert scale(torch.tensor([-math.inf])).item() == TINY


def test_mixed_precision_does_not_touch_the_factor(scale: Scale) -> None:
    log_prob = sample().log_prob
    with torch.autocast("cpu", torch.bfloat16):
        factor = scale(log_prob)
    assert factor.dtype == torch.float32
    assert torch.equal(factor, scale(log_prob))


def test_double_precision_stays(scale: Scale) -> None:
    log_prob = sample().log_prob.double()
    factor = scale.double()(log_prob + 1e-9)
    assert factor.dtype == torch.float64
    torch.testing.assert_close(factor.float(), scale.float()(log_prob.float()))


@pytest.mark.parametrize("name", CONFIGS)
def test_constants_survive_the_state_dict(name: str) -> None:
    scale, other = fitted(CONFIGS[name]), CONFIGS[name].build()
    log_prob = torch.linspace(-1000, 0, 50)
    assert not torch.equal(other(log_prob), scale(log_prob))
    other.load_state_dict(scale.state_dict())
    assert torch.equal(other(log_prob), scale(log_prob))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("shift", [256.0, -4096.0])
def test_shift_of_the_log_density_changes_nothing(name: str, shift: float) -> None:
    data = sample()
    shifted = data._replace(log_prob=data.log_prob + shift)
    log_prob = torch.linspace(-400, -150, 60)
    torch.testing.assert_close(
        fitted(CONFIGS[name], shifted)(log_prob + shift),
        fitted(CONFIGS[name], data)(log_prob),
        rtol=5e-3,
        atol=1e-6,
    )


@pytest.mark.parametrize("name", ["range", "exponential", "power"])
def test_unit_of_the_log_density_changes_nothing(name: str) -> None:
    data = sample()
    scaled = data._replace(log_prob=4 * data.log_prob)
    log_prob = torch.linspace(-400, -150, 60)
    torch.testing.assert_close(
        fitted(CONFIGS[name], scaled)(4 * log_prob), fitted(CONFIGS[name], data)(log_prob)
    )


DEGENERATE = {
    "constant density": sample()._replace(log_prob=torch.full((300,), -7.5)),
    "one sample": Sample(*(part[:1] for part in sample())),
    "two samples": Sample(*(part[:2] for part in sample())),
    "all wrong": sample()._replace(y=sample().logits.argmin(1)),
    "all right": sample()._replace(y=sample().logits.argmax(1)),
    "constant logits": sample()._replace(logits=torch.zeros(300, 4)),
    "one underflow": sample()._replace(
        log_prob=sample().log_prob.index_fill(0, torch.tensor(3), -math.inf)
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_data_give_finite_constants(name: str, case: str) -> None:
    data, scale = DEGENERATE[case], CONFIGS[name].build()
    temperature = fit(scale, data)
    assert 0 < temperature < math.inf
    factor = scale(torch.cat([data.log_prob, torch.tensor([-1e9, 0.0, -7.5, -math.inf])]))
    assert factor.isfinite().all()
    assert ((factor > 0) & (factor <= 1)).all()


def test_max_is_p_over_its_training_maximum() -> None:
    data = sample()
    factor = fitted(MaxScale.Config(), data)(data.log_prob).double()
    p = (data.log_prob.double() + 200).exp()
    torch.testing.assert_close(factor, p / p.max(), rtol=1e-4, atol=1e-30)
    assert factor[data.log_prob.argmax()] == 1


def test_range_is_the_rule_of_the_code() -> None:
    data = sample()
    scale = fitted(RangeScale.Config(-0.4, -0.3), data)
    log_prob = data.log_prob.double()
    low, high = log_prob.min(), log_prob.max()
    expected = torch.exp((log_prob - low) / (high - low) * (-0.3 - -0.4) + -0.4)
    torch.testing.assert_close(scale(data.log_prob).double(), expected, rtol=1e-5, atol=0)


def test_averaged_range_is_its_mean_on_the_training_data_for_all_inputs() -> None:
    data = sample()
    expected = fitted(RangeScale.Config(-0.9, -0.1), data)(data.log_prob).mean()
    averaged = fitted(RangeScale.Config(-0.9, -0.1, averaged=True), data)
    factor = averaged(torch.tensor([-math.inf, -1e9, -200.0, 1e9]))
    torch.testing.assert_close(factor, expected.expand(4))
    again = RangeScale.Config(-0.9, -0.1, averaged=True).build()
    again.load_state_dict(averaged.state_dict())
    assert torch.equal(again(data.log_prob), averaged(data.log_prob))


@pytest.mark.parametrize("bounds", [(-0.3, -0.4), (-0.4, 0.1), (-0.4, -0.4)])
def test_range_outside_of_the_factors_is_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"scale range \[.*need low < high <= 0"):
        RangeScale.Config(*bounds).build()


@pytest.mark.parametrize("config", [MaxScale.Config(), RangeScale.Config()], ids=["max", "range"])
def test_paper_s_scales_leave_the_temperature_alone(config: ScaleConfig) -> None:
    assert fit(config.build(), sample()) == 1


@pytest.mark.parametrize("tail", ["stretched", "exponential", "power"])
@pytest.mark.parametrize("quantile", [0.05, 0.2])
def test_quantile_factor_is_exactly_1_from_the_quantile_up(tail: str, quantile: float) -> None:
    data = sample()
    scale = fitted(QuantileScale.Config(quantile=quantile, tail=tail), data)
    assert isinstance(scale, QuantileScale)
    threshold = np.quantile(data.log_prob.numpy(), quantile)
    assert scale.threshold.item() == pytest.approx(threshold)
    factor = scale(data.log_prob)
    assert (factor[data.log_prob >= scale.threshold] == 1).all()
    assert (factor[data.log_prob < scale.threshold] < 1).all()


@pytest.mark.parametrize("tail", ["stretched", "exponential", "power"])
def test_quantile_factor_is_the_formula(tail: str) -> None:
    data = sample()
    scale = fitted(QuantileScale.Config(tail=tail), data)
    q, lower, upper = np.quantile(data.log_prob.double().numpy(), [0.1, 0.25, 0.75])
    u = np.maximum(0, (q - data.log_prob.double().numpy()) / (upper - lower))
    c = scale.decay.item()
    expected = {
        "stretched": np.exp(-4 * c * ((1 + u) ** 0.25 - 1)),
        "exponential": np.exp(-c * u),
        "power": (1 + u) ** -c,
    }[tail]
    assert c > 0
    np.testing.assert_allclose(scale(data.log_prob).numpy(), expected, rtol=1e-4)


def nll(logits: np.ndarray, y: np.ndarray) -> float:
    return float(-log_softmax(logits, axis=1)[np.arange(len(y)), y].mean())


def scaled_temperature(logits: np.ndarray, y: np.ndarray) -> float:
    """That of temperature scaling with one pseudo-sample among the least certain."""
    n, ordered = len(y), np.sort(logits, axis=1)
    least = np.argsort(ordered[:, -1] - ordered[:, -2])[: math.isqrt(n)]

    def objective(log_t: float) -> float:
        log_probs = log_softmax(logits / math.exp(log_t), axis=1)
        return -log_probs[np.arange(n), y].sum() - log_probs[least].mean()

    return math.exp(minimize_scalar(objective, method="brent").x)


STRETCH = {
    "stretched": lambda u: 4 * ((1 + u) ** 0.25 - 1),
    "exponential": lambda u: u,
    "power": np.log1p,
}


def fresh_cost(data: Sample, decay: float, tail: str | None, quantile: float = 0.1) -> float:
    """Mean plus two standard errors of what a decay costs, relative to the NLL without it.

    Every fifth is judged by a temperature and quantiles of the others. Without a tail every sample
    has the same factor.
    """
    log_prob, logits, y = (array.double().numpy() for array in data)
    y, order = y.astype(int), torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    before, cost = np.zeros(len(y)), np.zeros(len(y))
    for fold in range(5):
        judged = order[fold::5].numpy()
        others = np.setdiff1d(np.arange(len(y)), judged)
        scaled = logits[judged] / scaled_temperature(logits[others], y[others])
        low, lower, upper = np.quantile(log_prob[others], [quantile, 0.25, 0.75])
        u = np.maximum(0, (low - log_prob[judged]) / (upper - lower))
        factor = np.exp(-decay * (STRETCH[tail](u) if tail else np.ones_like(u)))[:, None]
        rows = np.arange(len(judged)), y[judged]
        before[judged] = -log_softmax(scaled, axis=1)[rows]
        cost[judged] = -log_softmax(factor * scaled, axis=1)[rows] - before[judged]
    return float((cost.mean() + 2 * cost.std() / math.sqrt(len(y))) / before.mean())


@pytest.mark.parametrize("tail", ["stretched", "exponential", "power"])
@pytest.mark.parametrize("budget", [0.01, 0.03, 0.1])
def test_decay_is_the_sharpest_whose_cost_on_fresh_samples_is_within_the_budget(
    tail: str, budget: float
) -> None:
    data = sample()
    scale = fitted(QuantileScale.Config(budget=budget, tail=tail, steepest=50.0), data)
    assert fresh_cost(data, scale.decay.item(), tail) <= budget + 1e-5
    assert fresh_cost(data, 1.01 * scale.decay.item(), tail) > budget


@pytest.mark.parametrize("budget", [0.01, 0.03])
def test_one_temperature_is_the_highest_within_the_budget(budget: float) -> None:
    data = sample()
    best = fit(TemperatureScale.Config().build(), data)
    decay = math.log(fit(TemperatureScale.Config(budget).build(), data) / best)
    assert decay > 0
    assert fresh_cost(data, decay, None) <= budget + 1e-5
    assert fresh_cost(data, 1.01 * decay, None) > budget


def test_few_samples_vouch_for_a_smaller_decay_than_many() -> None:
    few = [fitted(QuantileScale.Config(), sample(seed, 60)).decay for seed in range(20)]
    many = [fitted(QuantileScale.Config(), sample(seed, 2000)).decay for seed in range(5)]
    assert np.mean(few) < np.mean(many)


def test_the_budget_is_honoured_on_fresh_samples_also_where_few_calibrate() -> None:
    fresh, costs = sample(0, 20_000), []
    for seed in range(1, 21):
        data = sample(seed, 100)
        scale = QuantileScale.Config(budget=0.05).build()
        scaled = (fresh.logits / fit(scale, data)).double()
        y, factors = fresh.y.numpy(), scale(fresh.log_prob)[:, None]
        costs.append(nll((factors * scaled).numpy(), y) / nll(scaled.numpy(), y) - 1)
    assert np.mean(costs) < 0.05
    assert np.mean(np.array(costs) > 0.05) <= 0.1


def test_far_beyond_all_held_out_samples_the_factor_falls_whatever_the_budget() -> None:
    data = sample()
    scale = fitted(QuantileScale.Config(budget=0.0), data)
    scale.decay.fill_(1e-12)  # what no budget can go below
    twice = scale.threshold - 2 * (scale.threshold - data.log_prob.min())
    assert scale(twice[None]).item() > 0.99
    below = twice - scale.spread * torch.tensor([1.0, 10.0, 1000.0])
    expected = torch.exp(-2 * ((1 + torch.tensor([1.0, 10.0, 1000.0])) ** 0.25 - 1))
    torch.testing.assert_close(scale(below), expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("kind", [TemperatureScale, QuantileScale])
def test_a_budget_below_zero_is_refused(kind: type[Scale]) -> None:
    with pytest.raises(ConfigError, match=r"budget=-0\.1: choose 0 or more, a share of"):
        kind.Config(budget=-0.1)


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), budgets=st.tuples(st.floats(1e-4, 0.1), st.floats(1e-4, 0.1)))
def test_larger_budget_never_gives_a_smaller_decay(seed: int, budgets: tuple[float, float]) -> None:
    data = sample(seed, num_samples=100)
    decays = [fitted(QuantileScale.Config(budget=b), data).decay for b in sorted(budgets)]
    assert decays[0] <= decays[1]


@pytest.mark.parametrize("tail", ["stretched", "exponential", "power"])
def test_free_decay_takes_the_steepest_off_a_surprise_of_one(tail: str) -> None:
    scale = fitted(QuantileScale.Config(budget=10.0, tail=tail, steepest=1.5, far=0.0))
    one_range_below = (scale.threshold - scale.spread)[None]
    assert scale.log_factor(one_range_below).item() == pytest.approx(-1.5, rel=1e-4)


@pytest.mark.parametrize("tail", ["stretched", "exponential", "power"])
def test_outlier_in_the_data_does_not_cost_the_limit_far_away(tail: str) -> None:
    data = sample()
    log_prob = data.log_prob.index_fill(0, torch.tensor(3), -1e7)
    config = QuantileScale.Config(budget=1e-4, tail=tail)
    scale = fitted(config, data._replace(log_prob=log_prob))
    assert scale.decay > 0
    assert scale(torch.tensor([-math.inf])).item() < 0.1


@pytest.mark.parametrize("config", [QuantileScale.Config(), TemperatureScale.Config(budget=0.1)])
def test_fitting_leaves_the_logits_alone_in_any_precision(config: ScaleConfig) -> None:
    data = sample()
    double = data._replace(logits=data.logits.double())
    temperature = fit(config.build(), double)
    assert torch.equal(double.logits, data.logits.double())
    assert temperature == pytest.approx(fit(config.build(), data), rel=1e-4)


@pytest.mark.parametrize("tail", ["stretched", "exponential", "power"])
def test_returned_temperature_is_that_of_temperature_scaling(tail: str) -> None:
    data = sample()
    temperature = fit(QuantileScale.Config(tail=tail).build(), data)
    expected = scaled_temperature(data.logits.double().numpy(), data.y.numpy())
    assert temperature == pytest.approx(expected, rel=1e-4)
