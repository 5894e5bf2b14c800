import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from density_softmax.metrics import paired_t_test

values = st.lists(
    st.tuples(st.floats(-1e3, 1e3, width=16), st.floats(-1e3, 1e3, width=16)),
    min_size=2,
    max_size=12,
).map(lambda pairs: tuple(zip(*pairs, strict=True)))


@given(values)
def test_p_is_that_of_scipy(pairs: tuple[tuple[float, ...], tuple[float, ...]]) -> None:
    a, b = pairs
    d = np.subtract(a, b)
    # Elsewhere SciPy has a NaN or tests rounding.
    if np.ptp(d) > 1e-6 * np.abs(d).max() and np.abs(d).max() > 1e-6 * np.abs([a, b]).max():
        assert paired_t_test(a, b) == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=1e-6)


def t_of(d: list[float]) -> float:
    return np.mean(d) / (np.std(d, ddof=1) / math.sqrt(len(d)))


def test_p_has_its_closed_form_for_two_and_three_pairs() -> None:
    two, three = [0.3, 0.5], [0.1, 0.25, 0.3]
    assert paired_t_test(two, [0, 0]) == pytest.approx(1 - 2 / math.pi * math.atan(t_of(two)))
    t = t_of(three)
    assert paired_t_test(three, [0, 0, 0]) == pytest.approx(1 - t / math.sqrt(t**2 + 2))


def test_pairs_are_compared_and_not_groups() -> None:
    spread = np.array([0.1, 0.5, 0.9, 0.3])  # far more than the difference
    better = spread - np.array([0.010, 0.011, 0.009, 0.010])
    assert paired_t_test(spread.tolist(), better.tolist()) < 0.001
    assert stats.ttest_ind(spread, better).pvalue > 0.9


@given(values)
def test_neither_side_is_favoured(pairs: tuple[tuple[float, ...], tuple[float, ...]]) -> None:
    assert paired_t_test(*pairs) == pytest.approx(paired_t_test(*pairs[::-1]))


def test_the_same_difference_everywhere_is_certain_and_none_is_chance() -> None:
    assert paired_t_test([1.0, 2.0, 3.0], [2.0, 3.0, 4.0]) == 0
    assert paired_t_test([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == 1
    assert paired_t_test([100.0] * 3, [100.0 + 1e-12] * 3) == 1  # rounding is no difference


@pytest.mark.parametrize(("a", "b"), [([1.0], [2.0]), ([1.0, 2.0], [1.0]), ([], [])])
def test_what_is_no_pairs_is_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match="same length, at least 2"):
        paired_t_test(a, b)


def test_infinite_values_are_refused() -> None:
    with pytest.raises(ValueError, match="infinite"):
        paired_t_test([1.0, math.inf], [1.0, 2.0])
