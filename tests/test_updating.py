"""More training data: the model is the one that fitting on all of them gives."""

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

import density_softmax as ds
from density_softmax.errors import CalibrationWarning, UserError
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.densities import FlowDensity, GaussianDensity, GaussianMixtureDensity
from density_softmax.posthoc import smallest_digests
from density_softmax.training import Descent
from density_softmax.updating import _share

CLASSES, WIDTH = 3, 5
Data = tuple[Tensor, Tensor]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def samples(number: int, seed: int) -> Data:
    x = 3 * torch.randn(number, WIDTH, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return x, network()(x).argmax(-1)


OLD, NEW, OTHER, HELDOUT = (samples(n, s) for s, n in enumerate((200, 150, 120, 100)))


def both(*parts: Data) -> Data:
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def attached(train: Data, method="density_softmax", calibration: Data = HELDOUT):
    return ds.attach(network(), train=train, calibration=calibration, method=method, progress=False)


def config(density, **fields) -> DensitySoftmax.Config:
    fields = {"representation": None, "head": None, **fields}
    return DensitySoftmax.Config(density=density, **fields)


METHODS = {
    "default": "density_softmax",
    "gaussian": config(GaussianDensity.Config(), layers=("0",), energy=True),
    "mixture": config(GaussianMixtureDensity.Config()),
    "tied": config(GaussianMixtureDensity.Config(tied=True)),
    "mahalanobis": "mahalanobis",
}


@pytest.mark.filterwarnings("ignore::density_softmax.errors.CalibrationWarning")
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_an_updated_model_is_that_of_all_data_also_through_a_file(method, tmp_path):
    model = attached(OLD, method)
    model.update(NEW, calibration=OTHER)  # of which nothing may stay
    model.save(tmp_path / "model.safetensors")
    model = ds.load(tmp_path / "model.safetensors", network())
    model.update(OTHER, calibration=HELDOUT)
    whole = attached(both(OLD, NEW, OTHER), method)
    ours, theirs = model.state_dict(), whole.state_dict()
    assert ours.keys() == theirs.keys()
    found, expected = (each.predict(2 * HELDOUT[0]) for each in (model, whole))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert model.calibration.num_train == whole.calibration.num_train == 470
    assert model.calibration.thresholds == pytest.approx(whole.calibration.thresholds, rel=1e-4)
    assert model.calibration.after.nll == pytest.approx(whole.calibration.after.nll, rel=1e-4)


@pytest.mark.filterwarnings("ignore::density_softmax.errors.CalibrationWarning:torch")
def test_without_calibration_data_the_density_moves_and_the_rest_is_said_to_stay():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        model, whole = attached(OLD), attached(both(OLD, NEW))
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with pytest.warns(CalibrationWarning, match="150 training samples were added"):
        model.update(NEW)
    after = model.state_dict()
    for name in ("scale.threshold", "head.temperature", "typicality.center"):
        assert after[name].equal(before[name])
    for name in ("last.center", "classes.mean", "layers.spectrum"):
        name = f"typicality.densities.{name}"
        torch.testing.assert_close(after[name], whole.state_dict()[name], rtol=1e-4, atol=1e-5)
    assert "were added" in model.summary()


FLOW = config(FlowDensity.Config(hidden=(4,), descent=Descent(epochs=1)))


@pytest.mark.filterwarnings("ignore::density_softmax.errors.CalibrationWarning")
@pytest.mark.parametrize(
    ("method", "reason"),
    [(FLOW, "needs all training data"), ("knn", "needs all"), ("energy", "no density")],
    ids=["flow", "knn", "energy"],
)
def test_what_cannot_be_merged_is_refused_by_name(method, reason):
    model = attached(OLD, method)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with pytest.raises(UserError, match=reason):
        model.update(NEW)
    assert all(each.equal(before[name]) for name, each in model.state_dict().items())


@pytest.mark.filterwarnings("ignore::density_softmax.errors.CalibrationWarning")
def test_a_file_without_sums_is_smaller_and_cannot_be_updated(tmp_path):
    model = attached(OLD)
    model.save(tmp_path / "whole.safetensors")
    model.save(tmp_path / "small.safetensors", updatable=False)
    sizes = [(tmp_path / f"{n}.safetensors").stat().st_size for n in ("small", "whole")]
    assert sizes[0] < sizes[1]
    small = ds.load(tmp_path / "small.safetensors", network())
    with pytest.raises(UserError, match=r"no sums of stage .density..* pass before="):
        small.update(NEW)
    small.update(NEW, calibration=HELDOUT, before=OLD)
    with pytest.raises(UserError, match="omit before="):
        model.update(NEW, calibration=HELDOUT, before=OLD)
    model.update(NEW, calibration=HELDOUT)
    ours, theirs = small.predict(2 * HELDOUT[0]), model.predict(2 * HELDOUT[0])
    torch.testing.assert_close(ours.epistemic, theirs.epistemic, rtol=1e-5, atol=1e-5)


def test_a_trained_model_without_sums_is_updated_from_its_training_data():
    """As that of a run, whose checkpoints hold none."""
    descent = Descent(epochs=1, batch_size=32)
    settings = config(GaussianDensity.Config(), representation=descent)
    torch.manual_seed(0)
    model = settings.build(nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU()), CLASSES, OLD[0][:2])
    ds.fit(model, OLD, HELDOUT, progress=False)
    run = copy.deepcopy(model)
    run.sums = {}
    model.update(NEW, calibration=HELDOUT)
    run.update(NEW, calibration=HELDOUT, before=OLD)
    for name, each in model.state_dict().items():
        torch.testing.assert_close(run.state_dict()[name], each)


@pytest.mark.filterwarnings("ignore::density_softmax.errors.CalibrationWarning:torch")
def test_samples_that_are_known_already_are_noticed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        model = attached(OLD)
    state = {name: each.clone() for name, each in model.state_dict().items()}
    for data, calibration in ((HELDOUT, None), (NEW, OLD), (NEW, NEW)):
        with pytest.raises(UserError, match="100% of the calibration samples are training samples"):
            model.update(data, calibration=calibration)
    assert all(each.equal(state[name]) for name, each in model.state_dict().items())
    with pytest.warns(CalibrationWarning, match="about 57% of the new training samples are in"):
        model.update(both(OLD, NEW), calibration=HELDOUT)
    with pytest.warns(CalibrationWarning, match="about 100% of the new"):
        model.update(NEW, calibration=HELDOUT)


def test_of_many_samples_a_few_digests_are_enough():
    everyone = torch.randperm(100_000, generator=torch.Generator().manual_seed(0))
    known = torch.tensor(smallest_digests(everyone[:50_000]))
    assert len(known) == 512
    assert _share(everyone[25_000:75_000], known) == pytest.approx(0.5, abs=0.1)
    assert _share(everyone[50_000:], known) == 0


@pytest.mark.filterwarnings("ignore::density_softmax.errors.CalibrationWarning")
def test_calibration_data_are_judged_before_anything_changes():
    model = attached(OLD, calibration=samples(50, 7))
    assert "50 calibration samples" in model.summary()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    sums = {stage: dict(each) for stage, each in model.sums.items()}
    with pytest.raises(UserError, match=r"5 calibration samples: .* need at least 10"):
        model.update(NEW, calibration=samples(5, 8))
    assert all(each.equal(before[name]) for name, each in model.state_dict().items())
    assert all(model.sums[stage][n] is t for stage, each in sums.items() for n, t in each.items())
    model.update(NEW, calibration=HELDOUT)
    assert "50 calibration samples" not in model.summary()
