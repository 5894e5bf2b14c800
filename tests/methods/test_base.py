import copy
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import TensorDataset

from density_softmax.deploy.export import export
from density_softmax.errors import UserError
from density_softmax.files import StorageError
from density_softmax.methods import load
from density_softmax.methods.base import Method
from density_softmax.methods.batch_ensemble import BatchEnsemble
from density_softmax.methods.ddu import DDU
from density_softmax.methods.deep_ensemble import DeepEnsemble
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.methods.deterministic import (
    ConstantTemperature,
    Deterministic,
    TemperatureScaling,
)
from density_softmax.methods.due import DUE
from density_softmax.methods.duq import DUQ
from density_softmax.methods.heteroscedastic import Heteroscedastic
from density_softmax.methods.mc_dropout import MCDropout
from density_softmax.methods.mean_field import MeanField
from density_softmax.methods.mimo import MIMO
from density_softmax.methods.natural_posterior_network import NaturalPosteriorNetwork
from density_softmax.methods.posterior_network import PosteriorNetwork
from density_softmax.methods.rank1_bnn import Rank1BNN
from density_softmax.methods.sngp import SNGP
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.layers.processes import RandomFeatureProcess
from density_softmax.nn.softmax.scale import MaxScale

METHODS = {
    "deterministic": Deterministic.Config(),
    "temperature_scaling": TemperatureScaling.Config(),
    "constant_temperature": ConstantTemperature.Config(temperature=1.6),
    "deep_ensemble": DeepEnsemble.Config(num_members=2),
    "mean_field": MeanField.Config(num_samples=3, chunk=2, initial_std=0.1),
    "rank1_bnn": Rank1BNN.Config(num_members=2, num_samples=2),
    "batch_ensemble": BatchEnsemble.Config(num_members=2),
    "sngp": SNGP.Config(process=RandomFeatureProcess.Config(num_features=16, num_inputs=4)),
    "ddu": DDU.Config(bound=0.5),
    "duq": DUQ.Config(length_scale=1.0, centroid_size=4),
    "due": DUE.Config(num_inducing=4),
    "mc_dropout": MCDropout.Config(num_samples=3, chunk=2),
    "heteroscedastic": Heteroscedastic.Config(num_samples=20, chunk=8),
    "mimo": MIMO.Config(),
    "posterior_network": PosteriorNetwork.Config(latent=3, layers=2),
    "natural_posterior_network": NaturalPosteriorNetwork.Config(latent=3, layers=2),
    "density_softmax": DensitySoftmax.Config(),
    "density_softmax, max": DensitySoftmax.Config(scale=MaxScale.Config(), head=None),
}
NUM_CLASSES = 3


def inputs(num_samples: int = 6) -> torch.Tensor:
    return torch.randn(num_samples, 2, generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    torch.manual_seed(0)
    method = METHODS[request.param].build(ResFFN(2, depth=2, width=6), NUM_CLASSES)
    for buffer in method.buffers():
        if buffer.is_floating_point():
            buffer.add_(0.5 * torch.rand(buffer.shape))
    return method


def test_probabilities_sum_to_one_and_uncertainties_are_one_per_sample(method: Method) -> None:
    probs, aleatoric, epistemic = method.predict(inputs())
    assert probs.shape == (6, NUM_CLASSES)
    torch.testing.assert_close(probs.sum(1), torch.ones(6))
    assert aleatoric.shape == epistemic.shape == (6,)
    assert ((aleatoric >= 0) & (aleatoric <= math.log(NUM_CLASSES) + 1e-6)).all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_bad_rows_are_flagged_and_the_others_served_as_ever(method: Method, value: float) -> None:
    x = inputs()
    clean = x.clone()
    clean[[1, 4]] = 0
    x[1, 0], x[4, 1] = value, value
    served, expected = method.predict(x, seed=0), method.predict(clean, seed=0)
    good = [0, 2, 3, 5]
    for ours, theirs in zip(served, expected, strict=True):
        assert torch.equal(ours[good], theirs[good])
    for row in (1, 4):
        torch.testing.assert_close(served.probs[row], torch.full((NUM_CLASSES,), 1 / NUM_CLASSES))
        assert served.aleatoric[row].item() == pytest.approx(math.log(NUM_CLASSES))
        assert served.epistemic[row] == math.inf


def test_batch_of_bad_rows_only_is_flagged(method: Method) -> None:
    assert (method.predict(torch.full((3, 2), math.nan)).epistemic == math.inf).all()


def test_empty_batch_gives_an_empty_prediction(method: Method) -> None:
    assert method.predict(torch.zeros(0, 2)).probs.shape == (0, NUM_CLASSES)


def test_numbers_too_large_for_float32_are_flagged(method: Method) -> None:
    assert method.predict(np.array([[1e300, 0.0]])).epistemic.item() == math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_no_finite_number_is_flagged_for_its_size_alone(dtype: torch.dtype) -> None:
    x = torch.full((2, 8, 50), torch.finfo(dtype).max, dtype=dtype)
    bounded = nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(400, 5))
    method = Deterministic(bounded, NUM_CLASSES, example=torch.zeros(1, 8, 50)).to(dtype)
    assert method.predict(x).epistemic.isfinite().all()


