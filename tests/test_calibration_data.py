"""What `attach` says of the data it is given, and of what it has made of them."""

import copy
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import density_softmax as ds
from density_softmax.decide.calibration import _refuse_known
from density_softmax.engine.calibration import cross_validate, predict_features, recalibrate
from density_softmax.errors import CalibrationWarning, UserError
from density_softmax.files.cards import as_json
from density_softmax.metrics import ece, nll
from density_softmax.nn.execution import digests
from density_softmax.nn.finding import NUM_PROBED
from density_softmax.nn.softmax.head import fit_temperature
from density_softmax.nn.softmax.scale import TemperatureScale
from density_softmax.recipes.attach import closed_form
from density_softmax.training import folds

ENGINE = ds.EngineConfig(accelerator="cpu", predict_batch_size=32)
NUM_CLASSES = 3


def points(num_samples, seed):
    """Three classes around the corners of a triangle, which overlap a little."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(num_samples) % NUM_CLASSES
    corners = 2 * F.one_hot(y, 5).float()
    return corners + torch.randn(num_samples, 5, generator=generator), y


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, NUM_CLASSES))
    x, y = points(600, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


def attached(model, train=None, calibration=None, **options):
    options = {"engine": ENGINE, "progress": False} | options
    train, calibration = train or points(600, 1), calibration or points(300, 2)
    return ds.attach(
        copy.deepcopy(model), head="2", train=train, calibration=calibration, **options
    )


def chosen(data, rows):
    return data[0][rows], data[1][rows]


def test_good_data_are_not_warned_about(trained):
    assert attached(trained).calibration.warnings == ()


def with_known(x, y, number):
    known = chosen(points(600, 1), slice(number))
    return torch.cat([x, known[0]]), torch.cat([y, known[1]])


VOID = {
    "training data": (lambda x, y: points(600, 1), "600 of 600 calibration samples are training"),
    "mostly training data": (
        lambda x, y: with_known(x[:100], y[:100], 400),
        "400 of 500 calibration samples are training",
    ),
    "too few": (lambda x, y: (x[:9], y[:9]), "9 calibration samples: .* at least 10"),
    "one class": (lambda x, y: (x[y == 1], y[y == 1]), "all 100 calibration samples have label 1"),
    "another scale": (lambda x, y: (x / 255, y), "calibration input is 0.0.*prepare both"),
    "other labels": (lambda x, y: (x, (y + 1) % 3), r"right on 8.* and \d\.\d% of .*order"),
}


@pytest.mark.parametrize("fault", VOID)
def test_data_that_make_the_result_void_are_refused_with_the_number_that_shows_it(trained, fault):
    spoil, message = VOID[fault]
    with pytest.raises(UserError, match=message):
        attached(trained, calibration=tuple(spoil(*points(300, 2))))


def test_labels_in_another_order_are_refused_even_if_they_are_so_in_both_sets(trained):
    sets = [(x, (y + 1) % 3) for x, y in (points(600, 1), points(300, 2))]
    with pytest.raises(UserError, match="labels numbered in the order of the network's outputs"):
        attached(trained, *sets)


WEAK = {
    "overlap": (
        lambda x, y: with_known(x, y, 30),
        "30 of 330 calibration samples are training samples",
    ),
    "few": (lambda x, y: (x[:60], y[:60]), "60 calibration samples: .* 100 or more are needed"),
    "missing class": (lambda x, y: (x[y != 1], y[y != 1]), r"no sample of 1 of 3 classes \(1\)"),
    "another scale": (lambda x, y: (x / 4, y), "typical absolute value of a calibration input is"),
    "another level": (lambda x, y: (x + 0.8, y), "interquartile ranges away"),
}


@pytest.mark.parametrize("fault", WEAK)
def test_data_that_make_the_result_weak_are_warned_about_with_their_number(trained, fault):
    spoil, message = WEAK[fault]
    with pytest.warns(CalibrationWarning, match=message) as caught:
        model = attached(trained, calibration=spoil(*points(300, 2)))
    assert model.calibration.warnings == tuple(str(each.message) for each in caught)
    assert all(warning in model.summary() for warning in model.calibration.warnings)


def test_an_accuracy_far_below_that_on_training_data_is_warned_about(trained):
    x, y = points(300, 2)
    wrong = torch.where(torch.arange(300) % 2 == 0, y, (y + 1 + torch.arange(300) // 2 % 2) % 3)
    with pytest.warns(CalibrationWarning, match="right on 8.* and .*%.* overfitted"):
        attached(trained, calibration=(x, wrong))


def test_fewer_training_samples_than_features_are_warned_about(trained):
    with pytest.warns(CalibrationWarning, match="15 training samples for 16 features"):
        attached(trained, train=chosen(points(600, 1), slice(15)))


def test_a_network_no_better_than_a_guess_is_warned_about():
    torch.manual_seed(0)
    untrained = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, NUM_CLASSES))
    sets = [(x, torch.randperm(len(y)) % 3) for x, y in (points(600, 1), points(300, 2))]
    with pytest.warns(CalibrationWarning, match="where chance gives 3"):
        attached(untrained, *sets)


def test_inputs_that_repeat_among_themselves_are_not_taken_for_training_data():
    torch.manual_seed(0)
    embed = nn.Sequential(nn.Embedding(4, 8), nn.Flatten(), nn.Linear(16, 16), nn.ReLU())
    model = nn.Sequential(embed, nn.Linear(16, 2))
    tokens = [torch.randint(0, 4, (n, 2)) for n in (600, 300)]
    with torch.no_grad():
        z = embed(torch.cartesian_prod(torch.arange(4), torch.arange(4)))
        model[1].bias.copy_(-model[1].weight @ z.mean(0))
        train, calibration = ((x, model(x).argmax(1)) for x in tokens)
    model = ds.attach(
        model, head="1", train=train, calibration=calibration, engine=ENGINE, progress=False
    )
    assert model.calibration.warnings == ()


def test_digests_tell_inputs_apart_by_every_number():
    x = torch.randn(5, 3, 4)
    assert len(set(digests(x).tolist())) == 5
    assert torch.equal(digests(x), digests(x.clone()))
    changed = x.clone()
    changed[2, 1, 1] += 1e-6
    assert ((digests(changed) != digests(x)) == torch.tensor([0, 0, 1, 0, 0]).bool()).all()


def test_the_network_runs_once_over_the_data(trained):
    model, seen = copy.deepcopy(trained), []
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    ds.attach(
        model,
        head="2",
        train=points(600, 1),
        calibration=points(300, 2),
        engine=ENGINE,
        progress=False,
    )
    assert sum(seen) == 1 + NUM_PROBED + 600 + 300


def test_scores_before_are_those_of_the_network(trained):
    x, y = points(300, 2)
    with torch.no_grad():
        probs = trained(x).softmax(-1)
    before = attached(trained).calibration.before
    assert before.nll == pytest.approx(nll(probs, y), abs=1e-5)
    assert before.ece == pytest.approx(ece(probs, y), abs=1e-5)
    assert before.accuracy == pytest.approx((probs.argmax(1) == y).double().mean().item())


def test_scores_after_are_of_samples_that_fitted_nothing(trained):
    """With a temperature alone, refitted by hand without each fold."""
    config = ds.DensitySoftmax.Config(
        representation=None,
        head=None,
        density=closed_form(()).density,
        scale=TemperatureScale.Config(),
    )
    model = attached(trained, method=config)
    x, y = points(300, 2)
    with torch.no_grad():
        z, logits = model.features(x), trained(x)
    found = cross_validate(model, z, y, seed=0, batch_size=32)
    expected = torch.empty(300, 3)
    for inside, outside in folds(300, 5, seed=0):
        temperature = fit_temperature(logits[inside], y[inside])
        expected[outside] = (logits[outside] / temperature).softmax(-1)
    assert torch.allclose(found, expected, atol=1e-5)
    assert model.calibration.after.nll == pytest.approx(nll(expected, y), abs=1e-5)


def test_measuring_leaves_the_model_as_it_was(trained):
    model = attached(trained)
    x, y = points(300, 2)
    before = copy.deepcopy(model.state_dict())
    cross_validate(model, model.features(x).detach(), y, seed=0, batch_size=32)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_features_predict_what_inputs_do(trained):
    model, (x, _) = attached(trained, layers=["0"]), points(40, 5)
    found = predict_features(model, model.features(x).detach(), batch_size=7)
    for ours, theirs in zip(found, model.predict(x), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_thresholds_are_exceeded_by_their_share_of_the_calibration_data(trained):
    model = attached(trained)
    epistemic = model.predict(points(300, 2)[0]).epistemic
    for share, threshold in model.calibration.thresholds.items():
        exceeding = (epistemic > threshold + 1e-4).double().mean()
        assert share - 0.01 <= exceeding <= share


def test_the_summary_names_what_was_found_and_survives_the_way_to_a_file(trained, tmp_path):
    model = attached(trained, layers=["0"])
    text, found = model.summary(), model.calibration
    parts = ("head 2", "layers 0", "600 training", "300 calibration", "fitted")
    assert all(part in text for part in parts)
    assert f"temperature {found.temperature:.3g}" in text
    scores = (found.before.nll, found.after.nll, found.before.ece, found.after.ece)
    assert all(f"{score:.4f}" in text for score in scores)
    model.save(tmp_path / "model.safetensors")
    loaded = ds.load(tmp_path / "model.safetensors", copy.deepcopy(trained))
    assert as_json(loaded.calibration) == as_json(found)
    assert loaded.summary() == text
    assert copy.deepcopy(model).summary() == text


def test_attaching_prints_what_changed_unless_it_is_to_be_silent(trained, capsys):
    model = attached(trained, progress=True)
    assert model.calibration.change() in capsys.readouterr().out
    attached(trained, progress=False)
    assert capsys.readouterr() == ("", "")


def test_a_method_that_was_not_attached_has_a_summary_too():
    assert "not fitted" in ds.DensitySoftmax(nn.Linear(2, 4), 2).summary()


def test_warnings_point_to_the_call_of_attach(trained):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ds.attach(
            copy.deepcopy(trained),
            head="2",
            train=points(600, 1),
            calibration=points(60, 2),
            engine=ENGINE,
            progress=False,
        )
    assert {each.filename for each in caught} == {__file__}


@pytest.mark.parametrize(("num_samples", "num_folds"), [(10, 5), (23, 5), (7, 3), (100, 2)])
def test_folds_judge_every_sample_once_by_all_the_others(num_samples: int, num_folds: int) -> None:
    pairs = folds(num_samples, num_folds, seed=3)
    assert len(pairs) == num_folds
    judged = torch.cat([outside for _, outside in pairs])
    assert judged.sort().values.tolist() == list(range(num_samples))
    for inside, outside in pairs:
        assert torch.cat([inside, outside]).sort().values.tolist() == list(range(num_samples))


def test_too_few_samples_for_folds_are_all_in_both_parts() -> None:
    ((inside, outside),) = folds(9, 5)
    assert inside.tolist() == outside.tolist() == list(range(9))


def test_samples_that_set_the_scale_fit_no_policy(trained):
    model, (x, y) = attached(trained), points(300, 2)
    pairs = [(x, y), (x.double().numpy(), y.numpy())]
    pairs.append(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 64))
    for data in pairs:
        with pytest.raises(UserError, match="100% of the samples set temperature and scale"):
            ds.Policy.fit(model, data, coverage=0.9)
    ds.Policy.fit(model, points(300, 7), coverage=0.9)


def test_a_sketch_of_the_calibration_data_knows_them_again():
    rng = np.random.default_rng(0)
    ours, others = rng.integers(-(2**62), 2**62, (2, 5000))
    known = SimpleNamespace(digests=tuple(np.sort(ours)[:512].tolist()), num_calibration=5000)
    with pytest.raises(UserError, match="which divides the calibration data"):
        _refuse_known(np.concatenate([ours[:500], others[:4000]]), known)
    _refuse_known(np.concatenate([ours[:50], others]), known)
    _refuse_known(np.repeat(ours[:20], 100), known)  # rows of a table that repeat themselves


def test_attach_divides_the_calibration_data_for_a_policy(trained, tmp_path):
    model = attached(trained, policy={"coverage": 0.9, "false_alarms": 0.05})
    assert model.calibration.num_calibration == 150
    assert model.policy.samples["samples"] == 150
    assert "coverage 150" in model.summary()
    x, y = points(2000, 9)
    sets = model.policy(model.predict(x)).sets
    assert 0.82 < sets[np.arange(2000), y].mean() < 0.97
    model.save(tmp_path / "model.safetensors")
    loaded = ds.load(tmp_path / "model.safetensors", copy.deepcopy(trained))
    assert loaded.policy.to_dict() == model.policy.to_dict()
    assert copy.deepcopy(model).policy is not None


def test_recalibrating_is_attaching_with_other_calibration_data(trained):
    model, (x, y) = attached(trained), points(200, 8)
    recalibrate(model, model.features(x).detach(), y, batch_size=50)
    expected = attached(trained, calibration=(x, y)).predict(x)
    # All but how far covariances are shrunk, one number that the first samples have set.
    assert torch.allclose(model.predict(x).probs, expected.probs, atol=0.01)
    assert not torch.allclose(attached(trained).predict(x).probs, expected.probs, atol=0.01)
