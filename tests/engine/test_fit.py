import contextlib
import dataclasses
import os
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset
from toy_problem import EVERY_EPOCH, descent, points, small_method

from density_softmax.data import ArraySource
from density_softmax.engine import fit, start
from density_softmax.engine.descent import set_modes
from density_softmax.engine.fit import FeatureCache
from density_softmax.errors import UserError
from density_softmax.files import StorageError
from density_softmax.methods.base import Method
from density_softmax.methods.deterministic import Deterministic
from density_softmax.nn.lipschitz.penalty import FrobeniusPenalty
from density_softmax.nn.softmax.scale import MaxScale
from density_softmax.training import SGD, Adam, Descent, Estimate, Train


def trained(method=None, engine=EVERY_EPOCH, **options):
    method = method or small_method()
    fit(method, points(40, 1), points(20, 2), engine=engine, progress=False, **options)
    return method


def only_stages(method, chosen):
    """The same method with a part of its story."""
    stages = method.stages()[chosen]
    object.__setattr__(method, "stages", lambda: stages)
    return method


def same_weights(first, second, exactly=True):
    states = first.state_dict(), second.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        close = torch.equal if exactly else lambda a, b: torch.allclose(a, b, atol=1e-5)
        assert close(value, states[1][name]), name


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    same_weights(trained(seed=1), trained(seed=1))
    with pytest.raises(AssertionError):
        same_weights(trained(seed=1), trained(seed=2))


@pytest.mark.parametrize(("min_steps", "epochs"), [(0, 3), (9, 3), (10, 4), (30, 10)])
def test_a_small_set_is_passed_over_until_the_steps_are_enough(min_steps, epochs):
    method = small_method(representation=descent(3, min_steps=min_steps))
    record = fit(method, points(40, 1), points(20, 2), engine=EVERY_EPOCH, progress=False)
    passes = [epoch for epoch in record.epochs if epoch.stage == "representation"]
    assert len(passes) == epochs  # of three steps each
    assert passes[-1].values["lr"] < passes[0].values["lr"]  # the schedule is as long


def test_the_global_generator_is_left_as_it_was():
    method = small_method()
    before = torch.get_rng_state()
    trained(method)
    assert torch.equal(before, torch.get_rng_state())


class Killed(Exception):  # noqa: N818
    """Stands for a kill at any moment."""


def kill_after(monkeypatch, target, name, calls):
    """Let `target.name` work `calls` times, then fail before it does anything."""
    original, count = getattr(target, name), iter(range(calls))

    def counted(*args, **kwargs):
        if next(count, None) is None:
            raise Killed
        return original(*args, **kwargs)

    monkeypatch.setattr(target, name, counted)


