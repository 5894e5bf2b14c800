import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from density_softmax.metrics import accuracy, confidence, ece, mece, reliability_bins


def binary(confidences: list[float], right: list[bool]) -> tuple[Tensor, Tensor]:
    """Two-class predictions of class 0 with the given confidences, each at least ½."""
    top = torch.tensor(confidences, dtype=torch.float64)
    return torch.stack([top, 1 - top], 1), torch.tensor([0 if r else 1 for r in right])


def sample(seed: int, num_samples: int = 200) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet([0.4] * 5, num_samples)
    return torch.from_numpy(probs), torch.from_numpy(rng.integers(5, size=num_samples))


def naive_ece(probs: Tensor, y: Tensor, num_bins: int) -> float:
    total = 0.0
    for b in range(num_bins):
        hits, confidences = [], []
        for p, label in zip(probs.tolist(), y.tolist(), strict=True):
            if b / num_bins < max(p) <= (b + 1) / num_bins:
                hits.append(p.index(max(p)) == label)
                confidences.append(max(p))
        if hits:
            gap = sum(hits) / len(hits) - sum(confidences) / len(hits)
            total += len(hits) / len(y) * abs(gap)
    return total


def test_ece_of_a_case_computed_by_hand() -> None:
    # 4 bins: (½, ¾] holds .6 right, .7 wrong: |½ − .65|; (¾, 1] holds .8, .9, 1, one wrong.
    probs, y = binary([0.6, 0.7, 0.8, 0.9, 1.0], [True, False, True, False, True])
    assert ece(probs, y, num_bins=4) == pytest.approx((2 * 0.15 + 3 * (0.9 - 2 / 3)) / 5)


def test_ece_of_perfect_calibration_is_zero() -> None:
    probs, y = binary([0.75] * 4 + [0.6] * 5, [True] * 3 + [False] + [True] * 3 + [False] * 2)
    assert ece(probs, y) == pytest.approx(0.0, abs=1e-15)


def test_ece_of_certain_and_wrong_is_one() -> None:
    assert ece(torch.eye(3), torch.tensor([1, 2, 0])) == 1.0


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), num_bins=st.integers(1, 30))
def test_ece_equals_a_naive_loop(seed: int, num_bins: int) -> None:
    probs, y = sample(seed, num_samples=50)
    assert ece(probs, y, num_bins) == pytest.approx(naive_ece(probs, y, num_bins), abs=1e-12)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), num_bins=st.integers(1, 10))
def test_ece_grows_if_bins_are_halved(seed: int, num_bins: int) -> None:
    probs, y = sample(seed)
    assert ece(probs, y, num_bins) <= ece(probs, y, 2 * num_bins) + 1e-12


def test_ece_in_one_bin_is_the_gap_of_the_means() -> None:
    probs, y = sample(0)
    assert ece(probs, y, 1) == pytest.approx(abs(accuracy(probs, y) - confidence(probs)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_bins", [10, 15, 20])
def test_confidence_on_an_edge_belongs_to_the_bin_below(dtype: torch.dtype, num_bins: int) -> None:
    numerators = torch.arange(num_bins // 2 + 1, num_bins + 1)
    top = (numerators / num_bins).to(torch.float32).to(dtype)
    counts = reliability_bins(
        torch.stack([top, 1 - top], 1), torch.zeros_like(numerators), num_bins
    )
    expected = torch.zeros(num_bins, dtype=torch.long)
    expected[numerators - 1] = 1
    assert torch.equal(counts.counts, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_confidence_beyond_an_edge_belongs_to_the_bin_above(dtype: torch.dtype) -> None:
    top = torch.nextafter(torch.tensor(10 / 15), torch.tensor(1.0)).to(dtype)
    bins = reliability_bins(torch.stack([top, 1 - top])[None], torch.tensor([0]))
    assert bins.counts.argmax() == 10


def test_confidence_one_shares_the_last_bin() -> None:
    probs, y = binary([0.99, 1.0, 1.0 + 1e-7], [True, True, True])
    assert reliability_bins(probs.clamp_min(0), y).counts.tolist() == [0] * 14 + [3]


def test_bins_partition_the_samples() -> None:
    probs, y = sample(1)
    bins = reliability_bins(probs, y)
    weights = bins.counts / len(y)
    assert bins.counts.sum() == len(y)
    assert (weights * bins.accuracy).nansum().item() == pytest.approx(accuracy(probs, y))
    assert (weights * bins.confidence).nansum().item() == pytest.approx(confidence(probs))


def test_mean_confidence_of_a_bin_lies_within_its_edges() -> None:
    bins = reliability_bins(*sample(2))
    filled = bins.counts > 0
    assert (bins.edges[:-1] < bins.confidence)[filled].all()
    assert (bins.confidence <= bins.edges[1:])[filled].all()


def test_empty_bins_have_neither_accuracy_nor_confidence() -> None:
    bins = reliability_bins(*sample(3), num_bins=15)
    empty = bins.counts == 0
    assert empty[:3].all()  # the largest of 5 probabilities is at least 1/5
    assert torch.equal(bins.accuracy.isnan(), empty)
    assert torch.equal(bins.confidence.isnan(), empty)


@pytest.mark.parametrize("num_bins", [1, 7, 15])
def test_mece_is_the_ece_of_the_errors_whatever_the_bins(num_bins: int) -> None:
    probs, y = sample(4)
    wrong = probs.argmax(1) != y
    assert mece(probs, y) == pytest.approx(ece(probs[wrong], y[wrong], num_bins), rel=1e-12)


def test_mece_without_errors_is_zero() -> None:
    assert mece(torch.eye(3), torch.tensor([0, 1, 2])) == 0.0


def test_no_bins_are_refused() -> None:
    with pytest.raises(ValueError, match="num_bins is 0: pass at least 1"):
        ece(torch.eye(2), torch.tensor([0, 1]), num_bins=0)
