"""A model predicts what a path leads to as it predicts a batch."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import density_softmax as ds
from density_softmax.errors import DataError, UserError
from trained_models import KINDS, trained

COLOURS = {"kind": "images", "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3)}


@pytest.fixture(scope="module", params=["MLP", "ResNet", "LSTM"])
def attached(request):
    model, train, calibration, (x, _) = trained(*KINDS[request.param][:2])
    made = ds.attach(model, train=train, calibration=calibration, progress=False)
    return request.param, made, x


pytestmark = pytest.mark.filterwarnings("ignore::density_softmax.errors.CalibrationWarning")


def test_an_array_and_a_table_are_predicted_as_their_rows_are(attached, tmp_path):
    kind, model, x = attached
    expected = model.predict(x)
    np.savez(tmp_path / "x.npz", x=x.numpy())
    paths = [tmp_path / "x.npz"]
    if kind == "MLP":
        np.savetxt(tmp_path / "x.csv", x.numpy(), delimiter=",")
        paths.append(tmp_path / "x.csv")
    for path in paths:
        for found in (model.predict(path), model.predict(str(path), progress=True)):
            for ours, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
            assert found.inputs == tuple(map(str, range(len(x))))
            torch.testing.assert_close(found.typicality, expected.typicality, atol=0.02, rtol=0)
            frame = found.to_pandas()
            assert list(frame["input"]) == list(found.inputs)
            assert "Prediction(" in repr(found)


def test_a_loader_and_a_path_are_explained_as_their_rows_are(attached, tmp_path):
    kind, model, x = attached
    np.savez(tmp_path / "x.npz", x=x[:6].numpy())
    expected = model.explain(x[:6], occlusion=False)
    loader = DataLoader(TensorDataset(x[:6], torch.zeros(6)), batch_size=4)
    for given in (loader, tmp_path / "x.npz", str(tmp_path / "x.npz")):
        found = model.explain(given, occlusion=False)
        assert found.names == expected.names
        np.testing.assert_allclose(found.parts, expected.parts, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found.parts.sum(1), found.epistemic, rtol=1e-5)
        if kind == "MLP":
            np.testing.assert_allclose(found.columns, expected.columns, rtol=1e-3, atol=1e-3)


def test_images_of_a_loader_are_explained_with_their_maps():
    model, train, calibration, (x, _) = trained(*KINDS["ResNet"][:2])
    made = ds.attach(model, train=train, calibration=calibration, progress=False)
    found = made.explain(DataLoader(TensorDataset(x[:2]), batch_size=1))
    assert found.occlusion.shape == (2, *x.shape[2:])
    with pytest.raises(UserError, match="no batch: there is nothing to explain"):
        made.explain(DataLoader(TensorDataset(x[:0]), batch_size=1))


def test_a_folder_of_images_needs_to_be_told_how_they_are_normalised(tmp_path):
    model, train, calibration, _ = trained(*KINDS["ResNet"][:2])
    made = ds.attach(model, train=train, calibration=calibration, progress=False)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    for name, image in zip(("a.png", "b.png"), pixels, strict=True):
        Image.fromarray(image).save(tmp_path / name)
    (tmp_path / "c.png").write_bytes(b"no image")
    found = made.predict(tmp_path, normalisation=COLOURS)
    x = (pixels / 255 - np.array(COLOURS["mean"])) / np.array(COLOURS["std"])
    expected = made.predict(np.float32(x.transpose(0, 3, 1, 2)))
    torch.testing.assert_close(found.probs[:2], expected.probs, atol=1e-4, rtol=0)
    assert found.inputs == ("a.png", "b.png", "c.png")
    assert found.epistemic.isinf().tolist() == [False, False, True]
    assert found.notes[:2] == ("", "")
    assert found.notes[2]
    with pytest.raises(DataError, match="normalisation="):
        made.predict(tmp_path)


def test_a_model_of_several_inputs_refuses_a_path(tmp_path):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(4, 2)

        def forward(self, a, b):
            return self.out(torch.cat([a, b], 1))

    network, inputs = Two(), {"a": torch.randn(300, 2), "b": torch.randn(300, 2)}
    with torch.no_grad():
        y = network(**inputs).argmax(1)
    train = {n: v[:200] for n, v in inputs.items()}, y[:200]
    calibration = {n: v[200:] for n, v in inputs.items()}, y[200:]
    model = ds.attach(network, train=train, calibration=calibration, progress=False)
    with pytest.raises(UserError, match="or there are several"):
        model.predict(tmp_path / "x.npz")