def test_a_run_killed_before_its_first_checkpoint_leaves_a_free_directory(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        kill_after(patch, torch.optim.Adam, "step", 1)
        with pytest.raises(Killed):
            trained(directory=tmp_path)
    same_weights(trained(seed=3), trained(directory=tmp_path, seed=3))


@pytest.mark.parametrize("calls", [0, 1, 4, 7, 9, 12, 17, 18, 20, 22])
def test_a_run_killed_at_any_step_resumes_to_the_same_weights(calls, tmp_path, monkeypatch):
    undisturbed = trained()
    with monkeypatch.context() as patch:
        kill_after(patch, torch.optim.Adam, "step", calls)
        with pytest.raises(Killed):
            trained(directory=tmp_path)
    same_weights(undisturbed, trained(directory=tmp_path, resume=True))


@pytest.mark.parametrize("target", [(os, "fsync"), (Path, "replace"), (Path, "unlink")])
@pytest.mark.parametrize("calls", [0, 1, 2, 5, 8, 10])
def test_a_run_killed_while_it_writes_resumes_to_the_same_weights(
    target, calls, tmp_path, monkeypatch
):
    undisturbed = trained()
    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        kill_after(patch, *target, calls)
        trained(directory=tmp_path)
    same_weights(undisturbed, trained(directory=tmp_path, resume=True))


def test_a_finished_run_is_loaded_and_not_trained_again(tmp_path, monkeypatch):
    first = trained(directory=tmp_path)
    kill_after(monkeypatch, torch.optim.Adam, "step", 0)
    same_weights(first, trained(small_method(seed=9), directory=tmp_path, resume=True))


def test_a_directory_is_not_overwritten(tmp_path):
    trained(directory=tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(UserError, match="holds this run already"):
        trained(directory=tmp_path)
    with pytest.raises(UserError, match="another run"):
        trained(directory=tmp_path, seed=3, resume=True)
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}


def test_a_run_killed_in_its_first_stage_is_continued_by_itself_alone(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        kill_after(patch, torch.optim.Adam, "step", 4)  # in the second epoch of three steps each
        with pytest.raises(Killed):
            trained(directory=tmp_path)
    assert list(tmp_path.rglob("representation.partial.safetensors"))
    with pytest.raises(UserError, match="holds this run already; resume it"):
        trained(directory=tmp_path)
    for resume in (True, False):
        with pytest.raises(UserError, match="belongs to another run"):
            trained(directory=tmp_path, seed=3, resume=resume)


@pytest.mark.parametrize("damage", [lambda data: data[:-7], lambda data: data[:-1] + b"\x55"])
def test_a_damaged_checkpoint_is_refused_by_name(damage, tmp_path):
    trained(directory=tmp_path)
    file = tmp_path / "stages" / "head.done.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=r"head\.done\.safetensors"):
        trained(directory=tmp_path, resume=True)


# Killed in the third stage; and with the run named in its directory, but no epoch kept there.
@pytest.mark.parametrize("kill", [(torch.optim.Adam, "step", 13), (Path, "replace", 1)])
def test_epochs_after_a_resume_are_those_of_an_undisturbed_run(kill, tmp_path, monkeypatch):
    data = points(40, 1), points(20, 2)
    whole = fit(small_method(), *data, engine=EVERY_EPOCH, progress=False)
    options = {"engine": EVERY_EPOCH, "directory": tmp_path, "progress": False}
    with monkeypatch.context() as patch:
        kill_after(patch, *kill)
        with pytest.raises(Killed):
            fit(small_method(), *data, **options)
    again = fit(small_method(), *data, resume=True, **options)
    assert again.epochs == whole.epochs
    assert [record.name for record in again.finished] == [r.name for r in whole.finished]


# Killed in the second epoch of the density; in the head, behind all features; and never.
@pytest.mark.parametrize("calls", [13, 19, 99])
def test_features_count_once_for_the_stage_that_is_the_first_to_read_them(
    calls, tmp_path, monkeypatch
):
    now, compute = [0.0], FeatureCache._compute
    clock = SimpleNamespace(perf_counter=lambda: now[0])

    def slow(self, split, inputs, bars):
        now[0] += 100 if split == "train" else 1
        return compute(self, split, inputs, bars)

    monkeypatch.setattr(FeatureCache, "_compute", slow)
    for name in ("fit", "descent"):
        monkeypatch.setattr(import_module(f"density_softmax.engine.{name}"), "time", clock)
    options = {"engine": EVERY_EPOCH, "directory": tmp_path, "progress": False}
    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        kill_after(patch, torch.optim.Adam, "step", calls)
        fit(small_method(), points(40, 1), points(20, 2), **options)
    record = fit(small_method(), points(40, 1), points(20, 2), resume=True, **options)
    assert {stage.name: stage.seconds for stage in record.finished} == {
        "representation": 0,
        "standardize": 100,
        "density": 1,
        "scale": 0,
        "head": 0,
    }


def test_a_stage_changes_only_what_it_names():
    method, density = small_method(), "typicality.densities.last"
    own = {
        "representation": ("encoder.", "head.linear."),
        "standardize": tuple(f"{density}.{name}" for name in ("mean", "scale", "log_volume")),
        "density": (f"{density}.flow.",),
        "scale": ("scale.", "head.temperature"),
        "head": ("head.linear.",),
    }
    previous = {name: value.clone() for name, value in method.state_dict().items()}
    for number, stage in enumerate(method.stages()):
        part = small_method()
        part.load_state_dict(previous)
        trained(only_stages(part, slice(number, number + 1)))
        after = part.state_dict()
        changed = {name for name in after if not torch.equal(after[name], previous[name])}
        assert changed, stage.name
        assert all(name.startswith(own[stage.name]) for name in changed), (stage.name, changed)
        previous = {name: value.clone() for name, value in after.items()}
    assert [stage.name for stage in method.stages()] == list(own)


def test_the_encoder_reads_each_split_once_for_all_stages_on_features():
    method = small_method()
    calls: list[int] = []
    method.encoder.register_forward_hook(
        lambda module, args, z: calls.append(len(z)) if not torch.is_grad_enabled() else None
    )
    trained(only_stages(method, slice(1, None)))
    assert sum(calls) == 40 + 20


def test_memory_mapped_features_give_the_same_weights(tmp_path):
    mapped = dataclasses.replace(EVERY_EPOCH, feature_memory=0)
    same_weights(trained(), trained(engine=mapped, directory=tmp_path))
    assert not list(tmp_path.rglob("*.npy"))


def test_accumulated_gradients_equal_those_of_the_whole_batch():
    penalty = FrobeniusPenalty.Config(weight=0.1, every=2)
    plain = small_method(representation=descent(2), penalty=penalty)
    parts = small_method(representation=descent(2, accumulate=3), penalty=penalty)
    for method in (plain, parts):
        method.encoder[2].p = 0.0
        trained(only_stages(method, slice(0, 1)))
    same_weights(plain, parts, exactly=False)


def test_a_resumed_run_penalises_the_steps_that_are_due(tmp_path, monkeypatch):
    penalised = lambda: small_method(penalty=FrobeniusPenalty.Config(weight=1.0, every=2))  # noqa: E731
    undisturbed = trained(penalised())
    with monkeypatch.context() as patch:
        kill_after(patch, torch.optim.Adam, "step", 4)  # in the second epoch of three steps each
        with pytest.raises(Killed):
            trained(penalised(), directory=tmp_path)
    resumed = trained(penalised(), directory=tmp_path, resume=True)
    same_weights(undisturbed, resumed)
    assert resumed.penalty.step == 9


def test_features_are_computed_in_evaluation_mode():
    method = small_method(representation=descent(1))
    modes = []
    method.encoder[2].register_forward_hook(
        lambda module, args, z: None if torch.is_grad_enabled() else modes.append(module.training)
    )
    trained(method)
    assert modes
    assert not any(modes)


def test_parts_without_trained_weights_are_in_evaluation_mode():
    frozen = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    module = nn.ModuleDict({"frozen": frozen.requires_grad_(False), "free": nn.Linear(2, 2)})
    module["dropout"] = nn.Dropout()
    set_modes(module)
    assert module.training
    assert module["free"].training
    assert module["dropout"].training
    assert not any(part.training for part in frozen.modules())


def test_what_its_owner_froze_stays_as_it_is():
    decaying = descent(2, optimizer=Adam(lr=1e-2, weight_decay=0.1))
    method = small_method(representation=decaying)
    frozen, free = method.encoder[0].requires_grad_(False), method.encoder[3]
    before = frozen.weight.clone(), free.weight.clone()
    trained(method)
    assert torch.equal(frozen.weight, before[0])
    assert not torch.equal(free.weight, before[1])
    assert not frozen.weight.requires_grad
    assert free.weight.requires_grad


def test_a_stage_with_nothing_to_train_is_refused_before_the_first_step(monkeypatch):
    kill_after(monkeypatch, torch.optim.Adam, "step", 0)
    method = small_method()
    method.head.requires_grad_(False)
    with pytest.raises(UserError, match="stage head: all that it trains is frozen"):
        trained(method)


class Centroids(Method):
    """After every step the buffer gains the sum of the batch's inputs."""

    def __init__(self, on="inputs"):
        super().__init__(nn.Linear(2, 2), 2, Deterministic.Config())
        self.register_buffer("seen", torch.zeros(2))
        self.on, self.modes = on, []

    def _count(self, batch):
        self.modes.append(self.training)
        return {"sum": batch.x.sum(0)}

    def stages(self):
        move = lambda total: self.seen.add_(total["sum"])  # noqa: E731
        after = Estimate("after", self._count, move, on=self.on)
        loss = lambda batch: nn.functional.cross_entropy(self.encoder(batch.x), batch.y)  # noqa: E731
        parameters = list(self.parameters())
        return (Train("train", loss, parameters, descent(2, accumulate=2), after_step=after),)

    def forward(self, x):
        raise AssertionError("not needed")


def test_after_step_sees_every_sample_of_every_epoch_in_evaluation_mode():
    method = trained(Centroids())
    torch.testing.assert_close(method.seen, 2 * points(40, 1).x.sum(0))
    assert not any(method.modes)


def test_what_reads_labels_alone_after_a_step_leaves_the_modes_as_they_are():
    method = trained(Centroids(on="labels"))
    torch.testing.assert_close(method.seen, 2 * points(40, 1).x.sum(0))
    assert all(method.modes)


def test_monitored_values_are_means_over_the_held_out_slice():
    method = small_method(head=None, scale=MaxScale.Config())
    record = fit(method, points(40, 1), points(20, 2), engine=EVERY_EPOCH, progress=False)
    last = [epoch for epoch in record.epochs if epoch.stage == "density"][-1]
    with torch.no_grad():
        log_prob = method.density.log_prob(method.features(points(20, 2).x))
    assert last.values["heldout_nll"] == pytest.approx(-log_prob.mean().item(), rel=1e-5)


@pytest.mark.filterwarnings("ignore:engine.precision")  # where it would be slow
def test_mixed_precision_trains_and_keeps_densities_finite(monkeypatch):
    engine = dataclasses.replace(EVERY_EPOCH, precision="bf16-mixed")
    # oneDNN's bfloat16 kernels crash on some CPUs; what is tested does not depend on them.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    method = trained(small_method(), engine=engine)
    prediction = method.predict(points(20, 2).x * 1000)
    assert prediction.epistemic.dtype == torch.float32
    assert all(part.isfinite().all() for part in prediction)


def test_a_loader_is_read_in_its_own_batches():
    data = points(40, 1)
    loader = DataLoader(TensorDataset(data.x, data.y), batch_size=10, shuffle=True)
    method = small_method()
    sizes: list[int] = []
    method.encoder.register_forward_hook(
        lambda module, args, z: sizes.append(len(args[0])) if torch.is_grad_enabled() else None
    )
    fit(method, loader, points(20, 2), engine=EVERY_EPOCH, progress=False)
    assert set(sizes) == {10}


def test_samplers_divide_one_data_set_for_every_stage():
    whole, parts = points(60, 1), ([*range(0, 60, 3)], [*range(1, 60, 3)])
    dataset = TensorDataset(whole.x, whole.y)
    loaders = [DataLoader(dataset, 16, sampler=SubsetRandomSampler(part)) for part in parts]
    pairs = [(whole.x[part], whole.y[part]) for part in parts]
    by_sampler, by_hand = (only_stages(small_method(), slice(1, 4)) for _ in range(2))
    fit(by_sampler, *loaders, engine=EVERY_EPOCH, progress=False)
    fit(by_hand, *pairs, engine=EVERY_EPOCH, progress=False)
    same_weights(by_sampler, by_hand)


def test_a_lone_last_sample_does_not_stop_a_batch_norm():
    method = small_method()
    method.encoder.append(nn.BatchNorm1d(6))
    sizes: set[int] = set()
    method.encoder.register_forward_hook(
        lambda module, args, z: sizes.add(len(z)) if module.training else None
    )
    fit(method, points(33, 1), points(20, 2), engine=EVERY_EPOCH, progress=False)
    assert sizes == {16, 17}


def test_a_short_last_batch_is_not_divided_into_single_samples():
    method = small_method(representation=descent(2, accumulate=2))
    method.encoder.append(nn.BatchNorm1d(6))
    sizes: set[int] = set()
    method.encoder.register_forward_hook(
        lambda module, args, z: sizes.add(len(z)) if module.training else None
    )
    fit(method, points(35, 1), points(20, 2), engine=EVERY_EPOCH, progress=False)
    assert sizes == {8, 3}


def test_pairs_of_numpy_arrays_are_data():
    data = points(40, 1)
    pair = np.asarray(data.x), np.asarray(data.y)
    method = small_method()
    fit(method, pair, pair, engine=EVERY_EPOCH, progress=False)
    assert method.predict(data.x).probs.shape == (40, 2)


def bad_data(change):
    data = points(40, 1)
    x, y = data.x.clone(), data.y.clone()
    change(x, y)
    return ArraySource(x, y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: x[7].fill_(float("nan")), "sample 7 has NaN or infinite"),
        (lambda x, y: x[3, 1].fill_(float("inf")), "sample 3 has NaN or infinite"),
        (lambda x, y: y[5].fill_(2), "sample 5 has label 2: labels must be 0 to 1"),
        (lambda x, y: y.zero_(), "one class only"),
    ],
)
def test_data_that_cannot_be_learned_from_is_named(change, message):
    with pytest.raises(UserError, match=message):
        fit(small_method(), bad_data(change), points(20, 2), engine=EVERY_EPOCH, progress=False)


