"""The first stage of a run, taken over from another: the result is that of training everything."""

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from density_softmax.benchmark import build, prepare, run
from density_softmax.cli import main
from density_softmax.config import override
from density_softmax.errors import UserError
from density_softmax.handover import first_stage_difference, record_of
from density_softmax.methods.base import MethodConfig
from density_softmax.recipes import Recipe, get_recipe
from density_softmax.runs.rows import read_rows
from density_softmax.runs.run import RunDirectory

SMALL = (
    "encoder.depth=1",
    "encoder.width=8",
    "data.num_points=80",
    "method.representation.epochs=2",
    "method.density.descent.epochs=2",
    "method.penalty.every=2",  # so that the penalty has a state of its own
    "engine.checkpoint_seconds=0.0",
)
STEPS = 2  # of the first stage: one per epoch
# None of these changes what the encoder is trained for, and each changes another part behind it.
VARIANTS = (
    ("method.scale=max", "method.head=null"),
    ("method.density.standardize=false",),
    ('method.layers=["blocks.0"]', "method.energy=true"),
)


def recipe(*changes: str, method: str = "density_softmax") -> Recipe:
    small = [c for c in SMALL if method == "density_softmax" or not c.startswith("method.")]
    return override(prepare("toy", method, small), *changes)  # which may undo some of the small


def train(out: Path, chosen: Recipe | None = None, **options) -> Path:
    run(chosen or recipe(), out, progress=False, **options)
    return out


