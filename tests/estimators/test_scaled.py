"""Classifiers of scikit-learn whose probabilities the density of their inputs scales."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris, make_moons
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

from density_softmax import DensityScaledClassifier
from density_softmax.errors import CalibrationWarning, UserError


@pytest.fixture(scope="module")
def moons():
    return make_moons(500, noise=0.15, random_state=0)


@pytest.fixture(scope="module")
def forest(moons):
    X, y = make_moons(300, noise=0.15, random_state=1)
    return RandomForestClassifier(20, random_state=0).fit(X, y)


@pytest.fixture(scope="module")
def scaled(moons, forest):
    return DensityScaledClassifier(FrozenEstimator(forest), random_state=0).fit(*moons)


@pytest.mark.filterwarnings("ignore:.*rows are held out to calibrate on")
@parametrize_with_checks([DensityScaledClassifier()])
def test_it_keeps_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


def test_labels_are_those_of_the_classifier(scaled, forest, moons):
    X = np.concatenate([moons[0], 100 * moons[0]])
    np.testing.assert_array_equal(scaled.predict(X), forest.predict(X))


def test_far_away_probabilities_are_uniform_and_the_model_abstains(scaled):
    far = 1e6 * np.array([[1.0, 1.0], [-1.0, 2.0]])
    np.testing.assert_allclose(scaled.predict_proba(far), 0.5, atol=1e-3)
    assert pd.isna(scaled.predict(far, abstain=0.05)).all()


def test_scores_fall_with_the_distance(scaled, moons):
    start = moons[0][:20]
    scores = [scaled.score_samples(start * k).mean() for k in (1, 3, 10, 100)]
    assert scores == sorted(scores, reverse=True)


def test_a_classifier_that_is_not_frozen_is_trained_and_left_alone(moons):
    plain = LogisticRegression()
    scaled = DensityScaledClassifier(plain, random_state=0).fit(*moons)
    assert not hasattr(plain, "classes_")
    assert scaled.score(*moons) >= 0.85


def test_it_ends_a_pipeline():
    X, y = load_iris(return_X_y=True, as_frame=True)
    names = y.map({0: "setosa", 1: "versicolor", 2: "virginica"})
    scaled = DensityScaledClassifier(LogisticRegression(max_iter=5000), random_state=0)
    pipeline = make_pipeline(PolynomialFeatures(2), scaled).fit(X, names)
    assert pipeline.score(X, names) >= 0.95
    assert pd.isna(pipeline.predict(X * 50, abstain=0.1)).all()


def test_labels_that_a_frozen_classifier_does_not_know_are_named(forest, moons):
    frozen = DensityScaledClassifier(FrozenEstimator(forest))
    with pytest.raises(UserError, match=r"does not know: .*2"):
        frozen.fit(moons[0], moons[1] + 1)


def test_few_rows_to_calibrate_on_are_warned_of(forest, moons):
    X, y = (part[:40] for part in moons)
    with pytest.warns(CalibrationWarning, match="8 of 40 rows"):
        DensityScaledClassifier(FrozenEstimator(forest)).fit(X, y)