BAD_HELDOUT = [
    (lambda x, y: x[7].fill_(float("nan")), r"held-out \(calibration\) sample 7 has NaN"),
    (
        lambda x, y: y[5].fill_(-1),
        r"held-out \(calibration\) sample 5 has label -1: labels must be",
    ),
]


@pytest.mark.parametrize(("change", "message"), BAD_HELDOUT)
def test_held_out_data_that_cannot_calibrate_are_named(change, message):
    bad = bad_data(change)
    for heldout in (bad, DataLoader(TensorDataset(bad.x, bad.y), batch_size=8)):
        with pytest.raises(UserError, match=message):
            fit(small_method(), points(40, 1), heldout, engine=EVERY_EPOCH, progress=False)


def test_held_out_data_may_be_of_one_class():
    method = small_method()
    heldout = bad_data(lambda x, y: y.zero_())
    fit(method, points(40, 1), heldout, engine=EVERY_EPOCH, progress=False)
    assert method.predict(points(20, 2).x).probs.isfinite().all()


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_bad_arrays_are_refused_before_the_first_step(split, tmp_path, monkeypatch):
    kill_after(monkeypatch, torch.optim.Adam, "step", 0)
    bad = bad_data(lambda x, y: x[8].fill_(float("nan")))  # not in the first batch
    data = {"train": points(40, 1), "heldout": points(20, 2)} | {split: bad}
    with pytest.raises(UserError, match="sample 8 has NaN"):
        fit(small_method(), **data, directory=tmp_path, engine=EVERY_EPOCH, progress=False)
    assert not list(tmp_path.iterdir())


