"""Abstention: exact bounds, and a bound on errors that holds as often as it says; accuracies."""

import numpy as np
import pytest
from scipy import stats
from worlds import confidences, gaussians, overconfident_top

from density_softmax.decide.conformal import GuaranteeError
from density_softmax.decide.risk import (
    Abstention,
    Curve,
    Reliability,
    lower_bound,
    samples_for,
    upper_bound,
)

# So many of 500 splits may violate a bound that holds with 95 % each.
MOST_VIOLATIONS = stats.binom.ppf(0.999, 500, 0.05)


def test_bounds_are_those_of_clopper_and_pearson():
    for errors, answered in [(0, 10), (3, 50), (50, 50), (7, 1000)]:
        exact = stats.binomtest(errors, answered).proportion_ci(0.9, method="exact")
        numbers = np.array([errors]), np.array([answered])
        assert upper_bound(*numbers, 0.95)[0] == pytest.approx(exact.high, abs=1e-12)
        assert lower_bound(*numbers, 0.95)[0] == pytest.approx(exact.low, abs=1e-12)


def test_nothing_answered_bounds_nothing():
    none = np.array([0])
    assert upper_bound(none, none, 0.95) == 1
    assert lower_bound(none, none, 0.95) == 0


@pytest.mark.parametrize("errors", [0, 1, 5])
def test_so_many_samples_pass_the_test(errors):
    number = samples_for(errors, 0.02, 0.95)
    assert upper_bound(np.array([errors]), np.array([number]), 0.95)[0] <= 0.02
    assert upper_bound(np.array([errors]), np.array([number - 10]), 0.95)[0] > 0.02


def test_a_curve_counts_the_answered_and_their_errors():
    scores = np.array([0.9, 0.8, 0.8, 0.3])
    wrong = np.array([False, True, False, True])
    curve = Curve.of(np.array([0.95, 0.8, 0.0]), scores, wrong, 5, 0.95)
    assert curve.answered.tolist() == [0, 3, 4]
    assert curve.errors.tolist() == [0, 1, 2]
    assert curve.coverage.tolist() == [0, 0.6, 0.8]
    assert curve.risk[1:].tolist() == [1 / 3, 0.5]
    assert (curve.lower[1:] < curve.risk[1:]).all()
    assert (curve.upper[1:] > curve.risk[1:]).all()


@pytest.mark.parametrize("world", [confidences, overconfident_top])
@pytest.mark.parametrize("max_error", [0.02, 0.05])
def test_the_bound_is_violated_in_at_most_five_percent_of_500_splits(world, max_error):
    sure, wrong = world(500_000, np.random.default_rng(0))
    order = np.argsort(-sure)
    sure, risk = sure[order], np.cumsum(wrong[order]) / np.arange(1, len(sure) + 1)
    violated = 0
    for split in range(500):
        try:
            found = Abstention.of(
                *world(600, np.random.default_rng(split + 1)), max_error, 0.95, seed=split
            )
        except GuaranteeError:
            continue  # nothing is answered, and no answer is wrong
        answered = np.searchsorted(-sure, -found.threshold, side="right")
        violated += risk[answered - 1] > max_error
    assert violated <= MOST_VIOLATIONS


def test_more_is_answered_with_more_samples_and_a_looser_bound():
    answered = {
        (count, bound): np.mean(
            [
                Abstention.of(*confidences(count, np.random.default_rng(s)), bound, 0.95).coverage
                for s in range(20)
            ]
        )
        for count, bound in [(1000, 0.02), (4000, 0.02), (1000, 0.04)]
    }
    assert answered[1000, 0.02] > 0.7  # of .86 that the truth allows
    assert answered[4000, 0.02] > answered[1000, 0.02]
    assert answered[1000, 0.04] > answered[1000, 0.02]


def test_what_cannot_be_guaranteed_is_refused_with_what_can():
    sample = confidences(300, np.random.default_rng(1))
    with pytest.raises(GuaranteeError, match=r"support max_error=0\.\d+; at least \d+") as found:
        Abstention.of(*sample, 0.01, 0.95)
    said = str(found.value)
    supported = float(said.partition("support max_error=")[2].partition(";")[0])
    needed = int(said.partition("at least ")[2].partition(" ")[0])
    Abstention.of(*sample, supported, 0.95)
    Abstention.of(*confidences(2 * needed, np.random.default_rng(2)), 0.01, 0.95)


def test_a_model_that_is_too_bad_is_told_so():
    rng = np.random.default_rng(2)
    with pytest.raises(GuaranteeError, match="a better model would"):
        Abstention.of(rng.random(500), rng.random(500) < 0.5, 0.02, 0.95)


@pytest.mark.parametrize("decimals", [1, 12])  # confidences with ties, and without
def test_the_estimated_accuracy_of_the_samples_is_their_own(decimals):
    p, y = gaussians(500, np.random.default_rng(0))
    confidence, right = p.probs.max(1).round(decimals), p.probs.argmax(1) == y
    found = Reliability.of(confidence, right)
    assert found.estimate(found.sums(confidence)).value == pytest.approx(right.mean())
    none = Reliability.of(confidence, np.zeros(500, bool))
    assert none.estimate(none.sums(confidence)).value == pytest.approx(0.0)


def test_under_a_shift_the_interval_holds_both_estimates_of_the_accuracy():
    p, y = gaussians(500, np.random.default_rng(0))
    confidence, right = p.probs.max(1), p.probs.argmax(1) == y
    found, shifted = Reliability.of(confidence, right), 0.7 * confidence
    mean = shifted.mean() - found.mean_gap
    share = (shifted >= found.threshold).mean()
    value, low, high = found.estimate(found.sums(shifted))
    assert value == pytest.approx((mean + share) / 2)
    assert low < min(mean, share) < max(mean, share) < high
    near = found.estimate(found.sums(confidence))
    assert high - low > near.high - near.low


def test_a_curve_is_drawn(tmp_path):
    found = Abstention.of(*confidences(2000, np.random.default_rng(3)), 0.02, 0.95)
    found.curve.draw(tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").stat().st_size > 1000
