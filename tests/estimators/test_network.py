"""The scikit-learn classifier: scikit-learn's own contract, and what it promises beyond."""

import pickle
import random

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, make_blobs, make_moons
from sklearn.exceptions import NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

from density_softmax import DensitySoftmaxClassifier
from density_softmax.data.sources import hold_out_by_class
from density_softmax.errors import CalibrationWarning, UserError
from density_softmax.estimators.abstaining import MOST_COPIES, weighted_rows
from density_softmax.nn.densities import GaussianMixtureDensity, TiedMixtureDensity


def quick(**settings):
    """A classifier whose training is short, where nothing depends on its length."""
    return DensitySoftmaxClassifier(**{"epochs": 3, "width": 16, "random_state": 0} | settings)


@pytest.fixture(scope="module")
def moons():
    return make_moons(500, noise=0.15, random_state=0)


@pytest.fixture(scope="module")
def on_moons(moons):
    return DensitySoftmaxClassifier(random_state=0).fit(*moons)


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


def ring(radius, num_points=36):
    angles = np.linspace(0, 2 * np.pi, num_points, endpoint=False)
    return radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)


# Where a property does not depend on how many rows there are.
FEW_ROWS = pytest.mark.filterwarnings("ignore:.*rows are held out to calibrate on")


@FEW_ROWS
@parametrize_with_checks([DensitySoftmaxClassifier(width=16, epochs=20)])
def test_it_keeps_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


# Why a row is strange


def test_an_explanation_adds_up_to_the_score_and_names_the_column(iris, tmp_path):
    X = pd.DataFrame(
        iris[0], columns=["sepal length", "sepal width", "petal length", "petal width"]
    )
    classifier = quick().fit(X, iris[1])
    odd = X.iloc[[0, 60]].assign(**{"petal width": [0.2, 20.0]})
    why = classifier.explain(odd)
    np.testing.assert_allclose(why.epistemic, -classifier.score_samples(odd))
    np.testing.assert_allclose(why.parts.sum(1), why.epistemic)
    np.testing.assert_allclose(why.base + why.columns.sum(1), why.epistemic)
    assert why.base == pytest.approx(classifier.heldout_epistemic_[0])
    assert why.strongest(1)[0][0] == "petal width"
    why.draw(tmp_path / "why.svg", row=1)
    assert "petal width" in (tmp_path / "why.svg").read_text()
    with pytest.raises(NotFittedError):
        quick().explain(odd)


@FEW_ROWS
def test_rows_are_explained_where_nothing_was_held_out():
    classifier = quick().fit([[0.0], [1.0]], ["a", "b"])
    why = classifier.explain([[5.0]])
    np.testing.assert_allclose(why.base + why.columns.sum(1), why.epistemic)


# What it learns


def test_iris_is_learned(iris):
    assert cross_val_score(DensitySoftmaxClassifier(random_state=0), *iris, cv=5).mean() >= 0.93


@pytest.mark.parametrize("load", [load_breast_cancer, load_digits])
def test_real_tables_are_learned(load):
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    classifier = DensitySoftmaxClassifier(random_state=0)
    assert cross_val_score(classifier, *load(return_X_y=True), cv=folds).mean() >= 0.95


@pytest.mark.parametrize("density", ["gaussian", "gaussian_mixture", "radial", "realnvp"])
def test_every_density_learns_and_is_uniform_far_away(density, moons):
    classifier = DensitySoftmaxClassifier(density=density, random_state=0).fit(*moons)
    assert classifier.score(*moons) >= 0.93
    assert np.abs(classifier.predict_proba(ring(1e4)) - 0.5).max() <= 1e-3


def test_far_away_probabilities_are_uniform_and_the_density_is_lower_than_anywhere(on_moons, moons):
    far = ring(100)
    assert np.abs(on_moons.predict_proba(far) - 0.5).max() <= 1e-3
    assert on_moons.score_samples(far).max() < on_moons.score_samples(moons[0]).min()


def test_the_density_falls_without_end(on_moons):
    scores = [on_moons.score_samples(ring(radius)).max() for radius in (10, 100, 1e3, 1e6)]
    assert scores == sorted(scores, reverse=True)
    assert on_moons.score_samples(ring(1e200)).max() == -np.inf
    np.testing.assert_allclose(on_moons.predict_proba(ring(1e200)), 0.5)


