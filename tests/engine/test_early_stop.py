"""Patience: a stage stops when the held-out value no longer improves, and keeps the best."""

import dataclasses
import math
import os
import subprocess
import sys

import pytest
import torch
from test_fit import Killed, kill_after, same_weights
from torch import nn
from torch.nn import functional as F
from toy_problem import EVERY_EPOCH, descent, points, small_method

from density_softmax.config import ConfigError
from density_softmax.data import ArraySource
from density_softmax.engine import fit
from density_softmax.engine.checkpoints import Epoch
from density_softmax.engine.descent import Patience
from density_softmax.errors import UserError
from density_softmax.files import load_tensors
from density_softmax.methods.base import Method
from density_softmax.methods.deterministic import Deterministic
from density_softmax.training import Adam, Constant, Descent, Train

EPOCHS = 30


class Overfitting(Method):
    """Too large for its few noisy labels; batch norm, so that buffers change with the weights."""

    def __init__(self, patience=None, epochs=EPOCHS, monitored=True):
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
        super().__init__(encoder, 2, Deterministic.Config())
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.patience, self.epochs, self.monitored = patience, epochs, monitored

    def nll(self, batch):
        return F.cross_entropy(self.encoder(batch.x), batch.y, reduction="none")

    def stages(self):
        how = Descent(self.epochs, 8, Adam(lr=2e-3), Constant(), patience=self.patience)
        watch = (lambda batch: {"nll": self.nll(batch)}) if self.monitored else None
        parameters = list(self.encoder.parameters())
        return (Train("fit", lambda b: self.nll(b).mean(), parameters, how, monitor=watch),)

    def forward(self, x):
        raise AssertionError("not needed")


def noisy(num_samples, seed):
    source = points(num_samples, seed)
    flipped = torch.rand(num_samples, generator=torch.Generator().manual_seed(seed)) < 0.2
    return ArraySource(source.x, source.y ^ flipped)


def trained(method, **options):
    options = {"engine": EVERY_EPOCH, "progress": False} | options
    return fit(method, noisy(40, 1), noisy(200, 2), **options)


def heldout(record):
    """The values after each epoch; the one before the first is recorded as epoch 0."""
    return [epoch.values["heldout_nll"] for epoch in record.epochs if epoch.epoch > 0]


@pytest.fixture(scope="module")
def curve():
    """The held-out values of all epochs, without patience."""
    return heldout(trained(Overfitting()))


def best_of(values):
    return values.index(min(values))


def expected_length(values, patience):
    """How many epochs are run, written as the rule reads."""
    lowest, waited = math.inf, 0
    for number, value in enumerate(values):
        lowest, waited = (value, 0) if value < lowest else (lowest, waited + 1)
        if waited == patience:
            return number + 1
    return len(values)


def test_the_problem_overfits(curve):
    assert 0 < best_of(curve) < EPOCHS - 5
    assert curve[-1] > min(curve) + 0.05


@pytest.mark.parametrize("patience", [1, 2, 3, 5, 1000])
def test_a_stage_stops_when_patience_is_over_and_ends_with_its_best_epoch(curve, patience):
    method = Overfitting(patience)
    values = heldout(trained(method))
    assert values == curve[: expected_length(curve, patience)]
    # Weights and running statistics are those after the best epoch of a run of that length.
    with torch.no_grad():
        nll = method.nll(noisy(200, 2)).double().mean().item()
    assert nll == pytest.approx(min(values), rel=1e-6)
    same_weights(method, epochs_long(1 + best_of(values)))


def epochs_long(epochs):
    method = Overfitting(epochs=epochs)
    trained(method)
    return method


class Leaving(Overfitting):
    """Watched by how far its weights are from where they began, so that no epoch is as good."""

    def stages(self):
        begun = [parameter.clone() for parameter in self.encoder.parameters()]

        def distance(batch):
            pairs = zip(self.encoder.parameters(), begun, strict=True)
            moved = sum((now - before).square().sum() for now, before in pairs)
            return {"nll": moved.expand(len(batch.y))}

        (stage,) = super().stages()
        return (dataclasses.replace(stage, monitor=distance),)


def test_a_stage_with_patience_never_ends_worse_than_it_began():
    method, begun = Leaving(patience=2), Leaving()
    values = [epoch.values["heldout_nll"] for epoch in trained(method).epochs]
    assert len(values) == 1 + 2
    assert min(values[1:]) > values[0] == 0
    same_weights(method, begun)


def test_without_patience_the_last_epoch_is_kept():
    method = Overfitting()
    values = heldout(trained(method))
    with torch.no_grad():
        nll = method.nll(noisy(200, 2)).double().mean().item()
    assert nll == pytest.approx(values[-1], rel=1e-6)
    assert len(values) == EPOCHS