def test_a_bad_sample_is_named_by_its_place_in_the_data_set():
    bad = bad_data(lambda x, y: x[30].fill_(float("nan")))
    sampler = SubsetRandomSampler(range(20, 40))
    loader = DataLoader(TensorDataset(bad.x, bad.y), batch_size=8, sampler=sampler)
    with pytest.raises(UserError, match="training sample 30 has NaN"):
        fit(small_method(), loader, points(20, 2), engine=EVERY_EPOCH, progress=False)


def test_a_network_that_is_no_method_is_refused_with_the_remedy():
    with pytest.raises(UserError, match=r"not a Sequential: put the network into .* attach"):
        fit(nn.Sequential(nn.Linear(2, 2)), points(40, 1), points(20, 2), progress=False)


def test_a_diverging_loss_stops_the_run_with_a_remedy():
    wild = small_method(representation=descent(30, optimizer=SGD(lr=1e20)))
    with pytest.raises(UserError, match="lower the learning rate"):
        trained(wild)


def test_a_launched_fabric_is_used_as_it_is():
    fabric = start(EVERY_EPOCH)
    method = small_method()
    fit(method, points(40, 1), points(20, 2), fabric=fabric, engine=EVERY_EPOCH, progress=False)
    assert next(method.parameters()).device == fabric.device