def test_where_probabilities_are_equal_the_label_is_still_that_of_the_logits(on_moons):
    far = ring(1e8)
    model = on_moons.model_
    assert (model.predict(far).probs == 0.5).all()
    with torch.no_grad():
        logits = model.head(model.encode(torch.from_numpy(far)))
    labels = on_moons.predict(far)
    assert len(set(labels)) == 2
    np.testing.assert_array_equal(labels, logits.argmax(-1))
    np.testing.assert_array_equal(labels, on_moons.predict_proba(far).argmax(-1))


def test_uncertainty_is_entropy_of_the_logits_and_minus_the_score_of_samples(on_moons, moons):
    aleatoric, epistemic = on_moons.uncertainty(moons[0])
    np.testing.assert_array_equal(epistemic, -on_moons.score_samples(moons[0]))
    # Rows of typical density keep the plain softmax, whose entropy is the aleatoric part.
    model = on_moons.model_
    with torch.no_grad():
        _, evidence = model.logits_and_evidence(model.features(torch.tensor(moons[0])))
    typical = (evidence.log_prob >= model.scale.threshold).numpy()
    assert typical.mean() > 0.8
    probs = on_moons.predict_proba(moons[0])[typical]
    entropy = -(probs * np.log(probs)).sum(1)
    np.testing.assert_allclose(entropy, aleatoric[typical], atol=1e-5)


# Abstaining


def test_far_rows_are_abstained_from_and_the_others_keep_their_label(on_moons, moons):
    X = moons[0]
    labels = on_moons.predict(X, abstain=0.05)
    known = ~pd.isna(labels)
    np.testing.assert_array_equal(labels[known], on_moons.predict(X)[known])
    assert pd.isna(on_moons.predict(ring(100), abstain=0.05)).all()
    assert pd.isna(on_moons.predict(ring(1e200), abstain=0.05)).all()


def test_the_false_alarm_rate_is_kept_in_the_mean():
    # The mean of k/(n + 1) over fits is exact; 12 fits of 1,000 rows know it to about 0.01.
    rates = []
    for seed in range(12):
        X, y = make_blobs(1200, centers=3, cluster_std=3.0, random_state=seed)
        classifier = quick(random_state=seed).fit(X[:200], y[:200])
        rates.append(pd.isna(classifier.predict(X[200:], abstain=0.1)).mean())
    assert 0.06 <= np.mean(rates) <= 0.13


def test_a_higher_rate_abstains_from_more_rows(on_moons, moons):
    few, more = (pd.isna(on_moons.predict(moons[0], abstain=rate)) for rate in (0.05, 0.2))
    assert (few <= more).all()
    assert few.sum() < more.sum()


@pytest.mark.parametrize("labels", [[-1, 0], ["none", ""], [False, True], [0.0, 1.0]])
def test_no_label_can_be_mistaken_for_an_abstention(labels, moons):
    X, y = moons
    classifier = quick().fit(X, np.array(labels)[y])
    given = classifier.predict(np.concatenate([X, ring(1e3)]), abstain=0.1)
    assert given.dtype == object
    assert all(label is None for label in given[len(X) :])
    assert set(given) - {None} == set(labels)


@pytest.mark.parametrize("rate", [0, 1, -0.1, 1.5, 0.009, float("nan")])
def test_a_rate_that_the_held_out_rows_cannot_tell_is_refused(rate, on_moons):
    assert len(on_moons.heldout_epistemic_) == 100
    with pytest.raises(UserError, match=rf"abstain={rate}.*1/101"):
        on_moons.predict(ring(1), abstain=rate)
    on_moons.predict(ring(1), abstain=1 / 101)


def test_a_rate_that_is_no_number_is_refused(on_moons):
    with pytest.raises(UserError, match="abstain='a': choose a number"):
        on_moons.predict(ring(1), abstain="a")


# Inputs and labels


def test_units_of_the_columns_make_no_difference(iris):
    X, y = iris
    scaled = X * [2.0**20, 2.0**-20, 4.0, 1.0]  # powers of two: no rounding
    plain, other = quick().fit(X, y), quick().fit(scaled, y)
    np.testing.assert_array_equal(plain.predict_proba(X), other.predict_proba(scaled))


def test_small_differences_between_large_numbers_are_seen():
    X = 1.7e9 + np.random.default_rng(0).standard_normal((300, 2))
    y = X[:, 0] > 1.7e9
    assert DensitySoftmaxClassifier(random_state=0).fit(X, y).score(X, y) >= 0.97