def test_arrays_and_lists_are_served_like_tensors(method: Method) -> None:
    expected = method.predict(inputs(), seed=0).probs
    assert torch.equal(method.predict(inputs().double().numpy(), seed=0).probs, expected)
    assert torch.equal(method.predict(inputs().tolist(), seed=0).probs, expected)


def test_arrays_that_torch_does_not_take_are_served_too(method: Method) -> None:
    expected = method.predict(inputs(), seed=0).probs
    backwards = inputs().numpy()[::-1].copy()[::-1]
    backwards.flags.writeable = False
    for x in (backwards, pd.DataFrame(inputs().numpy())):
        assert torch.equal(method.predict(x, seed=0).probs, expected)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.array([["a", "b"]]), "inputs of type <U1: predict takes a batch of numbers"),
        (np.array([[None, 1.0]]), "inputs of type object: predict takes a batch of numbers"),
        (inputs() + 1j, "inputs of type complex64: predict takes a batch of numbers"),
        (TensorDataset(inputs()), r"inputs are a TensorDataset: .* pass DataLoader\(dataset\)"),
        ((inputs(), torch.arange(6)), "inputs are a tuple of rows that differ .* without labels"),
        ([[1.0, 2.0], [3.0]], "inputs are a list of rows that differ in shape"),
        ({"pixels": inputs()}, "inputs are a dict of pixels: .* pass one of them"),
        (inputs()[0], r"inputs of shape \(2,\): predict takes a batch of them, pass x\[None\]"),
        (inputs(6)[:, :1], r"cannot read inputs of shape \(6, 1\) .* built with \(batch, 2\)"),
    ],
    ids=[
        "text",
        "objects",
        "complex",
        "data set",
        "pair",
        "ragged",
        "dict",
        "one",
        "width",
    ],
)
def test_what_is_no_batch_is_refused_with_what_to_pass(x: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Deterministic(nn.Linear(2, 4), NUM_CLASSES, example=inputs()).predict(x)


def test_a_single_image_is_refused_where_a_layer_would_take_it_for_a_batch() -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    method = Deterministic(encoder, NUM_CLASSES, example=torch.zeros(1, 3, 8, 8))
    with pytest.raises(UserError, match=r"shape \(3, 8, 8\): .* pass x\[None\]"):
        method.predict(torch.zeros(3, 8, 8))
    # Images of another size are no error of their own.
    assert method.predict(torch.zeros(2, 3, 9, 7)).probs.shape == (2, NUM_CLASSES)


def test_a_list_of_tensors_is_served_like_a_batch() -> None:
    method = Deterministic(nn.Linear(2, 4), NUM_CLASSES)
    assert torch.equal(method.predict(list(inputs())).probs, method.predict(inputs()).probs)


def test_an_error_that_is_not_about_inputs_stays_what_it_is() -> None:
    class Broken(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("CUDA error: device-side assert")

    method = Deterministic(nn.Linear(2, 4), NUM_CLASSES, example=inputs())
    method.encoder = Broken(2, 4)
    with pytest.raises(RuntimeError, match="device-side assert") as caught:
        method.predict(inputs())
    assert not isinstance(caught.value, UserError)


def test_an_encoder_that_is_no_module_is_refused() -> None:
    with pytest.raises(UserError, match=r"the encoder is a str: pass a torch\.nn\.Module"):
        Deterministic("resnet18", NUM_CLASSES)  # type: ignore[arg-type]


def test_a_method_says_in_a_line_what_it_is(method: Method) -> None:
    text = repr(method)
    assert "\n" not in text
    assert text.startswith(f"{type(method).__name__} around")
    assert f"{NUM_CLASSES} classes" in text
    assert "not fitted" in text
    assert "not fitted" not in repr(method.mark_fitted())
    assert "(encoder)" in nn.Module.__repr__(method) or "(members)" in nn.Module.__repr__(method)


def test_a_prediction_says_in_a_line_what_it_holds(method: Method) -> None:
    prediction = method.predict(inputs(), seed=0)
    probs = prediction.probs.double()
    assert tuple(prediction) == prediction[:] == (prediction.probs, *prediction[1:])
    assert torch.equal(prediction.labels, probs.argmax(1))
    torch.testing.assert_close(prediction.confidence.double(), probs.max(1).values)
    torch.testing.assert_close(prediction.entropy.double(), -(probs * probs.log()).sum(1))
    means = [f"{part.double().mean():.3g}" for part in (prediction.confidence, *prediction[1:])]
    assert all(text in repr(prediction) for text in ("6 samples, 3 classes", *means))
    assert "0 samples, 3 classes" in repr(method.predict(inputs()[:0]))


def test_whole_numbers_are_served_like_floats_if_the_example_had_floats() -> None:
    x = torch.arange(12).view(6, 2)
    method = Deterministic(nn.Linear(2, 4), NUM_CLASSES, example=torch.zeros(1, 2))
    expected = method.predict(x.float()).probs
    for whole in (x, x.int().numpy(), x.tolist(), x.to(torch.uint8)):
        assert torch.equal(method.predict(whole).probs, expected)
    tokens = Deterministic(
        nn.Sequential(nn.Embedding(12, 4), nn.Flatten()),
        NUM_CLASSES,
        example=torch.zeros(1, 2).int(),
    )
    assert tokens.predict(x).probs.shape == (6, NUM_CLASSES)


def test_threads_are_served_as_if_each_were_alone() -> None:
    """Also if modes have to be changed, and by a method that draws samples."""
    network = nn.Sequential(nn.Linear(2, 64), nn.Dropout(0.5), nn.Linear(64, 6))
    method = MCDropout.Config(num_samples=3, chunk=2).build(network, NUM_CLASSES).train()
    xs = [inputs(5 + number % 3) + number for number in range(40)]
    expected = [method.predict(x, seed=0).probs for x in xs]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda x: method.predict(x, seed=0).probs, xs))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    assert all(module.training for module in method.modules())


