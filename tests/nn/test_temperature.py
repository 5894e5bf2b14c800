import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax
from torch import Tensor
from torch.nn import functional as F

from density_softmax.nn.softmax.head import fit_temperature, nll_of_samples


def sample(seed: int, num_samples: int = 200, num_classes: int = 4) -> tuple[Tensor, Tensor]:
    """Logits about twice too large for their labels."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.standard_normal((num_samples, num_classes))
    y = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return torch.from_numpy(2 * logits), torch.from_numpy(y)


def nll_with_one_more(logits: Tensor, y: Tensor, temperature: float) -> float:
    """The n samples and one without a label, spread over the √n of the smallest margin."""
    n, scaled = len(logits), logits.numpy() / temperature
    seen = -log_softmax(scaled, axis=1)[np.arange(n), y.numpy()].sum()
    ordered = np.sort(logits.numpy(), axis=1)
    least = np.argsort(ordered[:, -1] - ordered[:, -2])[: math.isqrt(n)]
    return float(seen - log_softmax(scaled[least], axis=1).mean())


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_temperature_is_the_best_of_a_fine_grid(seed: int) -> None:
    logits, y = sample(seed)
    grid = np.geomspace(0.2, 20, 1001)
    best = grid[np.argmin([nll_with_one_more(logits, y, t) for t in grid])]
    assert fit_temperature(logits, y) == pytest.approx(best, rel=0.01)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), factor=st.floats(0.2, 5))
def test_scaled_logits_scale_the_temperature(seed: int, factor: float) -> None:
    logits, y = sample(seed)
    expected = factor * fit_temperature(logits, y)
    assert fit_temperature(factor * logits, y) == pytest.approx(expected, rel=1e-3)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), shift=st.floats(-100, 100))
def test_temperature_ignores_what_softmax_ignores(seed: int, shift: float) -> None:
    logits, y = sample(seed)
    expected = fit_temperature(logits, y)
    assert fit_temperature(logits + shift, y) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("true", [0.3, 1.0, 4.0])
def test_temperature_of_many_labels_is_recovered(true: float) -> None:
    logits, y = sample(0, num_samples=20_000)
    assert fit_temperature(logits / 2 * true, y) == pytest.approx(true, rel=0.05)


def test_separable_data_give_a_finite_temperature_that_sharpens_with_their_number() -> None:
    found = []
    for num_samples in (10, 100, 1000):
        y = torch.arange(num_samples) % 3
        found.append(fit_temperature(4.0 * F.one_hot(y).double(), y))
    assert 0.05 < found[2] < found[1] < found[0]
    # All margins are equal: the believed error rate is one spread-out error beside n successes.
    for temperature, num_samples in zip(found, (10, 100, 1000), strict=True):
        error = 2 / (2 + math.exp(4 / temperature))
        assert error == pytest.approx(2 / 3 / (num_samples + 1), rel=1e-3)


def test_certain_samples_do_not_soften_the_temperature() -> None:
    y = torch.arange(400) % 2
    logits = torch.where(torch.arange(400) < 40, 1.0, 3.0)[:, None] * F.one_hot(y).double()
    sharper = torch.where(torch.arange(400) < 40, 1.0, 300.0)[:, None] * F.one_hot(y).double()
    expected = fit_temperature(logits, y)
    assert fit_temperature(sharper, y) == pytest.approx(expected, rel=0.05)


def test_data_without_a_correct_prediction_stay_finite() -> None:
    y = torch.zeros(20, dtype=torch.long)
    logits = 5.0 * F.one_hot(y + 1, 3)
    temperature = fit_temperature(logits, y)
    assert 5 < temperature <= 100
    assert nll_of_samples(logits / temperature, y).mean() == pytest.approx(math.log(3), abs=0.1)


@pytest.mark.parametrize("num_samples", [1, 5])
def test_constant_logits_give_a_finite_temperature(num_samples: int) -> None:
    temperature = fit_temperature(
        torch.zeros(num_samples, 3), torch.zeros(num_samples, dtype=torch.long)
    )
    assert 0 < temperature < math.inf


def test_nll_is_the_cross_entropy() -> None:
    logits, y = sample(0)
    assert nll_of_samples(logits, y).mean() == pytest.approx(F.cross_entropy(logits, y).item())
