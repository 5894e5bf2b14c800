"""Sets and p-values: against other implementations, and their guarantees by simulation."""

import math

import numpy as np
import pytest
from mapie.classification import SplitConformalClassifier
from scipy import stats
from sklearn.base import BaseEstimator, ClassifierMixin
from worlds import gaussians, softmax

from density_softmax.decide.conformal import (
    MOST_KNOTS,
    ConformalSets,
    LabelScore,
    Quantiles,
    Ranks,
    WeightedQuantile,
    conformal_quantile,
    hashed_uniforms,
    smallest_sample,
)

SCORES = [
    LabelScore("lac"),
    LabelScore("aps"),
    LabelScore("aps", randomised=True),
    LabelScore("raps", penalty=0.1, free_ranks=2),
    LabelScore("raps", randomised=True, penalty=0.1, free_ranks=2),
]
names = [f"{score.kind}{' randomised' * score.randomised}" for score in SCORES]


class Given(ClassifierMixin, BaseEstimator):
    """A classifier whose inputs are its probabilities."""

    def __init__(self, classes=5):
        self.classes = classes
        self.classes_, self.is_fitted_ = np.arange(classes), True

    def fit(self, x, y):
        return self

    def predict_proba(self, x):
        return x

    def predict(self, x):
        return x.argmax(1)


def fitted(score, probs, y, coverage, classwise=False):
    true = score(probs)[np.arange(len(y)), y]
    return ConformalSets(
        score, coverage, Quantiles.of(true, coverage, y if classwise else None, probs.shape[1])
    )


def mapie_sets(kind, calibration, y, probs, coverage, **options):
    other = SplitConformalClassifier(
        Given(), confidence_level=coverage, conformity_score=kind, prefit=True, random_state=3
    )
    other.conformalize(calibration, y)
    sets = other.predict_set(probs, conformity_score_params=options)[1][:, :, 0]
    return sets.astype(bool)


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_lac_sets_are_those_of_mapie(coverage):
    rng = np.random.default_rng(0)
    (p, _, _), y = gaussians(301, rng)
    (q, _, _), _ = gaussians(500, rng)
    ours = fitted(LabelScore("lac"), p, y, coverage)(q)
    assert (ours == mapie_sets("lac", p, y, q, coverage)).all()


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_randomised_aps_sets_are_those_of_mapie_with_the_same_random_numbers(coverage):
    rng = np.random.default_rng(1)
    (p, _, _), y = gaussians(301, rng, sharpness=1.0)
    (q, _, _), _ = gaussians(500, rng, sharpness=1.0)
    score = LabelScore("aps", randomised=True)
    shares = [1 - np.random.RandomState(3).uniform(size=n) for n in (len(p), len(q))]
    true = score(p, shares[0])[np.arange(len(y)), y]
    ours = score(q, shares[1]) <= conformal_quantile(true, coverage)
    theirs = mapie_sets("aps", p, y, q, coverage, include_last_label="randomized")
    assert (ours == theirs).all()


@pytest.mark.parametrize("score", SCORES, ids=names)
def test_scores_are_those_of_the_definition_label_by_label(score):
    probs = softmax(np.random.default_rng(2).standard_normal((40, 6)))
    shares = np.random.default_rng(3).random(40) if score.randomised else np.ones(40)
    found = score(probs, shares)
    for row, share, scores in zip(probs, shares, found, strict=True):
        for label, p in enumerate(row):
            rank = (row >= p).sum()
            expected = row[row > p].sum() + share * p
            if score.kind == "lac":
                expected = 1 - p
            if score.kind == "raps":
                expected += 0.1 * max(0, rank - 2)
            assert scores[label] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("score", SCORES, ids=names)
def test_coverage_is_exact_over_500_splits(score):
    rng, n, alpha = np.random.default_rng(4), 60, 0.1
    shares = []
    for _ in range(500):
        (p, _, _), y = gaussians(n + 500, rng, sharpness=1.0)
        sets = fitted(score, p[:n], y[:n], 1 - alpha)(p[n:])
        shares.append(sets[np.arange(500), y[n:]].mean())
    error = 3.5 * np.std(shares) / math.sqrt(500)
    assert 1 - alpha - error <= np.mean(shares) <= 1 - alpha + 1 / (n + 1) + error


def test_every_class_is_covered_if_asked_for():
    rng, alpha = np.random.default_rng(5), 0.1
    found = np.zeros((300, 3))
    for split in range(300):
        (p, _, _), y = gaussians(400, rng, classes=3, sharpness=1.0)
        p = p * [0.4, 1.0, 1.0]  # a class that the model underrates
        p /= p.sum(1, keepdims=True)
        sets = fitted(LabelScore(), p[:200], y[:200], 1 - alpha, classwise=True)(p[200:])
        hits, labels = sets[np.arange(200), y[200:]], y[200:]
        found[split] = [hits[labels == c].mean() for c in range(3)]
    error = 3.5 * found.std(0) / math.sqrt(300)
    assert (found.mean(0) >= 1 - alpha - error).all()
    assert (found.mean(0) <= 1 - alpha + 1 / 50 + error).all()


