"""An export answers like the model, says what it is, and refuses what it cannot do."""

import json
import math

import numpy as np
import pytest
import torch
from exported_models import IMAGE_SHAPE, draw, image_model, vector_model
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import density_softmax as ds
from density_softmax.decide.conformal import RATES
from density_softmax.deploy import export as exporter
from density_softmax.deploy.graph import trace
from density_softmax.deploy.parity import TOLERANCE, ParityError, _probes
from density_softmax.errors import UserError
from density_softmax.files.cards import as_json
from density_softmax.methods.deterministic import Deterministic
from density_softmax.serve.card import Normalisation
from density_softmax.serve.predictor import onnx_session

PLAIN = {"kind": "table", "mean": (0.0, 0.0), "std": (1.0, 1.0)}


class Noisy(nn.Module):
    """An encoder that draws random numbers whatever its mode."""

    def forward(self, x):
        return x + torch.randn_like(x)


def test_the_graph_has_one_input_and_named_outputs_of_any_batch_size(image_file):
    session = onnx_session(image_file)
    (x,) = session.get_inputs()
    assert (x.name, x.shape) == ("x", ["batch", *IMAGE_SHAPE])
    assert {output.name: output.shape for output in session.get_outputs()} == {
        "probs": ["batch", 4],
        "aleatoric": ["batch"],
        "epistemic": ["batch"],
        "contributions": ["batch", 3],
    }


@pytest.fixture(scope="module")
def pair(vector_file):
    return vector_model(), ds.Predictor(vector_file)