@pytest.mark.parametrize("mode", [True, False])
def test_predict_restores_the_mode(method: Method, mode: bool) -> None:
    method.train(mode)
    method.predict(inputs())
    assert all(module.training is mode for module in method.modules())


def test_predict_restores_the_mode_after_an_error(method: Method) -> None:
    method.train()
    with pytest.raises(UserError, match=r"cannot read inputs of shape"):
        method.predict(torch.zeros(3, 5))
    assert method.training


def test_predict_is_in_evaluation_mode_and_without_gradients() -> None:
    encoder = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5))
    method = Deterministic(encoder, NUM_CLASSES).train()
    first = method.predict(inputs())
    assert torch.equal(first.probs, method.predict(inputs()).probs)
    assert not any(part.requires_grad for part in first)


@pytest.mark.parametrize(
    ("encoder", "shape"),
    [(nn.Linear(2, 5), r"\(6, 5\)"), (nn.Unflatten(1, (2, 1)), r"\(6, 2, 1\)")],
)
def test_features_of_the_wrong_shape_are_refused(encoder: nn.Module, shape: str) -> None:
    method = Deterministic(nn.Linear(2, 4), NUM_CLASSES)
    method.encoder = encoder
    with pytest.raises(ValueError, match=rf"shape {shape}, expected \(batch, 4\)"):
        method.predict(inputs())


@pytest.mark.parametrize(
    ("encoder", "example", "width"),
    [
        (ResFFN(2, depth=1, width=6), None, 6),
        (nn.Sequential(nn.Linear(2, 7), nn.ReLU()), None, 7),
        (nn.Identity(), torch.zeros(3, 2), 2),
    ],
    ids=["declared", "last linear layer", "measured"],
)
def test_width_of_the_features_is_found(
    encoder: nn.Module, example: torch.Tensor | None, width: int
) -> None:
    method = Deterministic(encoder, NUM_CLASSES, example=example)
    assert method.num_features == width
    assert method.predict(inputs()).probs.shape == (6, NUM_CLASSES)