def test_weights_of_another_method_are_refused_by_name(tmp_path):
    record = fit(small_method(), points(40, 1), points(20, 2), directory=tmp_path, progress=False)
    with pytest.raises(
        StorageError, match=r"head\.done\.safetensors.*another version.*train again"
    ):
        record.restore(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("encoder", "width", "message"),
    [
        (nn.Linear(2, 4), 5, r"cannot read inputs of shape \(1, 5\) .*a row per sample"),
        (nn.Linear(2, 4).half(), 2, r"computes in torch\.float16: pass method\.float\(\)"),
        (nn.Linear(2, 4).double(), 2, r"computes in torch\.float64: pass method\.float\(\)"),
    ],
    ids=["width", "half precision", "double precision"],
)
def test_inputs_that_the_network_cannot_read_are_refused_by_what_is_wrong(encoder, width, message):
    data = torch.randn(20, width), torch.arange(20) % 2
    with pytest.raises(UserError, match=message):
        fit(Deterministic(encoder, 2), data, data, engine=EVERY_EPOCH, progress=False)


def test_a_method_built_without_an_example_remembers_what_it_was_trained_on():
    method = Deterministic(nn.Linear(2, 4), 2, Deterministic.Config(Descent(epochs=1)))
    data = torch.randn(20, 2), torch.arange(20) % 2
    fit(method, data, data, engine=EVERY_EPOCH, progress=False)
    assert (method.example_shape, method.example_dtype) == ((2,), torch.float32)
    with pytest.raises(UserError, match=r"shape \(3, 5\) .*built with \(batch, 2\)"):
        method.predict(torch.zeros(3, 5))


