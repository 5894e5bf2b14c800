"""Classifiers of scikit-learn whose probabilities the density of their inputs scales."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris, make_moons
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

import density_softmax as ds
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
@parametrize_with_checks(
    [
        DensityScaledClassifier(),
        DensityScaledClassifier(DecisionTreeClassifier(max_depth=3, random_state=0)),
    ]
)
def test_it_keeps_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


def test_labels_are_those_of_the_classifier(scaled, forest, moons):
    X = np.concatenate([moons[0], 100 * moons[0]])
    np.testing.assert_array_equal(scaled.predict(X), forest.predict(X))


def test_labels_are_kept_where_they_are_not_the_likeliest_class(moons):
    X, y = moons
    strict = FixedThresholdClassifier(LogisticRegression(), threshold=0.9)
    scaled = DensityScaledClassifier(strict, random_state=0).fit(X, y)
    np.testing.assert_array_equal(scaled.predict(X), scaled.estimator_.predict(X))
    likeliest = scaled.predict_proba(X).argmax(1)
    assert (scaled.predict(X) != likeliest).any()
    answered = scaled.predict(X, abstain=0.05)
    known = ~pd.isna(answered)
    np.testing.assert_array_equal(answered[known], scaled.predict(X)[known])


def test_an_explanation_adds_up_to_the_score_and_names_the_column(scaled, moons):
    odd = np.array([[0.5, 0.2], [0.5, 9.0]])
    why = scaled.explain(odd)
    np.testing.assert_allclose(why.epistemic, -scaled.score_samples(odd), rtol=1e-12)
    np.testing.assert_allclose(why.parts.sum(1), why.epistemic)
    np.testing.assert_allclose(why.base + why.columns.sum(1), why.epistemic)
    assert why.base == pytest.approx(scaled.heldout_epistemic_[0])
    assert why.strongest(1)[0][0] == "1"
    with pytest.raises(UserError, match="pass a row of 2 numbers"):
        scaled.explain(odd, reference=[0.0])


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


# Weights


def test_whole_weights_are_repeated_rows(moons):
    X, y = moons
    weight = np.random.default_rng(0).integers(0, 4, len(X))
    weighted, repeated = (
        DensityScaledClassifier(LogisticRegression(), random_state=0).fit(*rows)
        for rows in ((X, y, weight), (X.repeat(weight, axis=0), y.repeat(weight)))
    )
    np.testing.assert_array_equal(weighted.predict_proba(X), repeated.predict_proba(X))


def test_weights_of_zero_are_refused(moons):
    with pytest.raises(UserError, match="all weights are 0"):
        DensityScaledClassifier().fit(*moons, sample_weight=np.zeros(500))


# Pipelines


@pytest.fixture(scope="module")
def mixed():
    generator = np.random.default_rng(0)
    size, place = generator.normal(size=600), generator.choice(["a", "b"], 600).astype(object)
    frame = pd.DataFrame({"size": size, "place": place})
    labels = np.where((size > 0) ^ (place == "b"), "high", "low")
    frame.loc[::20, "size"] = np.nan
    frame.loc[5::20, "place"] = None
    return frame, labels


def mixed_pipeline():
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()), ["size"]),
        (OneHotEncoder(handle_unknown="ignore"), ["place"]),  # sparse
    )
    return make_pipeline(columns, DecisionTreeClassifier(max_depth=5, random_state=0))


def test_a_pipeline_of_mixed_columns_is_scaled(mixed):
    X, y = mixed
    scaled = DensityScaledClassifier(mixed_pipeline(), random_state=0).fit(X, y)
    assert scaled.score(X, y) >= 0.9
    assert list(scaled.feature_names_in_) == ["size", "place"]
    far = pd.DataFrame({"size": [1e6, 0.5], "place": ["a", "a"]})
    assert list(scaled.predict(far, abstain=0.05)) == [None, "high"]
    assert scaled.predict_proba(far)[0].max() <= 0.51
    why = scaled.explain(far)
    assert why.strongest(0)[0][0] == "pipeline__size"
    assert "onehotencoder__place_a" in why.column_names
    np.testing.assert_allclose(why.base + why.columns.sum(1), -scaled.score_samples(far))


# Attached


@pytest.fixture(scope="module")
def attached(moons, forest):
    train = make_moons(300, noise=0.15, random_state=1)
    return ds.attach(forest, train=train, calibration=moons, progress=False)


def test_attach_takes_a_classifier_and_keeps_its_labels(attached, forest, moons):
    assert isinstance(attached, DensityScaledClassifier)
    assert attached.estimator_ is forest
    X = np.concatenate([moons[0], 100 * moons[0]])
    np.testing.assert_array_equal(attached.predict(X), forest.predict(X))
    np.testing.assert_allclose(attached.predict_proba(1e6 * moons[0]), 0.5, atol=1e-3)
    assert pd.isna(attached.predict(1e6 * moons[0], abstain=0.05)).all()


def test_no_layers_can_be_asked_of_any_classifier(attached, forest, moons):
    train = make_moons(300, noise=0.15, random_state=1)
    for none in ((), []):
        again = ds.attach(forest, train=train, calibration=moons, layers=none, progress=False)
        np.testing.assert_array_equal(
            again.predict_proba(moons[0]), attached.predict_proba(moons[0])
        )


def test_what_is_attached_can_be_cloned_and_fitted_again(attached, forest, moons):
    again = clone(attached).fit(*moons)
    assert again.estimator_ is not forest
    assert again.score(*moons) >= 0.9


def test_attach_takes_a_pipeline_of_mixed_columns(mixed):
    (X, y), (fresh, labels) = ((part[:400] for part in mixed), (part[400:] for part in mixed))
    pipeline = mixed_pipeline().fit(X, y)
    with warnings.catch_warnings():  # rows of two columns repeat where one is missing
        warnings.simplefilter("ignore", CalibrationWarning)
        scaled = ds.attach(pipeline, train=(X, y), calibration=(fresh, labels), progress=False)
    np.testing.assert_array_equal(scaled.predict(fresh), pipeline.predict(fresh))
    assert scaled.predict(fresh.assign(size=1e6), abstain=0.05)[0] is None


def test_a_classifier_of_a_data_frame_is_asked_with_its_names(moons):
    X, y = pd.DataFrame(moons[0], columns=["a", "b"]), moons[1]
    trained = DecisionTreeClassifier(max_depth=3).fit(X[:300], y[:300])
    rows = {"train": (X[:300], y[:300]), "calibration": (X[300:], y[300:])}
    scaled = ds.attach(trained, **rows, progress=False)
    np.testing.assert_array_equal(scaled.predict(X), trained.predict(X))
    with pytest.raises(ValueError, match="feature names should match"):
        scaled.predict(X[["b", "a"]])


def test_attach_prints_what_it_changed(forest, moons, capsys):
    ds.attach(forest, train=make_moons(300, noise=0.15, random_state=1), calibration=moons)
    printed = capsys.readouterr().out
    assert "attached to a RandomForestClassifier that reads 2 columns" in printed
    assert "NLL" in printed


def test_calibration_rows_that_were_trained_on_are_refused(forest):
    train = make_moons(300, noise=0.15, random_state=1)
    with pytest.raises(UserError, match="are training samples"):
        ds.attach(forest, train=train, calibration=train)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (RandomForestClassifier(), {}, "is not fitted: call its fit"),
        (object(), {}, "object has no predict_proba"),
        ("forest", {"layers": ["a"]}, "layers: only a torch model has it"),
        ("forest", {"method": "knn"}, "method: only a torch model has it"),
        ("forest", {"train": [1, 2, 3]}, r"train: pass a pair \(X, y\)"),
    ],
)
def test_what_cannot_be_attached_is_named(model, options, message, forest, moons):
    given = {"train": moons, "calibration": moons} | options
    with pytest.raises(UserError, match=message):
        ds.attach(forest if model == "forest" else model, **given)