def test_unknown_width_asks_for_it() -> None:
    with pytest.raises(ValueError, match=r"how many features Identity returns: pass example="):
        Deterministic(nn.Identity(), NUM_CLASSES)


@pytest.mark.parametrize("num_classes", [1, 0, -3])
def test_fewer_than_two_classes_are_refused(num_classes: int) -> None:
    with pytest.raises(ValueError, match=rf"num_classes={num_classes}: .* at least two"):
        Deterministic(nn.Linear(2, 2), num_classes)


def test_loaded_method_predicts_the_same(method: Method, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    method.save(path)
    loaded = load(path, ResFFN(2, depth=2, width=6))
    assert type(loaded) is type(method)
    assert loaded.config == method.config
    assert not loaded.training
    served, expected = loaded.predict(inputs(), seed=0), method.predict(inputs(), seed=0)
    for ours, theirs in zip(served, expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "encoder",
    [ResFFN(2, depth=3, width=6), ResFFN(2, depth=2, width=5), ResFFN(3, depth=2, width=6)],
    ids=["deeper", "narrower", "more inputs"],
)
def test_other_encoder_is_refused(method: Method, tmp_path: Path, encoder: nn.Module) -> None:
    method.save(tmp_path / "model.safetensors")
    with pytest.raises(StorageError, match=r"model\.safetensors: does not fit this encoder"):
        load(tmp_path / "model.safetensors", encoder)


def test_a_refused_encoder_is_left_as_it_was(tmp_path: Path) -> None:
    Deterministic(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 4)), 3).save(tmp_path / "m")
    encoder = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 5))
    before = copy.deepcopy(encoder.state_dict())
    with pytest.raises(
        StorageError, match=r"encoder\.1\.bias is \(4,\) in the file and \(5,\) here"
    ):
        load(tmp_path / "m", encoder)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_loading_leaves_the_global_generator_alone(method: Method, tmp_path: Path) -> None:
    method.save(tmp_path / "model.safetensors")
    encoder, state = ResFFN(2, depth=2, width=6), torch.get_rng_state()
    load(tmp_path / "model.safetensors", encoder)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_flipped_bit_anywhere_in_a_file_is_noticed(tmp_path: Path) -> None:
    """One bit of every byte: the length of the header, names, shapes, metadata and values."""
    path, encoder = tmp_path / "model.safetensors", nn.Linear(2, 2)
    Deterministic(nn.Linear(2, 2), 2, example=torch.zeros(1, 2)).save(path)
    content = path.read_bytes()
    load(path, encoder)
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match=r"model\.safetensors: "):
            load(path, encoder)


def test_a_file_of_another_format_names_the_version_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("density_softmax.methods.base.MODEL_FORMAT", "7")
    monkeypatch.setattr("density_softmax.methods.base.__version__", "9.2.1")
    Deterministic(nn.Linear(2, 2), 2).save(tmp_path / "m")
    with pytest.raises(StorageError, match=r"format 7, written by density-softmax 9\.2\.1"):
        load(tmp_path / "m", nn.Linear(2, 2))


def test_file_that_names_no_method_is_refused(tmp_path: Path) -> None:
    save_file({"x": torch.ones(1)}, tmp_path / "other.safetensors")
    with pytest.raises(StorageError, match=r"other\.safetensors: not written by Method\.save"):
        load(tmp_path / "other.safetensors", nn.Identity())


def test_everything_learned_is_a_parameter_or_a_buffer(method: Method) -> None:
    other = method.config.build(ResFFN(2, depth=2, width=6), NUM_CLASSES)
    other.load_state_dict(method.state_dict())
    served, expected = other.predict(inputs(), seed=0), method.predict(inputs(), seed=0)
    assert torch.equal(served.probs, expected.probs)


def test_a_method_exports_exactly_if_it_draws_no_samples(method: Method, tmp_path: Path) -> None:
    file = tmp_path / "model.pt2"
    if method.draws_samples:
        with pytest.raises(UserError, match=r"draws random samples when it predicts"):
            export(method, file, example=inputs())
        assert not file.exists()
    else:
        # Parity at batch sizes 1 and 7 is the export's own condition.
        assert max(export(method, file, example=inputs()).parity.values()) <= 1e-5