@settings(max_examples=30)
@given(num_rows=st.integers(1, 40), seed=st.integers(0, 10**6), log_size=st.floats(-2, 2))
def test_any_batch_gives_the_models_own_answer(pair, num_rows, seed, log_size):
    x = 10**log_size * draw(num_rows, 2, seed=seed)
    expected, answer = (model.predict(x) for model in pair)
    np.testing.assert_allclose(answer.probs, expected.probs, atol=TOLERANCE)
    np.testing.assert_allclose(answer.aleatoric, expected.aleatoric, atol=1e-4)
    np.testing.assert_allclose(answer.epistemic, expected.epistemic, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_rows", [1, 7, 64])
def test_a_model_with_hooks_and_batch_norms_gives_its_own_answer(image_file, num_rows):
    x = draw(num_rows, *IMAGE_SHAPE, seed=3)
    expected, answer = image_model().predict(x), ds.Predictor(image_file).predict(x)
    np.testing.assert_allclose(answer.probs, expected.probs, atol=TOLERANCE)
    np.testing.assert_allclose(answer.epistemic, expected.epistemic, rtol=1e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_bad_rows_are_flagged_by_the_graph_itself(vector_file, value):
    x = draw(5, 2).numpy()
    x[2, 1] = value
    outputs = onnx_session(vector_file).run(None, {"x": x})
    probs, aleatoric, epistemic, contributions = outputs
    np.testing.assert_allclose(probs[2], 1 / 3)
    assert aleatoric[2] == pytest.approx(math.log(3))
    assert epistemic[2] == contributions[2] == math.inf
    expected = vector_model().predict(x[[0, 1, 3, 4]])
    np.testing.assert_allclose(probs[[0, 1, 3, 4]], expected.probs, atol=TOLERANCE)


def test_the_metadata_say_what_serving_needs(vectors):
    texts = onnx_session(vectors.path).get_modelmeta().custom_metadata_map
    assert texts["version"] == ds.__version__
    assert texts["method"] == "density_softmax"
    assert json.loads(texts["class_names"]) == ["left", "right", "top"]
    assert json.loads(texts["normalisation"]) == {
        "kind": "table",
        "columns": ["length", "width"],
        "mean": [10.0, -1.0],
        "std": [2.0, 0.5],
    }
    assert json.loads(texts["policy"]) == vectors.card.policy.to_dict()
    assert set(vectors.card.thresholds) == {0.01, 0.05, 0.1}
    assert set(json.loads(texts["notes"])["parity"]) == {"1", "7"}


def test_the_file_names_no_path_of_the_machine_that_wrote_it(image_file):
    content = image_file.read_bytes()
    assert b"site-packages" not in content
    assert b".py" not in content


@pytest.mark.parametrize("share", RATES)
def test_at_most_that_share_of_the_held_out_data_raises_a_false_alarm(vectors, share):
    predictor = ds.Predictor(vectors.path)
    answer = predictor.predict(draw(400, 2, seed=1))
    alarms = predictor.unknown(answer, share).mean()
    assert share - 1 / 400 <= alarms <= share


def test_without_held_out_data_there_are_no_thresholds(images):
    texts = onnx_session(images.path).get_modelmeta().custom_metadata_map
    assert "policy" not in texts
    predictor = ds.Predictor(images.path)
    answer = predictor.predict(draw(1, *IMAGE_SHAPE))
    with pytest.raises(UserError, match="has no policy; export with policy= or heldout="):
        predictor.unknown(answer)


def test_the_export_reports_how_exact_it_is(images):
    assert set(images.parity) == {1, 7}
    assert max(images.parity.values()) <= TOLERANCE


def test_the_model_stays_as_it_was(tmp_path):
    model = image_model().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    layers = [type(module) for module in model.modules()]
    ds.export(model, tmp_path / "model.pt2", example=draw(1, *IMAGE_SHAPE))
    assert model.training
    assert [type(module) for module in model.modules()] == layers
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())


def test_torch_export_gives_the_same_answers_by_name(tmp_path):
    torch.manual_seed(0)
    model = Deterministic(nn.Linear(2, 5), 3)
    path = tmp_path / "model.pt2"
    ds.export(model, path, example=draw(1, 2), class_names="abc")
    extra = {"density_softmax.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    for num_rows in (1, 7):
        x = draw(num_rows, 2, seed=5)
        answer, expected = program(x), model.predict(x)
        for name, value in expected._asdict().items():
            torch.testing.assert_close(answer[name], value, atol=TOLERANCE, rtol=0)
    assert json.loads(json.loads(extra["density_softmax.json"])["class_names"]) == ["a", "b", "c"]


def test_a_difference_is_an_error_and_writes_nothing(tmp_path, monkeypatch):
    def careless(network, example):
        with torch.no_grad():
            network.method.head.linear.bias[0] += 1e-3
        return trace(network, example)

    monkeypatch.setattr(exporter, "trace", careless)
    model = Deterministic(nn.Linear(2, 5), 3)
    with pytest.raises(ParityError, match=r"batch size 1 .* differ by .* more than 1e-05"):
        ds.export(model, tmp_path / "model.pt2", example=draw(1, 2))
    assert not list(tmp_path.iterdir())


def timestamps(start):
    rng, y = np.random.default_rng(0), np.arange(60) % 2
    return np.c_[start + 200 * y + 50 * rng.standard_normal(60), rng.standard_normal(60)], y


def test_a_float64_model_whose_inputs_need_more_digits_is_refused(tmp_path):
    X, y = timestamps(start=1.7e9)
    model = ds.DensitySoftmaxClassifier(random_state=0, epochs=5, width=8).fit(X, y).model_
    for num_rows in (1, 7):
        with pytest.raises(ParityError, match=r"17000.* becomes 17000.*: subtract a constant"):
            ds.export(model, tmp_path / "model.pt2", example=X[:num_rows])
    assert not list(tmp_path.iterdir())


def test_a_float64_model_of_ordinary_numbers_is_exported_in_float32(tmp_path):
    X, y = timestamps(start=1.7e4)
    model = ds.DensitySoftmaxClassifier(random_state=0, epochs=5, width=8).fit(X, y).model_
    ds.export(model, tmp_path / "model.pt2", example=X[:7])
    answer = torch.export.load(tmp_path / "model.pt2").module()(torch.tensor(X).float())
    np.testing.assert_allclose(answer["probs"].detach(), model.predict(X).probs, atol=1e-3)


def test_a_declared_sampling_method_says_that_it_cannot_be_exported(tmp_path):
    model = Deterministic(nn.Linear(2, 5), 3)
    model.draws_samples = True
    with pytest.raises(UserError, match="deterministic draws random samples when it predicts"):
        ds.export(model, tmp_path / "model.onnx", example=draw(1, 2))


def test_undeclared_randomness_is_found(tmp_path):
    model = Deterministic(nn.Sequential(Noisy(), nn.Linear(2, 5)), 3)
    with pytest.raises(UserError, match="draws random samples when it predicts"):
        ds.export(model, tmp_path / "model.onnx", example=draw(1, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": "model.pb"}, r"model\.pb: choose a name that ends in \.onnx or \.pt2"),
        ({"example": draw(2)}, r"example of shape \(2,\): pass a batch"),
        ({"class_names": ["a", "b"]}, "2 class names for 3 classes"),
        ({"quantize": (draw(4, 2), torch.zeros(4))}, "pass heldout="),
        ({"normalisation": {"kind": "images"}}, "it needs kind, mean and std"),
        (
            {"normalisation": {"kind": "images", "mean": (0.0,), "std": (0.0,)}},
            "positive std",
        ),
        (
            {"normalisation": {"kind": "table", "mean": 0.5, "std": (1.0,)}},
            "mean 0.5: pass numbers, one per channel or column",
        ),
        (
            {"normalisation": {"kind": "table", "mean": (0.0,) * 3, "std": (1.0,) * 3}},
            r"3 mean for inputs of shape \(2,\): pass one per column, 2",
        ),
        (
            {"normalisation": {**PLAIN, "columns": ("a", "b", "c")}},
            r"3 columns for inputs of shape \(2,\)",
        ),
        (
            {"normalisation": {**PLAIN, "kind": "images"}},
            r"the model must read \(channels, height, width\)",
        ),
        ({"heldout": (draw(4, 3), torch.zeros(4))}, r"heldout: inputs of shape \(3,\)"),
        ({"heldout": (torch.ones(4, 2).byte(), torch.zeros(4))}, "heldout: .*type torch.uint8"),
        (
            {"model": Deterministic(nn.Linear(2, 5), 3, example=draw(1, 2)), "example": [[1, 2]]},
            "example of type torch.int64: the model reads floats",
        ),
        (
            {"model": Deterministic(nn.Linear(2, 5), 3).double(), "example": [[1, 2]]},
            "example of type torch.int64: the model reads floats",
        ),
        ({"model": nn.Linear(2, 2)}, "a Linear cannot be exported: pass a trained method"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_impossible_request_is_refused_before_any_work(tmp_path, monkeypatch, changes, message):
    monkeypatch.chdir(tmp_path)
    request = {"model": Deterministic(nn.Linear(2, 5), 3), "path": "model.onnx"}
    request |= {"example": draw(1, 2)} | changes
    with pytest.raises(UserError, match=message):
        ds.export(**request)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", [np.float32, torch.tensor])
def test_a_normalisation_may_be_arrays(tmp_path, form):
    normalisation = PLAIN | {"mean": form([0.5, 0.25]), "std": form([1.0, 2.0])}
    model = Deterministic(nn.Linear(2, 5), 3)
    path = tmp_path / "model.pt2"
    exported = ds.export(model, path, example=draw(1, 2), normalisation=normalisation)
    assert exported.card.normalisation == Normalisation("table", (0.5, 0.25), (1.0, 2.0))


def test_held_out_data_may_be_in_float64(tmp_path):
    model, x, y = Deterministic(nn.Linear(2, 5), 3), draw(50, 2), torch.zeros(50).long()
    thresholds = [
        ds.export(
            model,
            tmp_path / "model.pt2",
            example=x[:1],
            heldout=torch.utils.data.TensorDataset(form, y),
        ).card.thresholds
        for form in (x, x.double())
    ]
    assert thresholds[0] == thresholds[1]


def test_held_out_inputs_that_are_not_finite_are_left_out(tmp_path):
    x, y, rows = draw(50, 2), torch.zeros(50), torch.arange(50) != 3
    broken, model = x.clone(), Deterministic(nn.Linear(2, 5), 3)
    broken[3, 1] = torch.nan
    first, second = (
        ds.export(model, tmp_path / "m.pt2", example=x[:1], heldout=pair).card.policy
        for pair in ((broken, y), (x[rows], y[rows]))
    )
    assert as_json(first.typical) == as_json(second.typical)
    assert first.samples["not finite"] == 1


def test_probes_are_the_example_and_then_others():
    example = draw(2, 3)
    rows = _probes(example, 7)
    assert torch.equal(rows[:2], example)
    assert torch.equal(_probes(example, 1), example[:1])
    assert len(rows.unique(dim=0)) == 7


class Expanding(nn.Module):
    """Adds a token to every input of a batch, whose size it takes in one of several ways."""

    def __init__(self, size):
        super().__init__()
        self.size, self.token, self.linear = size, nn.Parameter(torch.randn(1, 4)), nn.Linear(5, 4)

    def forward(self, x):
        return self.linear(x) + self.token.expand(self.size(x), 4)


@pytest.mark.parametrize(
    "size", [len, lambda x: int(x.shape[0]), lambda x: 2], ids=["len", "int", "constant"]
)
def test_a_batch_size_that_was_frozen_is_named_with_how_to_write_it(size, tmp_path):
    method = Deterministic(Expanding(size), 3, example=torch.zeros(2, 5))
    with pytest.raises(
        UserError, match=r"batch size into a fixed number.*write x\.shape\[0\], or -1"
    ):
        ds.export(method, tmp_path / "model.pt2", example=torch.zeros(2, 5))
    for free in (lambda x: x.shape[0], lambda x: x.size(0)):
        method = Deterministic(Expanding(free), 3, example=torch.zeros(2, 5))
        ds.export(method, tmp_path / "model.pt2", example=torch.zeros(2, 5))


class Deciding(nn.Linear):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


def test_a_decision_by_values_is_named_with_its_line(tmp_path):
    method = Deterministic(Deciding(5, 4), 3, example=torch.zeros(2, 5))
    with pytest.raises(UserError, match=r'by the values of a tensor at .*:\d+ "return .*where'):
        ds.export(method, tmp_path / "model.pt2", example=torch.zeros(2, 5))
