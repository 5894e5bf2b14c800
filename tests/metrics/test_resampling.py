"""Resampled metrics are those of samples drawn one by one."""

import numpy as np
import pytest
import torch

from density_softmax import metrics

RNG = np.random.default_rng(0)
PROBS = torch.tensor(RNG.dirichlet(np.ones(4), 60))
Y = torch.tensor(RNG.integers(4, size=60))


def drawn(weights: torch.Tensor) -> list[torch.Tensor]:
    """The indices of every resample."""
    counts = (weights * weights.shape[1]).round().long()
    return [torch.arange(weights.shape[1]).repeat_interleave(row) for row in counts]


def test_a_resample_has_as_many_samples_as_the_set():
    weights = metrics.resample_weights(60, 20, seed=1)
    torch.testing.assert_close(weights.sum(1), torch.ones(20))
    assert torch.equal(weights, metrics.resample_weights(60, 20, seed=1))
    assert not torch.equal(weights, metrics.resample_weights(60, 20, seed=2))


def test_means_and_calibration_errors_are_those_of_the_samples_drawn():
    weights = metrics.resample_weights(60, 20)
    losses = -PROBS.gather(1, Y[:, None])[:, 0].log()
    means = metrics.resampled_means(losses, weights)
    errors = metrics.resampled_ece(PROBS, Y, weights)
    for number, rows in enumerate(drawn(weights)):
        assert means[number].item() == pytest.approx(metrics.nll(PROBS[rows], Y[rows]), abs=1e-6)
        assert errors[number].item() == pytest.approx(metrics.ece(PROBS[rows], Y[rows]), abs=1e-6)


def test_all_samples_once_give_the_auroc_itself():
    inside, outside = torch.tensor([0.0, 1.0, 2.0, 2.0]), torch.tensor([1.0, 2.0, 5.0])
    weights = torch.full((1, 4), 0.25), torch.full((1, 3), 1 / 3)
    found = metrics.resampled_auroc(inside, outside, *weights)
    assert found.item() == pytest.approx(metrics.auroc(inside, outside))


def test_aurocs_of_resamples_spread_as_those_of_the_samples_drawn():
    inside, outside = torch.tensor(RNG.normal(size=300)), torch.tensor(RNG.normal(1.0, size=200))
    weights = metrics.resample_weights(300, 400, 1), metrics.resample_weights(200, 400, 2)
    found = metrics.resampled_auroc(inside, outside, *weights)
    pairs = zip(*map(drawn, weights), strict=True)
    exact = torch.tensor([metrics.auroc(inside[i], outside[o]) for i, o in pairs])
    assert (found - exact).abs().max() < 0.01
    assert found.std().item() == pytest.approx(exact.std().item(), rel=0.05)


def test_an_interval_holds_its_share_of_the_resamples():
    values = torch.arange(1001, dtype=torch.float64)
    assert metrics.interval(values) == pytest.approx((25.0, 975.0))
    assert metrics.interval(values, level=0.5) == pytest.approx((250.0, 750.0))