@pytest.mark.parametrize("steps", [3, 12, 29, 38, 47])
def test_a_killed_run_resumes_to_the_same_best_weights(curve, steps, tmp_path, monkeypatch):
    undisturbed = Overfitting(patience=4)
    whole = trained(undisturbed)
    assert 5 * len(whole.epochs) > 47
    with monkeypatch.context() as patch:
        kill_after(patch, torch.optim.Adam, "step", steps)
        with pytest.raises(Killed):
            trained(Overfitting(patience=4), directory=tmp_path)
    method = Overfitting(patience=4)
    again = trained(method, directory=tmp_path, resume=True)
    same_weights(undisturbed, method)
    assert again.epochs == whole.epochs


def test_a_run_killed_between_its_stop_and_its_record_stops_again(tmp_path, monkeypatch):
    undisturbed = Overfitting(patience=2)
    whole = trained(undisturbed)
    with monkeypatch.context() as patch:
        kill_after(patch, Patience, "restore", 0)
        with pytest.raises(Killed):
            trained(Overfitting(patience=2), directory=tmp_path)
    method = Overfitting(patience=2)
    assert trained(method, directory=tmp_path, resume=True).epochs == whole.epochs
    same_weights(undisturbed, method)


def test_frozen_weights_are_not_copied():
    method = Overfitting(patience=1)
    (stage,) = method.stages()
    patience = Patience(stage, method, [], {})
    patience.look([Epoch("fit", 1, {"loss": 0.0, "heldout_nll": 1.0})])
    assert not any(name.startswith("frozen") for name in patience.best)
    assert {"encoder.0.weight", "encoder.1.running_mean"} <= patience.best.keys()


@pytest.mark.parametrize(
    ("values", "waited"),
    [
        ([1.0], 0),
        ([1.0, 1.0, 1.0], 2),
        ([1.0, 0.5, 0.7], 1),
        ([1.0, math.nan], 1),
        ([math.nan, 5.0], 0),
        ([math.inf, math.inf], 1),
    ],
)
def test_what_is_not_lower_is_no_improvement(values, waited):
    method = Overfitting(patience=9)
    (stage,) = method.stages()
    record = [Epoch("other", 1, {"heldout_nll": -1.0})]
    record += [Epoch("fit", i, {"heldout_nll": v, "heldout_x": -v}) for i, v in enumerate(values)]
    assert Patience(stage, method, record, {}).waited == waited


def test_every_stage_of_a_method_has_patience_of_its_own():
    method = small_method(head=descent(9, patience=1), representation=descent(9, patience=2))
    data = points(40, 1), points(20, 2)
    record = fit(method, *data, engine=EVERY_EPOCH, progress=False)
    lengths = {"representation": 2, "head": 1}
    for stage, patience in lengths.items():
        values = [e.values["heldout_nll"] for e in record.epochs if e.stage == stage]
        assert len(values) == expected_length(values, patience)


def test_patience_without_a_monitored_value_is_refused():
    with pytest.raises(UserError, match="stage fit: patience needs a monitored value"):
        trained(Overfitting(patience=1, monitored=False))


def test_patience_below_one_epoch_is_refused():
    with pytest.raises(ConfigError, match="patience=0"):
        Descent(epochs=1, patience=0)


def test_descents_are_without_patience_unless_told():
    assert Descent(epochs=1).patience is None


TWO_PROCESSES = """
import os, sys
from safetensors.torch import save_file
from test_early_stop import PAIR, linear, trained
method = linear()
length = len(trained(method, engine=PAIR).epochs)
if os.environ["LOCAL_RANK"] == "0":
    save_file(method.state_dict(), sys.argv[1], {"epochs": str(length)})
"""
ALONE = dataclasses.replace(EVERY_EPOCH, threads=1)
PAIR = dataclasses.replace(ALONE, devices=2)


def linear():
    """Without batch norm, which sees the part of a batch on its own device."""
    method = Overfitting(patience=3)
    method.encoder[1] = nn.Identity()
    return method


def test_two_processes_stop_together_at_the_weights_of_one(tmp_path):
    method = linear()
    length = len(trained(method, engine=ALONE).epochs)
    assert length < EPOCHS
    weights = tmp_path / "weights.safetensors"
    (tmp_path / "two.py").write_text(TWO_PROCESSES)
    # A process that went on alone would wait for the other until the timeout.
    subprocess.run(
        [sys.executable, str(tmp_path / "two.py"), str(weights)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=240,
        check=True,
    )
    found, metadata = load_tensors(weights)
    assert metadata == {"epochs": str(length)}
    for name, value in method.state_dict().items():
        assert torch.allclose(found[name], value, rtol=1e-3, atol=1e-4), name
