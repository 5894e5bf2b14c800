"""Policies: their rule, their guarantees together, and what they refuse."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from worlds import Predicted, gaussians, softmax

import density_softmax as ds
from density_softmax.decide.conformal import GuaranteeError, WeightedQuantile
from density_softmax.errors import UserError
from density_softmax.files.cards import as_json

ALL = {"coverage": 0.9, "max_error": 0.05, "false_alarms": 0.01}


def sample(count, seed=0, **options):
    return gaussians(count, np.random.default_rng(seed), **options)


def policy(count=2000, **options):
    return ds.Policy.fit(None, sample(count), **{**ALL, **options})


def test_unknown_comes_before_abstain_before_answer():
    found = policy()
    limit = found.abstention.threshold
    sure, unsure = [1.0, 0, 0, 0, 0], [limit - 0.01, 1.01 - limit, 0, 0, 0]
    probs = np.array([sure, unsure, sure, unsure, [math.nan] * 5, sure])
    epistemic = np.array([1.0, 1.0, 1e9, 1e9, 1.0, math.inf])
    decided = found(Predicted(probs, np.zeros(6), epistemic))
    assert decided.action.tolist() == ["answer", "abstain", *["unknown"] * 4]
    assert decided.labels.tolist() == [0, 0, 0, 0, -1, -1]
    assert [reason.partition(" ")[0] for reason in decided.reason] == [
        "",
        "confidence",
        "unlike",
        "unlike",
        "the",
        "the",
    ]
    assert decided.sets[2:].all()  # what is unknown can be anything


def test_a_decision_says_what_it_holds():
    p, _ = sample(50, 1)
    decided = policy(class_names=["a", "b", "c", "d", "e"])(p)
    frame = decided.to_pandas()
    assert list(frame) == ["action", "label", "confidence", "typicality", "set", "reason"]
    assert frame["label"].tolist() == [decided.class_names[i] for i in p.probs.argmax(1)]
    assert [len(each) for each in decided.set_names] == decided.sets.sum(1).tolist()
    assert repr(decided).startswith("Decision(50 rows: ")
    assert len(decided) == 50


def test_tensors_and_arrays_are_decided_alike():
    p, _ = sample(50, 1)
    found, tensors = policy(), ds.Prediction(*map(torch.from_numpy, p))
    assert (found(tensors).action == found(p).action).all()
    assert (found.typicality(tensors) == found(p).typicality).all()


def test_a_model_is_asked_for_predictions_of_pairs_and_of_batches():
    class Model:
        class_names = tuple("abcde")

        def predict(self, x):
            assert len(x) <= 256
            return p._replace(probs=p.probs[x], epistemic=p.epistemic[x])

    p, y = sample(1000)
    rows = np.arange(1000)
    batches = [(rows[i : i + 100], y[i : i + 100]) for i in range(0, 1000, 100)]
    direct = ds.Policy.fit(None, (p, y), class_names=tuple("abcde"), **ALL)
    for data in ((rows, y), batches):
        assert ds.Policy.fit(Model(), data, **ALL).to_dict() == direct.to_dict()


def test_all_three_guarantees_hold_together():
    """The bound on errors is for what is answered, which the limit of false alarms decides, too."""
    world, y = gaussians(30_000, np.random.default_rng(10))
    wrong, violated, flagged, covered = world.probs.argmax(1) != y, 0, [], []
    for seed in range(200):
        found = ds.Policy.fit(
            None, sample(500, seed), coverage=0.9, max_error=0.08, false_alarms=0.05, seed=seed
        )
        decided = found(world)
        violated += wrong[decided.action == "answer"].mean() > 0.08
        flagged.append((decided.action == "unknown").mean())
        covered.append(decided.sets[np.arange(len(y)), y].mean())
    assert violated <= stats.binom.ppf(0.999, 200, 0.05)
    assert np.mean(flagged) <= 0.05 + 3.5 * np.std(flagged) / math.sqrt(200)
    assert np.mean(covered) >= 0.9 - 3.5 * np.std(covered) / math.sqrt(200)


def test_sets_for_answered_inputs_cover_those():
    world, y = gaussians(20_000, np.random.default_rng(11))
    covered = []
    for seed in range(100):
        found = ds.Policy.fit(
            None,
            sample(1000, seed),
            coverage=0.98,
            max_error=0.08,
            false_alarms=0.01,
            sets_for="answered",
            seed=seed,
        )
        decided = found(world)
        answered = decided.action == "answer"
        covered.append(decided.sets[np.arange(len(y)), y][answered].mean())
        assert decided.sets[~answered].all()  # nothing is promised of the others
    error = 3.5 * np.std(covered) / 10
    assert 0.98 - error <= np.mean(covered) <= 0.98 + 1 / 250 + error


def test_sets_for_answered_inputs_are_bound_to_their_rate_of_false_alarms():
    found = ds.Policy.fit(None, sample(500, 0), coverage=0.9, sets_for="answered")
    with pytest.raises(UserError, match="not unknown at 0"):
        found.at(0.1)


def test_sets_of_a_confident_model_are_small_by_default():
    world, y = gaussians(2000, np.random.default_rng(13), sharpness=20.0)
    sizes = {}
    for score in ("lac", "aps", "raps"):
        found = ds.Policy.fit(None, sample(2000, 14, sharpness=20.0), coverage=0.9, score=score)
        sets = found(world).sets
        assert sets[np.arange(2000), y].mean() >= 0.88
        sizes[score] = sets.sum(1).mean()
    assert max(sizes.values()) < 1.5 * sizes["lac"]


def test_weights_from_target_data_restore_coverage():
    """Inputs move towards where classes meet; labels given inputs stay what they were."""

    def drawn(count, rng, near):
        y = rng.integers(0, 3, count)
        x = rng.standard_normal((count, 3)) + 2.0 * np.eye(3)[y]
        kept = rng.random(count) < np.exp(-near * np.square(x - 2 / 3).sum(1))
        x, y = x[kept], y[kept]
        probs = softmax(2.0 * x)  # the true posterior
        return Predicted(probs, np.zeros(len(y)), np.square(x).sum(1)), y, x

    rng = np.random.default_rng(12)
    covered = {"plain": [], "classifier": [], "density": []}
    for _ in range(40):
        p, y, x = drawn(1000, rng, 0.0)
        _, _, target = drawn(3000, rng, 0.15)
        q, z, v = drawn(4000, rng, 0.15)
        for weights, shares in covered.items():
            options = {"target": target, "weights": weights, "features": x}
            options = {} if weights == "plain" else options
            decided = ds.Policy.fit(None, (p, y), coverage=0.9, **options)(q, features=v)
            shares.append(decided.sets[np.arange(len(z)), z].mean())
    means = {weights: np.mean(shares) for weights, shares in covered.items()}
    assert means["plain"] < 0.87
    assert means["classifier"] == pytest.approx(0.9, abs=0.01)
    assert means["density"] == pytest.approx(0.9, abs=0.015)


def test_weights_on_too_few_samples_are_refused():
    with pytest.raises(GuaranteeError, match=r"effective samples, and coverage=0.9 needs 50"):
        ds.Policy.fit(
            None, sample(500), coverage=0.9, target=sample(500, 1, shift=6.0)[0], weights="density"
        )


def test_weights_may_be_numbers_or_a_function():
    p, y = sample(500)
    found = ds.Policy.fit(None, (p, y), coverage=0.9, weights=np.ones(500))
    assert isinstance(found.sets.quantiles, WeightedQuantile)
    same = ds.Policy.fit(
        None, (p, y), coverage=0.9, weights=lambda features: np.ones(len(features))
    )
    plain = ds.Policy.fit(None, (p, y), coverage=0.9)
    q, _ = sample(100, 1)
    for each in (found, same):
        assert (each(q, weights=np.ones(100)).sets == plain(q).sets).all()
    with pytest.raises(UserError, match="pass weights="):
        found(q)


@pytest.mark.parametrize("void", [{"max_error": 0.05}, {"classwise": True}])
def test_what_a_shift_would_void_is_refused(void):
    with pytest.raises(UserError, match="would not hold under the shift"):
        ds.Policy.fit(None, sample(500), coverage=0.9, target=sample(100, 1)[0], **void)


def test_a_rate_of_false_alarms_needs_so_many_samples():
    ds.Policy.fit(None, sample(99), false_alarms=0.01)
    with pytest.raises(GuaranteeError, match=r"needs 99 calibration samples, there are 98"):
        ds.Policy.fit(None, sample(98), false_alarms=0.01)


def test_samples_that_are_not_finite_fit_nothing_and_are_counted():
    p, y = sample(1000)
    broken = np.arange(1000) % 10 == 0
    p = p._replace(epistemic=np.where(broken, np.nan, p.epistemic))
    clean = Predicted(*(values[~broken] for values in p))
    found = ds.Policy.fit(None, (p, y), **ALL)
    assert found.samples["not finite"] == 100
    assert found.typical.count == 900
    again = ds.Policy.fit(None, (clean, y[~broken]), **ALL)
    assert as_json(found.typical) == as_json(again.typical)
    assert as_json(found.sets) == as_json(again.sets)


@pytest.mark.parametrize("options", [{}, {"score": "aps", "classwise": True}])
def test_a_saved_policy_decides_as_before(tmp_path, options):
    found, (p, _) = policy(3000, **options), sample(500, 1)
    found.save(tmp_path / "policy.json")
    loaded = ds.Policy.load(tmp_path / "policy.json")
    assert loaded.to_dict() == found.to_dict()
    for before, after in zip(vars(found(p)).values(), vars(loaded(p)).values(), strict=True):
        assert np.array_equal(before, after)
    assert repr(loaded) == repr(found)
    assert loaded.curve().risk[-1] == found.curve().risk[-1]


def test_a_saved_policy_with_weights_decides_as_before():
    target, _ = sample(500, 1, shift=0.3)
    found = ds.Policy.fit(None, sample(500), coverage=0.9, target=target)
    loaded = ds.Policy.from_dict(json.loads(json.dumps(found.to_dict())))
    assert (loaded(target).sets == found(target).sets).all()
    assert "count as" in found.summary()


@pytest.mark.parametrize("weights", ["classifier", "density", np.ones(500)])
def test_samples_that_are_not_finite_get_no_weight(weights):
    p, y = sample(500)
    broken = p._replace(epistemic=np.where(np.arange(500) < 5, np.nan, p.epistemic))
    clean = Predicted(*(values[5:] for values in p))
    target, _ = sample(500, 1, shift=0.3)
    options = {"coverage": 0.9, "target": target}
    found = ds.Policy.fit(None, (broken, y), weights=weights, **options)
    short = weights if isinstance(weights, str) else weights[5:]
    again = ds.Policy.fit(None, (clean, y[5:]), weights=short, **options)
    assert as_json(found.sets) == as_json(again.sets)


def test_rows_that_are_not_finite_get_all_labels_under_a_shift():
    target, _ = sample(500, 1, shift=0.3)
    found = ds.Policy.fit(None, sample(500), coverage=0.9, target=target)
    broken = target._replace(epistemic=np.where(np.arange(500) < 5, np.nan, target.epistemic))
    decided = found(broken)
    assert decided.sets[:5].all()
    assert (decided.sets[5:] == found(target).sets[5:]).all()


def test_a_policy_stays_small():
    assert len(json.dumps(policy(20_000).to_dict())) < 200_000


def test_a_policy_is_refitted_on_new_samples():
    found = policy()
    again = found.refit(sample(3000, 5))
    assert again.settings == found.settings
    assert again.samples["samples"] == 3000
    assert again.to_dict() == ds.Policy.fit(None, sample(3000, 5), **ALL).to_dict()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"coverage": 95}, "coverage=95: choose a share"),
        ({"score": "best"}, "choose lac, aps or raps"),
        ({"sets_for": "some"}, "choose all or answered"),
        ({"class_names": ["a"]}, "1 class names for 5 classes"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, said):
    with pytest.raises(UserError, match=said):
        policy(**change)


def test_data_that_make_no_sense_are_refused():
    p, y = sample(100)
    with pytest.raises(UserError, match="labels are integers from 0 to 4"):
        ds.Policy.fit(None, (p, y + 1))
    with pytest.raises(UserError, match=r"a tuple \(inputs, labels\)"):
        ds.Policy.fit(None, [p])
    with pytest.raises(UserError, match="nearly all samples are unknown"):
        ds.Policy.fit(None, (p, y), max_error=0.1, false_alarms=0.99)
    with pytest.raises(UserError, match="99 labels for 100 rows"):
        ds.Policy.fit(None, (p, y[1:]))
    with pytest.raises(UserError, match="pass a softmax"):
        ds.Policy.fit(None, (p._replace(probs=np.log(p.probs)), y))
    with pytest.raises(UserError, match="pass what predict returns"):
        policy()(p.probs)
    with pytest.raises(UserError, match="3 classes: the policy is for 5"):
        policy()(sample(10, classes=3)[0])
    with pytest.raises(UserError, match="fit it with coverage="):
        _ = ds.Policy.fit(None, (p, y))(p).set_names
    with pytest.raises(UserError, match="fit it with max_error="):
        ds.Policy.fit(None, (p, y)).curve()


@pytest.mark.parametrize("text", ["", "{}", '{"format": "other"}', "[1]"])
def test_a_file_that_is_no_policy_is_refused(tmp_path, text):
    path = tmp_path / "policy.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"policy\.json"):
        ds.Policy.load(path)