def test_names_of_labels_make_no_difference(iris):
    X, y = iris
    names = np.array(["a", "b", "c"])
    numbers, strings = quick().fit(X, y), quick().fit(X, names[y])
    assert list(strings.classes_) == ["a", "b", "c"]
    np.testing.assert_array_equal(numbers.predict_proba(X), strings.predict_proba(X))
    np.testing.assert_array_equal(names[numbers.predict(X)], strings.predict(X))


def test_data_frames_are_read_and_their_columns_remembered():
    X, y = load_iris(return_X_y=True, as_frame=True)
    y = y.map({0: "setosa", 1: "versicolor", 2: "virginica"})
    classifier = quick().fit(X, y)
    assert list(classifier.feature_names_in_) == list(X.columns)
    assert set(classifier.predict(X)) <= set(y)
    with pytest.raises(ValueError, match="feature names should match"):
        classifier.predict(X[X.columns[::-1]])


def test_answers_do_not_depend_on_the_company_of_a_row(on_moons):
    X = np.random.default_rng(0).uniform(-3, 3, (5000, 2))  # more than one batch
    alone = np.concatenate([on_moons.predict_proba(row[None]) for row in X[::500]])
    np.testing.assert_allclose(on_moons.predict_proba(X)[::500], alone, rtol=0, atol=1e-12)


def test_the_model_inside_reads_rows_as_they_are(on_moons, moons):
    probs = on_moons.model_.predict(moons[0]).probs
    np.testing.assert_allclose(on_moons.predict_proba(moons[0]), probs, atol=1e-6)


def test_tables_of_few_different_rows_are_known_and_others_are_not():
    corners = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    rows = np.arange(200) % 4
    classifier = DensitySoftmaxClassifier(random_state=0).fit(corners[rows], rows)
    assert np.diag(classifier.predict_proba(corners)).min() >= 0.9
    assert not pd.isna(classifier.predict(corners, abstain=0.05)).any()
    assert pd.isna(classifier.predict(corners + 0.5, abstain=0.05)).all()


@pytest.mark.parametrize("seed", [5, 57])
def test_the_scale_that_is_served_is_the_one_that_was_fitted(seed):
    corners = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    rows = np.arange(200) % 4
    model = DensitySoftmaxClassifier(random_state=seed).fit(corners[rows], rows).model_
    with torch.no_grad():
        _, evidence = model.logits_and_evidence(model.features(torch.tensor(corners)))
        log_prob = evidence.log_prob
        served = model.scale(log_prob)
        assert log_prob.dtype == served.dtype == torch.float64
        assert torch.equal(served, model.scale.log_factor(log_prob).exp())


@FEW_ROWS
@pytest.mark.parametrize("counts", [(1, 1), (1, 2), (1, 30), (2, 2, 2), (1,) * 6 + (40,)])
def test_classes_of_one_and_two_rows_can_be_learned(counts):
    y = np.repeat(np.arange(len(counts)), counts)
    X = np.random.default_rng(0).standard_normal((len(y), 3)) + 5 * y[:, None]
    classifier = DensitySoftmaxClassifier(random_state=0).fit(X, y)
    assert list(classifier.classes_) == list(range(len(counts)))
    probs = classifier.predict_proba(X)
    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(1), 1)


@FEW_ROWS
def test_where_nothing_can_be_held_out_no_rate_can_be_promised():
    classifier = quick().fit([[0.0], [1.0]], ["a", "b"])
    assert len(classifier.heldout_epistemic_) == 0
    with pytest.raises(UserError, match="0 rows were held out"):
        classifier.predict([[0.0]], abstain=0.5)


@FEW_ROWS
def test_rows_that_do_not_vary_are_refused():
    with pytest.raises(UserError, match="no column of X varies"):
        quick().fit(np.ones((20, 3)), np.arange(20) % 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"density": "gausian"}, "density: unknown name 'gausian'; did you mean 'gaussian'"),
        ({"validation_fraction": 0.0}, "validation_fraction=0.0: choose a share"),
        ({"validation_fraction": 1.0}, "validation_fraction=1.0: choose a share"),
        ({"batch_size": 0}, "batch_size=0: choose 1 or more"),
        ({"epochs": 0}, "epochs=0: choose 1 or more"),
        ({"width": 0}, "width=0: choose 1 or more"),
        ({"gradient_penalty": -1.0}, "weight=-1.0"),
        ({"width": 2.5}, "width=2.5: choose 1 or more, a whole number"),
        ({"epochs": 1.5}, "epochs=1.5: choose 1 or more, a whole number"),
        ({"batch_size": 1.5}, "batch_size=1.5: choose 1 or more, a whole number"),
        ({"depth": -1}, "depth=-1: choose 0 or more, a whole number"),
        ({"learning_rate": "a"}, "learning_rate='a': choose a number"),
        ({"validation_fraction": None}, "validation_fraction=None: choose a number"),
    ],
)
def test_settings_that_make_no_sense_are_named(settings, message, moons):
    with pytest.raises(UserError, match=message):
        quick(**settings).fit(*moons)