@pytest.fixture(scope="module")
def donor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run to take over from."""
    return train(tmp_path_factory.mktemp("donor") / "run")


class Killed(Exception):  # noqa: N818
    """Stands for a kill at any moment."""


@contextmanager
def calls(target: type, name: str, limit: float = float("inf")) -> Iterator[list[int]]:
    """Count the calls of `target.name`, and kill before the one after the last."""
    original, count = getattr(target, name), [0]

    def counted(*args, **kwargs):
        if count[0] >= limit:
            raise Killed
        count[0] += 1
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, counted)
        yield count


def stages(path: Path) -> dict[tuple[str, str], torch.Tensor]:
    """What every stage of a run left."""
    return {
        (file.name, name): value
        for file in (path / "stages").glob("*.done.safetensors")
        for name, value in load_file(file).items()
    }


def same_run(first: Path, second: Path) -> None:
    """All tensors, epochs and rows are equal, except for what a clock says."""
    tensors = stages(first), stages(second)
    assert tensors[0].keys() == tensors[1].keys()
    assert [key for key in tensors[0] if not torch.equal(tensors[0][key], tensors[1][key])] == []
    assert (first / "epochs.csv").read_text() == (second / "epochs.csv").read_text()
    timed = ("train_seconds", "peak_memory", "latency")
    rows = (
        [row for row in read_rows(path / "rows.csv") if not row.metric.startswith(timed)]
        for path in (first, second)
    )
    assert next(rows) == next(rows) != []


def files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda changes: changes[0])
def test_a_run_that_takes_over_is_the_run_that_trained_everything(
    changes: tuple[str, ...], donor: Path, tmp_path: Path
) -> None:
    with calls(torch.optim.Adam, "step") as all_steps:
        alone = train(tmp_path / "alone", recipe(*changes))
    with calls(torch.optim.Adam, "step") as fewer_steps:
        helped = train(tmp_path / "helped", recipe(*changes), donor=donor)
    assert fewer_steps[0] == all_steps[0] - STEPS
    same_run(alone, helped)


def test_the_cost_is_that_of_the_run_that_trained(donor: Path, tmp_path: Path) -> None:
    helped = train(tmp_path / "helped", recipe(*VARIANTS[0]), donor=donor)
    again = train(tmp_path / "again", recipe("method.scale=range"), donor=helped)
    first = record_of(RunDirectory(donor)).finished[0]
    for path in (helped, again):
        stage = record_of(RunDirectory(path)).finished[0]
        assert (stage.seconds, stage.peak_memory) == (first.seconds, first.peak_memory)
        assert stage.taken_from == str(donor)
        costs = {row.metric: row.value for row in read_rows(path / "rows.csv")}
        assert costs["train_seconds:representation"] == first.seconds
        assert costs["peak_memory:representation"] == first.peak_memory
    assert first.taken_from == ""


def test_a_first_stage_changes_the_parts_it_names_and_no_other(donor: Path) -> None:
    chosen = recipe()
    before = build(chosen, chosen.load_data(0).task, 0).state_dict()
    after = load_file(donor / "stages" / "representation.done.safetensors")
    changed = {name.partition(".")[0] for name in after if not after[name].equal(before[name])}
    assert changed == set(chosen.method.first_stage().parts)
    assert set(chosen.method.first_stage().settings) < {
        field.name for field in dataclasses.fields(chosen.method)
    }


@pytest.mark.parametrize(
    "change",
    [
        "data.num_points=81",
        "data.shape=two_ovals",
        "data_seed=5",
        "encoder.width=9",
        "engine.precision=bf16-mixed",
        "method.penalty.weight=0.5",
        "method.penalty=none",
        "method.representation.epochs=3",
        "method.representation.optimizer.lr=0.5",
    ],
)
def test_a_setting_that_the_stage_depends_on_is_named(
    change: str, donor: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=rf"run with {change}; train without --from"):
        train(tmp_path / "run", recipe(change), donor=donor)
    assert not files(tmp_path)  # nothing is left that would be in the way


def test_another_seed_is_named(donor: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run with seed=1; train without --from"):
        train(tmp_path / "run", seed=1, donor=donor)


def test_where_a_run_computes_and_what_it_is_tested_on_make_no_difference() -> None:
    base = get_recipe("cifar10_small", "density_softmax")
    data = replace(base.data, root="elsewhere", workers=7, shifts=("cifar10-c/fog/3",), ood=())
    engine = replace(base.engine, devices=4, predict_batch_size=7)
    method = replace(base.method, layers=(), last=not base.method.last, head=None)
    other = replace(base, name="mine", data=data, engine=engine, method=method, data_seed=3)
    assert first_stage_difference(base, 3, other, 3) is None
    assert first_stage_difference(other, 3, base, 3) is None
    assert first_stage_difference(base, 4, other, 4) == "data_seed=4"


def test_who_shares_a_first_stage_is_a_method_of_one_network() -> None:
    sharing = {
        kind
        for kind in MethodConfig.members
        if get_recipe("toy", kind).method.first_stage() is not None
    }
    assert sharing == {
        "constant_temperature",
        "density_softmax",
        "deterministic",
        "temperature_scaling",
    }


@pytest.mark.parametrize(
    ("method", "changes"),
    [("mc_dropout", ()), ("density_softmax", ("method.representation=null",))],
)
def test_without_a_first_stage_to_share_nothing_is_taken_over(
    method: str, changes: tuple[str, ...], donor: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="no stage that could be taken over; train without --from"):
        train(tmp_path / "run", recipe(*changes, method=method), donor=donor)


def test_temperature_scaling_of_an_erm_run_is_that_of_its_own_training(tmp_path: Path) -> None:
    chosen = {
        kind: recipe("method.descent.epochs=2", method=kind)
        for kind in ("deterministic", "temperature_scaling")
    }
    erm = train(tmp_path / "erm", chosen["deterministic"])
    taken = train(tmp_path / "taken", chosen["temperature_scaling"], donor=erm)
    trained = train(tmp_path / "trained", chosen["temperature_scaling"])
    for stage in ("train", "temperature"):
        file = Path("stages", f"{stage}.done.safetensors")
        assert (taken / file).read_bytes() == (trained / file).read_bytes()
    costs = {row.metric: row.value for row in read_rows(taken / "rows.csv")}
    assert costs["train_seconds:train"] == record_of(RunDirectory(erm)).finished[0].seconds
    longer = recipe("method.descent.epochs=3", method="temperature_scaling")
    with pytest.raises(UserError, match=r"run with method\.descent\.epochs=3; train without"):
        train(tmp_path / "longer", longer, donor=erm)


def test_the_control_without_a_density_begins_with_the_representation_of_density_softmax(
    donor: Path, tmp_path: Path
) -> None:
    small = ("method.descent.epochs=2", "method.penalty.every=2", "engine.checkpoint_seconds=0.0")
    control = recipe(*small, method="constant_temperature")
    same_run(
        train(tmp_path / "alone", control),
        train(tmp_path / "helped", control, donor=donor),
    )
    longer = recipe(*small, "method.descent.epochs=3", method="constant_temperature")
    with pytest.raises(UserError, match=r"run with method\.descent\.epochs=3; train without"):
        train(tmp_path / "longer", longer, donor=donor)


def test_a_control_with_a_temperature_of_its_own_keeps_it(donor: Path, tmp_path: Path) -> None:
    known = recipe("method.temperature=2.0", method="constant_temperature")
    with pytest.raises(UserError, match="no stage that could be taken over"):
        train(tmp_path / "run", known, donor=donor)


def test_a_run_of_another_method_is_refused(donor: Path, tmp_path: Path) -> None:
    erm = train(tmp_path / "erm", recipe("method.descent.epochs=1", method="deterministic"))
    with pytest.raises(UserError, match="not that of a run with method=density_softmax"):
        train(tmp_path / "run", donor=erm)


def test_only_a_finished_and_undamaged_stage_is_taken_over(donor: Path, tmp_path: Path) -> None:
    with calls(torch.optim.Adam, "step", 1), pytest.raises(Killed):
        train(tmp_path / "begun")
    with pytest.raises(UserError, match="not finished, or the checkpoint is gone; continue"):
        train(tmp_path / "run", recipe("method.scale=max"), donor=tmp_path / "begun")
    with pytest.raises(UserError, match="not a run directory"):
        train(tmp_path / "run", recipe("method.scale=max"), donor=tmp_path / "nowhere")
    copy = shutil.copytree(donor, tmp_path / "copy")
    file = copy / "stages" / "representation.done.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x55")
    with pytest.raises(UserError, match=r"representation\.done\.safetensors: truncated or changed"):
        train(tmp_path / "run", recipe("method.scale=max"), donor=copy)
    file.unlink()
    with pytest.raises(UserError, match="the checkpoint is gone"):
        train(tmp_path / "other", recipe("method.scale=max"), donor=copy)


def test_a_donor_that_is_not_finished_as_a_whole_will_do(donor: Path, tmp_path: Path) -> None:
    with calls(torch.optim.Adam, "step", STEPS + 1), pytest.raises(Killed):
        train(tmp_path / "begun")
    helped = train(tmp_path / "helped", donor=tmp_path / "begun")
    same_run(helped, donor)


@pytest.mark.parametrize(
    ("target", "limit"),
    [
        ((torch.optim.Adam, "step"), 0),
        ((torch.optim.Adam, "step"), 2),
        ((os, "fsync"), 2),  # recipe and environment are written, no checkpoint is
        ((Path, "replace"), 3),  # the checkpoint is there, and nothing says so
    ],
)
@pytest.mark.parametrize("again", [True, False])
def test_killed_at_any_moment_it_resumes_to_the_same_run(
    target: tuple[type, str], limit: int, again: bool, donor: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with calls(*target, limit), pytest.raises(Killed):
        train(out, donor=donor)
    train(out, resume=True, donor=donor if again else None)
    same_run(out, donor)


def test_a_run_that_is_past_the_stage_needs_no_donor(donor: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with calls(torch.optim.Adam, "step", STEPS + 1), pytest.raises(Killed):
        train(out)
    train(out, resume=True, donor=tmp_path / "deleted")
    same_run(out, donor)
    assert record_of(RunDirectory(out)).finished[0].taken_from == ""


def test_a_run_that_began_the_stage_itself_may_still_take_it_over(
    donor: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with calls(torch.optim.Adam, "step", 1), pytest.raises(Killed):
        train(out)
    assert list(out.rglob("representation.partial.safetensors"))
    train(out, resume=True, donor=donor)
    same_run(out, donor)
    assert not list(out.rglob("*.partial.safetensors"))


def test_several_processes_take_over_what_one_trained(donor: Path, tmp_path: Path) -> None:
    out, changes = tmp_path / "run", (*SMALL, "method.scale=max", "engine.devices=2")
    words = [word for change in changes for word in ("--set", change)]
    command = [sys.executable, "-m", "density_softmax", "train", "toy", *words]
    command += ["--set", "engine.accelerator=cpu", "--from", str(donor), "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    ours, theirs = (load_file(p / "stages" / "scale.done.safetensors") for p in (out, donor))
    encoder = [name for name in theirs if name.startswith("encoder.")]
    assert encoder
    assert all(torch.equal(ours[name], theirs[name]) for name in encoder)
    assert record_of(RunDirectory(out)).finished[0].taken_from == str(donor)


def test_the_command_line_refuses_in_one_line(
    donor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "toy", "--from", str(donor), "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["density-softmax", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    error = capsys.readouterr().err.strip()
    assert stop.value.code == 2
    assert len(error.splitlines()) == 1
    assert "train without --from" in error
    assert not files(tmp_path)