def test_the_quantile_is_the_smallest_that_covers_and_infinite_if_none_does():
    scores = np.arange(1.0, 20.0)
    assert conformal_quantile(scores, 0.95) == 19  # ⌈20 · 0.95⌉
    assert conformal_quantile(scores, 0.9) == 18
    assert conformal_quantile(scores, 0.951) == math.inf
    assert conformal_quantile(scores[:0], 0.5) == math.inf
    assert smallest_sample(0.05) == 19
    assert smallest_sample(0.01) == 99


def test_too_few_samples_give_sets_of_everything_and_say_so():
    (p, _, _), y = gaussians(10, np.random.default_rng(6))
    sets = fitted(LabelScore(), p, y, 0.95)
    assert sets(p).all()
    assert "needs 19 samples" in sets.note
    assert "classes are in every set" in fitted(LabelScore(), p, y, 0.95, classwise=True).note


def test_weights_of_one_change_nothing():
    rng = np.random.default_rng(7)
    scores = rng.random(300)
    found = WeightedQuantile.of(scores, np.ones(300), 0.9)
    assert found.thresholds(np.ones(1))[0, 0] == conformal_quantile(scores, 0.9)
    assert found.effective == pytest.approx(300)


def test_weighted_quantiles_are_those_of_the_weighted_distribution():
    rng = np.random.default_rng(8)
    scores, weights, new = rng.random(50), rng.random(50), rng.random(20)
    found = WeightedQuantile.of(scores, weights, 0.8).thresholds(new)[:, 0]
    for weight, value in zip(new, found, strict=True):
        mass = np.append(weights, weight) / (weights.sum() + weight)
        points = np.append(scores, np.inf)
        reached = [s for s in points if mass[points <= s].sum() >= 0.8]
        assert value == min(reached)


def test_weights_restore_coverage_under_a_known_shift():
    """X ~ N(0, 1) becomes N(1, 1); the ratio of the densities is known."""
    rng, plain, weighted = np.random.default_rng(9), [], []

    def scores(x):
        return np.abs(rng.standard_normal(x.shape) * (0.5 + np.abs(x)))

    for _ in range(500):
        x, new = rng.standard_normal(300), rng.standard_normal(200) + 1
        s, truth = scores(x), scores(new)
        weights, of_new = np.exp(x - 0.5), np.exp(new - 0.5)
        limits = WeightedQuantile.of(s, weights, 0.9).thresholds(of_new)[:, 0]
        weighted.append((truth <= limits).mean())
        plain.append((truth <= conformal_quantile(s, 0.9)).mean())
    error = 3.5 * np.std(weighted) / math.sqrt(500)
    assert np.mean(plain) < 0.87
    assert 0.9 - error <= np.mean(weighted) <= 0.93


def test_p_values_are_counts_of_calibration_scores_at_least_as_large():
    rng = np.random.default_rng(10)
    scores = rng.integers(0, 30, 200).astype(float)  # with ties
    new = np.append(rng.integers(-2, 33, 100).astype(float), [math.inf, 7.5])
    expected = [(1 + (scores >= s).sum()) / 201 for s in new]
    assert Ranks.of(scores).p_values(new) == pytest.approx(expected, abs=0)


def test_p_values_of_a_kept_part_are_never_smaller_and_exact_for_the_largest_scores():
    rng = np.random.default_rng(11)
    scores, new = rng.standard_normal(10_000), rng.standard_normal(3000)
    kept = Ranks.of(scores)
    exact = Ranks.of(scores, most=10_000).p_values(new)
    found = kept.p_values(new)
    assert len(kept.values) <= MOST_KNOTS
    assert (found >= exact).all()
    assert (found - exact).max() < 0.002
    rare = exact < 0.09
    assert (found[rare] == exact[rare]).all()


def test_at_most_the_asked_share_has_a_small_p_value():
    rng = np.random.default_rng(12)
    for rate in (0.01, 0.1):
        flagged = [
            (Ranks.of(rng.standard_normal(199)).p_values(rng.standard_normal(500)) <= rate).mean()
            for _ in range(500)
        ]
        assert np.mean(flagged) <= rate + 3.5 * np.std(flagged) / math.sqrt(500)


def test_a_hash_of_probabilities_is_uniform_and_repeats_itself():
    rows = softmax(np.random.default_rng(13).standard_normal((20_000, 4)))
    found = hashed_uniforms(rows)
    assert stats.kstest(found, "uniform").pvalue > 1e-3
    assert (hashed_uniforms(rows[5:7]) == found[5:7]).all()


def test_an_empty_set_becomes_one_that_says_how_little_is_known():
    (p, _, _), y = gaussians(1000, np.random.default_rng(14), sharpness=4.0)
    sets = fitted(LabelScore(), p, y, 0.5)
    unknown = np.full((1, 5), 0.2)
    torn = np.array([[0.5, 0.5, 0.0, 0.0, 0.0]])
    assert not sets(unknown).any()
    assert sets.helpful(unknown).all()  # labels that are equally likely are treated alike
    assert sets.helpful(torn).tolist() == [[True, True, False, False, False]]
    assert sets.helpful(np.array([[0.3, 0.25, 0.2, 0.15, 0.1]])).sum() == 2
    assert (sets.helpful(p) >= sets(p)).all()