def test_few_rows_to_calibrate_on_are_warned_of(iris):
    X, y = (part[::4] for part in iris)
    with pytest.warns(CalibrationWarning, match="8 of 38 rows are held out .*validation_fraction"):
        quick().fit(X, y)
    quick(validation_fraction=0.3).fit(X, y)


def test_categories_and_missing_values_pass_through_a_pipeline():
    frame = pd.DataFrame(
        {"size": [1.0, 2.0, np.nan, 4.0] * 25, "place": ["a", "b", "a", None] * 25}
    )
    labels = np.array(["low", "low", "low", "high"] * 25)
    numbers = make_pipeline(SimpleImputer(add_indicator=True))
    categories = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = make_column_transformer((numbers, ["size"]), (categories, ["place"]))
    pipeline = make_pipeline(columns, quick(epochs=40)).fit(frame, labels)
    assert pipeline.score(frame, labels) == 1.0
    unseen = pd.DataFrame({"size": [2.0, 900.0], "place": ["b", "z"]})
    assert list(pipeline.predict(unseen, abstain=0.05)) == ["low", None]


# Weights


def test_the_order_of_rows_makes_no_difference(moons):
    X, y = moons
    order = np.random.default_rng(0).permutation(len(X))
    plain, shuffled = quick().fit(X, y), quick().fit(X[order], y[order])
    np.testing.assert_array_equal(plain.predict_proba(X), shuffled.predict_proba(X))


def test_whole_weights_are_repeated_rows_and_zero_leaves_a_row_out(moons):
    X, y = moons
    weight = np.random.default_rng(0).integers(0, 4, len(X))
    weighted = quick().fit(X, y, sample_weight=weight)
    repeated = quick().fit(X.repeat(weight, axis=0), y.repeat(weight))
    np.testing.assert_array_equal(weighted.predict_proba(X), repeated.predict_proba(X))
    np.testing.assert_array_equal(weighted.heldout_epistemic_, repeated.heldout_epistemic_)


def test_only_ratios_of_other_weights_count(moons):
    one, other = (
        quick().fit(*moons, sample_weight=np.full(500, w)).predict_proba(moons[0]) for w in (1, 0.5)
    )
    np.testing.assert_array_equal(one, other)


@given(
    weight=st.lists(st.just(0.0) | st.floats(1e-6, 100), min_size=1, max_size=30).filter(any),
    seed=st.integers(0, 2**31 - 1),
)
def test_copies_are_as_many_as_weights_say_to_less_than_one(weight, seed):
    weight = np.array(weight)
    counts = np.bincount(weighted_rows(weight, weight[:, None], seed), minlength=len(weight))
    whole = not (weight % 1).any() and weight.sum() <= MOST_COPIES * len(weight)
    unit = 1.0 if whole else max(weight[weight > 0].min(), weight.mean() / MOST_COPIES)
    assert (np.abs(counts - weight / unit) < 1 + 1e-9).all()


def test_rows_of_higher_weight_are_believed():
    rows = np.random.default_rng(0).standard_normal((400, 2))
    labels = np.arange(400) % 2  # nothing can be learned but how frequent the classes are
    weight = np.where(labels, 1.5, 0.5)
    probs = quick().fit(rows, labels, sample_weight=weight).predict_proba(rows)
    assert abs(probs[:, 1].mean() - 0.75) <= 0.08


@pytest.mark.parametrize(
    ("weight", "message"), [(0.0, "all weights are 0"), (-1.0, "Negative values")]
)
def test_weights_that_make_no_sense_are_refused(weight, message, moons):
    with pytest.raises(ValueError, match=message):
        quick().fit(*moons, sample_weight=np.full(500, weight))


# Settings


