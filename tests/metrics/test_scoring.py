import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss
from torch import Tensor

from density_softmax.metrics import (
    accuracy,
    aurc,
    brier,
    confidence,
    ece,
    entropy,
    mece,
    nll,
    reliability_bins,
    risk_coverage,
)

LABELLED = [nll, accuracy, brier, ece, mece, reliability_bins, risk_coverage, aurc]


def sample(seed: int, num_samples: int = 40, num_classes: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(num_samples, num_classes, generator=generator)
    return logits.softmax(1), torch.randint(num_classes, (num_samples,), generator=generator)


def test_nll_equals_log_loss_of_scikit_learn() -> None:
    probs, y = sample(0)
    probs = probs.double() / probs.double().sum(1, keepdim=True)
    assert nll(probs, y) == pytest.approx(log_loss(y, probs, labels=range(4)), rel=1e-12)


def test_nll_of_probability_zero_is_log_of_smallest_float32() -> None:
    probs, y = torch.tensor([[1.0, 0.0]]), torch.tensor([1])
    assert nll(probs, y) == pytest.approx(-math.log(np.finfo(np.float32).tiny), rel=1e-12)


def test_nll_of_mean_of_members_is_below_mean_of_nlls() -> None:
    (first, y), (second, _) = sample(1), sample(2)
    assert nll((first + second) / 2, y) < (nll(first, y) + nll(second, y)) / 2


def test_brier_is_the_sum_of_one_vs_rest_scores() -> None:
    probs, y = sample(3)
    one_vs_rest = [brier_score_loss(y == k, probs[:, k], pos_label=True) for k in range(4)]
    assert brier(probs, y) == pytest.approx(sum(one_vs_rest), rel=1e-6)


def test_brier_of_certain_answers_is_0_if_right_and_2_if_wrong() -> None:
    certain = torch.eye(3)
    assert brier(certain, torch.tensor([0, 1, 2])) == 0.0
    assert brier(certain, torch.tensor([1, 2, 0])) == 2.0


def test_accuracy_counts_the_largest_probability() -> None:
    probs = torch.tensor([[0.6, 0.4], [0.3, 0.7], [0.2, 0.8], [0.9, 0.1]])
    assert accuracy(probs, torch.tensor([0, 1, 0, 0])) == 0.75


def test_tied_classes_resolve_to_the_lowest() -> None:
    uniform = torch.full((4, 4), 0.25)
    assert accuracy(uniform, torch.zeros(4, dtype=torch.long)) == 1.0
    assert accuracy(uniform, torch.full((4,), 3)) == 0.0


def test_confidence_is_the_mean_of_row_maxima() -> None:
    assert confidence(torch.tensor([[0.75, 0.25], [0.5, 0.5]])) == 0.625


def test_entropy_of_a_certain_answer_is_exactly_zero() -> None:
    assert torch.equal(entropy(torch.eye(3)), torch.zeros(3, dtype=torch.float64))


def test_entropy_of_uniform_is_log_of_number_of_classes() -> None:
    uniform = torch.full((1, 8), 1 / 8)
    assert entropy(uniform).item() == pytest.approx(math.log(8), rel=1e-12)
    assert entropy(uniform, base=2).item() == pytest.approx(3.0, rel=1e-12)


def test_entropy_is_the_expected_nll_under_the_prediction_itself() -> None:
    probs = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    expected = sum(p.item() * nll(probs, torch.tensor([k])) for k, p in enumerate(probs[0]))
    assert entropy(probs).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("base", [1.0, 0.5, -2.0])
def test_entropy_rejects_a_base_without_logarithm(base: float) -> None:
    with pytest.raises(ValueError, match=f"base is {base}"):
        entropy(torch.eye(2), base=base)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), num_samples=st.integers(1, 30))
@pytest.mark.parametrize("metric", [nll, accuracy, brier, ece, mece, aurc])
def test_order_of_samples_does_not_matter(metric, seed: int, num_samples: int) -> None:
    probs, y = sample(seed, num_samples)
    shuffle = torch.from_numpy(np.random.default_rng(seed).permutation(num_samples))
    assert metric(probs[shuffle], y[shuffle]) == pytest.approx(metric(probs, y), abs=1e-12)


@pytest.mark.parametrize("metric", [nll, brier, ece, mece])
def test_a_million_float32_samples_lose_no_digits(metric) -> None:
    probs, y = sample(4, num_samples=50)
    once = metric(probs, y)
    assert metric(probs.repeat(20_000, 1), y.repeat(20_000)) == pytest.approx(once, rel=1e-11)


def test_probabilities_that_require_grad_are_only_read() -> None:
    probs, y = sample(5)
    assert nll(probs.requires_grad_(), y) == nll(probs.detach(), y)
    assert not entropy(probs).requires_grad


@pytest.mark.parametrize("metric", LABELLED)
class TestBadInput:
    def test_no_samples(self, metric) -> None:
        with pytest.raises(ValueError, match=r"shape \(0, 3\).*at least one"):
            metric(torch.empty(0, 3), torch.empty(0, dtype=torch.long))

    def test_probs_of_one_dimension(self, metric) -> None:
        with pytest.raises(ValueError, match=r"shape \(3,\).*\(samples, classes\)"):
            metric(torch.full((3,), 1 / 3), torch.zeros(3, dtype=torch.long))

    @pytest.mark.parametrize("shape", [(2,), (3, 1), (3, 3)])
    def test_y_of_another_shape(self, metric, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"one integer class index per row, \(3,\)"):
            metric(torch.eye(3), torch.zeros(shape, dtype=torch.long))

    def test_labels_that_are_not_integers(self, metric) -> None:
        with pytest.raises(ValueError, match=r"float32.*integer class index"):
            metric(torch.eye(3), torch.zeros(3))

    @pytest.mark.parametrize("label", [-1, 3])
    def test_label_out_of_range(self, metric, label: int) -> None:
        with pytest.raises(ValueError, match=rf"1 of the labels.*first is {label}.*from 0 to 2"):
            metric(torch.eye(3), torch.tensor([0, label, 2]))

    @pytest.mark.parametrize("row", [[-1.0, 2.0], [0.9, 0.9], [math.nan, 1.0], [math.inf, 0.0]])
    def test_row_that_is_no_distribution(self, metric, row: list[float]) -> None:
        with pytest.raises(ValueError, match=r"row 1 of probs is not a distribution.*softmax"):
            metric(torch.tensor([[0.5, 0.5], row]), torch.tensor([0, 1]))


def test_half_precision_probabilities_are_distributions() -> None:
    probs, y = sample(6, num_classes=100)
    assert nll(probs.bfloat16(), y) == pytest.approx(nll(probs, y), rel=1e-2)
