import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from density_softmax.metrics import accuracy, aurc, risk_coverage

quick = settings(deadline=None, max_examples=30)
# (uncertainty, wrong) of each sample; few levels of uncertainty make ties frequent.
answers = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=5)


def classified(wrong: list[bool]) -> tuple[Tensor, Tensor]:
    """Certain predictions of class 0, right or wrong as told."""
    return torch.tensor([[1.0, 0.0]] * len(wrong)), torch.tensor([int(w) for w in wrong])


def mean_over_tie_breaks(uncertainty: list[int], wrong: list[bool]) -> np.ndarray:
    """Risk at each coverage, averaged over every order that the uncertainties allow."""
    curves = []
    for order in itertools.permutations(range(len(wrong))):
        if all(uncertainty[i] <= uncertainty[j] for i, j in itertools.pairwise(order)):
            errors = np.array([wrong[i] for i in order], dtype=float)
            curves.append(errors.cumsum() / np.arange(1, len(wrong) + 1))
    return np.mean(curves, axis=0)


def test_curve_of_a_case_computed_by_hand() -> None:
    probs, y = classified([True, False, False, True])
    coverage, risk = risk_coverage(probs, y, torch.tensor([0.9, 0.1, 0.3, 0.2]))
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert risk.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 1 / 2])
    assert aurc(probs, y, torch.tensor([0.9, 0.1, 0.3, 0.2])) == pytest.approx((4 / 3) / 4)


@quick
@given(answers)
def test_risk_is_the_mean_over_all_ways_to_break_ties(answers: list[tuple[int, bool]]) -> None:
    uncertainty, wrong = map(list, zip(*answers, strict=True))
    _, risk = risk_coverage(*classified(wrong), torch.tensor(uncertainty))
    np.testing.assert_allclose(risk, mean_over_tie_breaks(uncertainty, wrong), atol=1e-12)


@quick
@given(answers, st.randoms(use_true_random=False))
def test_order_of_samples_does_not_matter(answers: list[tuple[int, bool]], random) -> None:
    areas = []
    for _ in range(2):
        uncertainty, wrong = map(list, zip(*answers, strict=True))
        areas.append(aurc(*classified(wrong), torch.tensor(uncertainty)))
        random.shuffle(answers)
    assert areas[0] == areas[1]


def test_full_coverage_has_the_error_rate() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(50, 3, generator=generator).softmax(1)
    y = torch.randint(3, (50,), generator=generator)
    coverage, risk = risk_coverage(probs, y)
    assert coverage[-1].item() == 1.0
    assert risk[-1].item() == pytest.approx(1 - accuracy(probs, y))


def test_constant_uncertainty_has_the_error_rate_at_every_coverage() -> None:
    probs, y = classified([True, False, False, False])
    _, risk = risk_coverage(probs, y, torch.zeros(4))
    assert risk.tolist() == [0.25] * 4


def test_uncertainty_defaults_to_the_smallness_of_the_largest_probability() -> None:
    probs = torch.tensor([[0.6, 0.4], [0.9, 0.1], [0.3, 0.7]])
    y = torch.tensor([1, 0, 1])
    assert aurc(probs, y) == aurc(probs, y, -probs.amax(1))
    assert risk_coverage(probs, y)[1].tolist() == pytest.approx([0, 0, 1 / 3])


def test_withholding_errors_first_is_best_and_last_is_worst() -> None:
    wrong = [True, False, True, False, False]
    probs, y = classified(wrong)
    errors = torch.tensor(wrong).double()
    best, chance, worst = (aurc(probs, y, u) for u in (errors, torch.zeros(5), -errors))
    assert best == pytest.approx((1 / 4 + 2 / 5) / 5)
    assert best < chance < worst


def test_infinite_uncertainty_is_withheld_first() -> None:
    probs, y = classified([True, False])
    _, risk = risk_coverage(probs, y, torch.tensor([math.inf, 3e38]))
    assert risk.tolist() == [0.0, 0.5]


def test_nan_uncertainty_is_refused() -> None:
    with pytest.raises(ValueError, match="1 of 2 values in uncertainty are NaN"):
        aurc(*classified([True, False]), torch.tensor([math.nan, 0.0]))


def test_uncertainty_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="3 values beside 2 rows of probs: pass one"):
        aurc(*classified([True, False]), torch.zeros(3))