def test_the_mixture_shares_a_covariance_unless_every_class_has_rows_enough(moons):
    mixture = quick(width=64, density="gaussian_mixture")
    assert isinstance(mixture.fit(*moons).model_.density, GaussianMixtureDensity)
    X, y = (part[:100] for part in moons)
    assert isinstance(mixture.fit(X, y).model_.density, TiedMixtureDensity)
    own = GaussianMixtureDensity.Config(tied=False)
    classifier = quick(width=64, density=own).fit(X, y)
    assert isinstance(classifier.model_.density, GaussianMixtureDensity)


def test_settings_may_be_numbers_of_numpy(moons):
    plain = {"width": 8, "depth": 1, "epochs": 2, "batch_size": 32, "learning_rate": 0.5}
    grid = {name: np.array([value])[0] for name, value in plain.items()}
    grid["learning_rate"] = np.float32(0.5)
    ours, theirs = (
        quick(**settings).fit(*moons).predict_proba(moons[0]) for settings in (plain, grid)
    )
    np.testing.assert_array_equal(ours, theirs)


def test_verbose_draws_bars_and_silence_is_the_default(moons, capsys):
    quick().fit(*moons)
    assert capsys.readouterr() == ("", "")
    quick(verbose=1).fit(*moons)
    assert "representation" in capsys.readouterr().out


# Repeatability


def test_the_random_state_decides_everything(moons):
    X, _ = moons
    first, again, other = (quick(random_state=s).fit(*moons).predict_proba(X) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    draws = np.random.RandomState(1)
    second = [quick(random_state=draws).fit(*moons).predict_proba(X) for _ in range(2)]
    np.testing.assert_array_equal(second[0], first)
    assert (second[0] != second[1]).any()


def test_without_a_random_state_every_fit_is_another(moons):
    one, two = (quick(random_state=None).fit(*moons).score_samples(moons[0]) for _ in range(2))
    assert (one != two).any()


@pytest.mark.parametrize("random_state", [0, None])
def test_global_generators_and_threads_are_left_alone(random_state, moons):
    def state():
        numpy = np.random.get_state()[1:]  # noqa: NPY002
        return torch.random.get_rng_state().tolist(), random.getstate(), *map(np.ravel, numpy)

    threads, before = torch.get_num_threads(), state()
    torch.set_num_threads(2)
    try:
        classifier = quick(random_state=random_state).fit(*moons)
        classifier.predict(moons[0])
        with pytest.raises(UserError):
            quick(random_state=random_state, learning_rate=1e30).fit(*moons)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(before, state(), strict=True):
        np.testing.assert_array_equal(
            np.asarray(one, dtype=object), np.asarray(other, dtype=object)
        )


def test_a_pickle_gives_the_same_answers(on_moons, moons):
    copy = pickle.loads(pickle.dumps(on_moons))
    np.testing.assert_array_equal(copy.predict_proba(moons[0]), on_moons.predict_proba(moons[0]))
    np.testing.assert_array_equal(
        copy.predict(moons[0], abstain=0.1), on_moons.predict(moons[0], abstain=0.1)
    )


def test_a_clone_has_the_settings_and_not_the_training(on_moons):
    copy = clone(on_moons)
    assert copy.get_params() == on_moons.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(ring(1))


# Among others


def test_it_abstains_at_the_end_of_a_pipeline(iris):
    pipeline = make_pipeline(PolynomialFeatures(2), quick()).fit(*iris)
    X = np.concatenate([iris[0], 1e3 * iris[0][:5]])
    labels = pipeline.predict(X, abstain=0.1)
    assert pd.isna(labels[-5:]).all()
    assert pipeline.score_samples(X)[-5:].max() < pipeline.score_samples(iris[0]).min()


def test_a_grid_search_finds_the_better_setting(moons):
    grid = {"epochs": [1, 40], "density": ["gaussian", "gaussian_mixture"]}
    search = GridSearchCV(quick(), grid, cv=2, scoring="neg_log_loss").fit(*moons)
    assert search.best_params_["epochs"] == 40
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


# The rows held out


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    fraction=st.floats(0.05, 0.5),
    seed=st.integers(0, 2**31 - 1),
)
def test_every_class_is_trained_on_and_held_out_by_its_share(counts, fraction, seed):
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    train, heldout = hold_out_by_class(y, fraction, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, heldout])), np.arange(len(y)))
    assert set(y[train]) == set(y)
    spare = len(y) - len(counts)
    assert len(heldout) == min(max(1, round(fraction * len(y))), spare)
    if spare:
        share = len(heldout) / spare
        found = np.bincount(y[heldout], minlength=len(counts))
        assert (np.abs(found - share * (np.array(counts) - 1)) <= 1).all()
