"""The Python of the documentation runs, page by page, and prints what the page says it prints."""

import contextlib
import io
import re
import shlex
import warnings
from collections import OrderedDict

import pytest
import torch
from fenced_blocks import PAGES, blocks, name
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

import density_softmax as ds
from density_softmax.cli.main import app

WITH_PYTHON = [page for page in PAGES if any(b.language == "python" for b in blocks(page))]
NUMBER = re.compile(r"\d+\.\d+")


def images(count, num_classes):
    y = torch.arange(count) % num_classes
    return torch.randn(count, 3, 8, 8) + y[:, None, None, None], y


def classifier(num_classes):
    layers = {
        "layer1": nn.Conv2d(3, 8, 3),
        "layer2": nn.Conv2d(8, 8, 3),
        "pool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "fc": nn.Linear(8, num_classes),
    }
    model = nn.Sequential(OrderedDict(layers))
    optimizer, (x, y) = torch.optim.Adam(model.parameters(), lr=0.03), images(200, num_classes)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


def trained_model():
    """What a reader has who wants uncertainty for it."""
    train, valid = (TensorDataset(*images(count, 4)) for count in (200, 100))
    return {
        "resnet": classifier(4),
        "train_loader": DataLoader(train, batch_size=50, shuffle=True),
        "valid_loader": DataLoader(valid, batch_size=50),
        "x": images(5, 4)[0],
    }


def policy_data():
    """What a reader has who wants to choose a threshold, too."""
    x_policy, y_policy = images(600, 4)
    return {**trained_model(), **table(), "x_policy": x_policy, "y_policy": y_policy}


def table():
    x, y = torch.randn(150, 20), torch.arange(150) % 3
    x += y[:, None]
    halves = {"x_train": x[:100], "y_train": y[:100], "x_valid": x[100:], "y_valid": y[100:]}
    return {**halves, "X": x.numpy(), "y": y.numpy()}


def attached_model():
    """What a reader has who wants to serve it."""
    train, heldout = images(200, 2), images(100, 2)
    model = ds.attach(classifier(2), head="fc", train=train, calibration=heldout, progress=False)
    photos = torch.randint(256, (4, 8, 8, 3), dtype=torch.uint8).numpy()
    return {
        "ds": ds,
        "model": model,
        "x": train[0],
        "x_held": heldout[0],
        "y_held": heldout[1],
        "images": photos,
    }


def compared_model():
    """What a reader has who wants to know which method is best for it."""
    sets = {"test_loader": images(80, 4), "fog_loader": images(60, 4)}
    loaders = {name: DataLoader(TensorDataset(*data), batch_size=50) for name, data in sets.items()}
    return {**trained_model(), **loaders, "svhn_loader": 9 * torch.randn(50, 3, 8, 8)}


class CornersModel:
    """Five classes around the corners of a simplex, told apart too sharply."""

    def predict(self, x):
        entropy = torch.distributions.Categorical(logits=2.5 * x).entropy()
        return ds.Prediction((2.5 * x).softmax(1), entropy, (x - 0.5).square().sum(1))


def corners(count, shift=0.0):
    y = torch.randint(5, (count,))
    return torch.randn(count, 5) + 2.5 * torch.eye(5)[y] + shift, y


def decisions():
    """What a reader has who wants to act on predictions."""
    x_valid, y_valid = corners(2000)
    x = torch.zeros(5, 5)
    x[range(4), [2, 1, 0, 1]] = torch.tensor([2.5, 2.5, 2.5, 0.5])
    x[3, 0], x[4, 3] = 0.4, 40.0  # torn between two classes, and far away
    given = {"x_today": 1000, "x_elsewhere": 1000}
    found = {name: corners(count)[0] for name, count in given.items()}
    found["x_elsewhere"] = found["x_elsewhere"][found["x_elsewhere"].amax(1) < 3]
    x_tomorrow, x_new = corners(200, 1.0)[0], corners(500)
    data = {"x_valid": x_valid, "y_valid": y_valid, "x_new": x_new[0], "y_new": x_new[1]}
    own = {"net": classifier(4), "train": images(200, 4), "valid": images(400, 4)}
    own["test"] = images(200, 4)
    return {"model": CornersModel(), "x": x, "x_tomorrow": x_tomorrow, **data, **found, **own}


# The names that a page takes for granted. The others take none.
GIVEN = {
    "README.md": lambda: {**trained_model(), **table()},
    "docs/attach.md": trained_model,
    "docs/compare.md": compared_model,
    "docs/decisions.md": decisions,
    "docs/deployment.md": attached_model,
    "docs/index.md": trained_model,
    "docs/layers.md": trained_model,
    "docs/migrate.md": policy_data,
    "docs/thresholds.md": policy_data,
}


# Pages whose commands are run too, with the files that their Python has written.
WITH_COMMANDS = ("docs/start.md", "docs/vision.md")

# Packages that a page is about, and that not everybody has.
NEEDS = {"docs/text.md": "transformers", "docs/lightning.md": "lightning"}


@pytest.mark.filterwarnings("ignore::density_softmax.errors.CalibrationWarning")
@pytest.mark.parametrize("page", WITH_PYTHON, ids=name)
def test_the_python_of_a_page_runs_and_prints_what_it_says(page, tmp_path, monkeypatch):
    if name(page) in NEEDS:
        pytest.importorskip(NEEDS[name(page)])
        warnings.filterwarnings("ignore", module=NEEDS[name(page)])  # of its own habits
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names, printed = GIVEN.get(name(page), dict)(), ""
    for language, text, line in blocks(page):
        if language == "text":
            assert_alike(printed, text)
        if language == "python":
            # Errors name the page and its line.
            code = compile("\n" * (line - 1) + text, str(page), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(code, names)
            printed = stream.getvalue()
        if language in ("", "bash") and name(page) in WITH_COMMANDS:
            run_commands(text)


def run_commands(text):
    """Those of a block that need no environment of their own."""
    for line in text.splitlines():
        if line.startswith("density-softmax "):
            result = CliRunner().invoke(app, shlex.split(line)[1:])
            assert result.exit_code == 0, (line, result.output, result.exception)


def assert_alike(printed, said):
    """The same words, and numbers that differ by rounding and by the machine at most."""
    assert NUMBER.sub("0", printed).split() == NUMBER.sub("0", said).split()
    for ours, theirs in zip(NUMBER.findall(printed), NUMBER.findall(said), strict=True):
        assert float(ours) == pytest.approx(float(theirs), abs=0.03)