def erm(**changes):
    torch.manual_seed(0)
    return Deterministic(nn.Linear(2, 4), 2, Deterministic.Config(descent=descent(2, **changes)))


def test_without_held_out_data_a_method_trains_the_same_and_monitors_nothing():
    with_slice, without = erm(), erm()
    fit(with_slice, points(40, 1), points(20, 2), engine=EVERY_EPOCH, progress=False)
    record = fit(without, points(40, 1), None, engine=EVERY_EPOCH, progress=False)
    same_weights(with_slice, without)
    assert all(epoch.values.keys() == {"loss", "lr"} for epoch in record.epochs)


def test_without_held_out_data_features_of_the_training_data_suffice():
    method = small_method(scale=MaxScale.Config())
    fit(method, points(40, 1), None, engine=EVERY_EPOCH, progress=False)
    assert method.predict(points(5, 3).x).probs.isfinite().all()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lambda: small_method(), "stage scale: reads held-out data, and there are none"),
        (lambda: erm(patience=1), r"stage train: .* set patience=null"),
    ],
)
def test_a_stage_that_needs_held_out_data_is_named_before_training(method, message, monkeypatch):
    kill_after(monkeypatch, torch.optim.Adam, "step", 0)
    with pytest.raises(UserError, match=message):
        fit(method(), points(40, 1), None, engine=EVERY_EPOCH, progress=False)
