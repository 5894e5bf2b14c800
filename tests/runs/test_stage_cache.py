"""A stage that another run has finished is taken over: the result is that of training it."""

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from density_softmax.benchmark import run
from density_softmax.cli import experiments
from density_softmax.config import override
from density_softmax.engine import stage_cache
from density_softmax.methods.base import MethodConfig
from density_softmax.methods.deterministic import Deterministic
from density_softmax.recipes import Recipe, get_recipe, prepare
from density_softmax.runs.rows import read_rows
from density_softmax.runs.run import Run, shared_root

SMALL = (
    "encoder.depth=1",
    "encoder.width=8",
    "data.num_points=80",
    "method.representation.epochs=2",
    "method.density.descent.epochs=2",
    "method.penalty.every=2",  # so that the penalty has a state of its own
    "engine.checkpoint_seconds=0.0",
)
FIRST, DENSITY, HEAD = 2, 2, 1  # steps of each stage: one per epoch


def recipe(*changes: str, method: str = "density_softmax") -> Recipe:
    small = [c for c in SMALL if method == "density_softmax" or not c.startswith("method.")]
    return override(prepare("toy", method, small), *changes)  # which may undo some of the small


def train(out: Path, chosen: Recipe | None = None, seed: int = 0, **options) -> Path:
    run(Run(chosen or recipe(), seed, out), progress=False, **options)
    return out


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A finished run beside which others can begin."""
    return train(tmp_path / "trained")


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


def steps_of(*args, **kwargs) -> int:
    """How many steps of an optimizer a training takes."""
    with calls(torch.optim.Adam, "step") as count:
        train(*args, **kwargs)
    return count[0]


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


def origins(path: Path) -> dict[str, str]:
    """By stage, the run that it was taken over from; empty if it was trained here."""
    return {stage.name: stage.taken_from for stage in Run.at(path).checkpoints().finished}


# What is changed, and how many steps of an optimizer are left: those of stages that depend on it.
VARIANTS = {
    ("method.scale=max",): HEAD,
    ("method.scale=max", "method.head=null"): 0,
    ("method.density.standardize=false",): DENSITY + HEAD,
    ('method.layers=["blocks.0"]', "method.energy=true"): 2 * DENSITY + HEAD,
}


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda changes: changes[0])
def test_a_variant_trains_only_the_stages_that_it_changes(
    changes: tuple[str, ...], trained: Path, tmp_path: Path
) -> None:
    helped, alone = tmp_path / "helped", tmp_path / "alone"
    assert steps_of(helped, recipe(*changes)) == VARIANTS[changes]
    assert steps_of(alone, recipe(*changes), share=False) == FIRST + max(
        VARIANTS[changes], DENSITY + HEAD * ("method.head=null" not in changes)
    )
    same_run(helped, alone)


def test_the_same_run_elsewhere_trains_nothing(trained: Path, tmp_path: Path) -> None:
    assert steps_of(tmp_path / "again") == 0
    same_run(tmp_path / "again", trained)


def test_runs_under_another_root_share_nothing(trained: Path, tmp_path: Path) -> None:
    assert steps_of(tmp_path / "folder" / "run") == FIRST + DENSITY + HEAD
    assert origins(trained)["representation"] == ""


def test_the_cost_is_that_of_the_run_that_trained(trained: Path, tmp_path: Path) -> None:
    first = Run.at(trained).checkpoints().finished[0]
    for scale in ("max", "range"):
        path = train(tmp_path / scale, recipe(f"method.scale={scale}"))
        stage = Run.at(path).checkpoints().finished[0]
        assert (stage.seconds, stage.peak_memory) == (first.seconds, first.peak_memory)
        assert stage.taken_from == str(trained)
        costs = {row.metric: row.value for row in read_rows(path / "rows.csv")}
        assert costs["train_seconds:representation"] == first.seconds
        assert costs["peak_memory:representation"] == first.peak_memory


def test_a_stage_changes_the_parts_it_names_and_no_other(trained: Path) -> None:
    stored = Run.at(trained)
    method = stored.build()
    state = method.state_dict()
    for stage in method.stages():
        left = load_file(trained / "stages" / f"{stage.name}.done.safetensors")
        changed = {name.partition(".")[0] for name in left if not left[name].equal(state[name])}
        assert changed <= set(stage.modules or changed), stage.name
        state = left


@pytest.mark.filterwarnings("ignore:engine.precision")  # where it would be slow
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
def test_a_setting_that_the_stage_depends_on_trains_it_again(
    change: str, trained: Path, tmp_path: Path
) -> None:
    train(tmp_path / "run", recipe(change))
    assert origins(tmp_path / "run")["representation"] == ""


def test_another_seed_shares_nothing(trained: Path, tmp_path: Path) -> None:
    assert steps_of(tmp_path / "run", seed=1) == FIRST + DENSITY + HEAD


def test_other_data_of_the_same_name_share_nothing(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    origin = []
    for number, text in enumerate(("0,0,a\n1,1,b\n", "0,1,a\n1,0,b\n")):
        table.write_text("x,y,label\n" + text * 60)
        chosen = recipe("data=table", f"data.train={table}", "method.density=gaussian")
        train(tmp_path / str(number), chosen)
        origin.append(origins(tmp_path / str(number))["representation"])
    assert origin == ["", ""]


def test_a_stage_of_before_an_edit_of_the_code_is_trained_again(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_cache, "_training_code", lambda: b"another")
    assert steps_of(tmp_path / "run") == FIRST + DENSITY + HEAD


def test_the_code_of_ones_own_encoder_counts(tmp_path: Path) -> None:
    digests = set()
    for number, text in enumerate(("x", "2 * x", "x")):
        name = f"own_encoder{number}"
        (tmp_path / "encoder.py").write_text(
            "import torch\nclass Own(torch.nn.Linear):\n"
            f"    def forward(self, x): return super().forward({text})\n"
        )
        spec = importlib.util.spec_from_file_location(name, tmp_path / "encoder.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        torch.manual_seed(0)
        method = Deterministic(module.Own(2, 4), 2)
        cache = stage_cache.StageCache(tmp_path, {})
        digests.add(cache.digest(method, 0, 0, method.stages()[0]))
        del sys.modules[name]
    assert len(digests) == 2


def test_where_a_run_computes_and_what_it_is_tested_on_make_no_difference() -> None:
    base = get_recipe("cifar10_small", "density_softmax")
    data = replace(base.data, root="elsewhere", workers=7, shifts=("cifar10-c/fog/3",), ood=())
    engine = replace(base.engine, devices=4, predict_batch_size=7)
    other = replace(base, name="mine", data=data, engine=engine, data_seed=3)
    assert base.training_inputs(3) == other.training_inputs(3)
    assert base.training_inputs(4) != other.training_inputs(4)


@pytest.mark.parametrize("kind", sorted(MethodConfig.members))
def test_methods_that_share_a_stage_share_its_objective(kind: str, tmp_path: Path) -> None:
    stored = Run(get_recipe("toy", kind), path=tmp_path)
    for stage in stored.build().stages():
        if stage.settings is not None:
            assert {"objective", "density"} & set(stage.settings), stage.name
            assert stage.modules, stage.name


@pytest.mark.parametrize("kind", ["knn", "vim", "laplace", "density_aware_calibration"])
def test_post_hoc_methods_take_over_the_network_of_erm(kind: str, tmp_path: Path) -> None:
    chosen = recipe("method.descent.epochs=2", method=kind)
    train(tmp_path / "erm", recipe("method.descent.epochs=2", method="deterministic"))
    assert steps_of(tmp_path / kind, chosen) == 0
    alone = tmp_path / "alone"
    assert steps_of(alone, chosen, share=False) == 2
    same_run(tmp_path / kind, alone)


def test_temperature_scaling_takes_over_the_network_of_erm(tmp_path: Path) -> None:
    chosen = recipe("method.descent.epochs=2", method="temperature_scaling")
    train(tmp_path / "erm", recipe("method.descent.epochs=2", method="deterministic"))
    assert steps_of(tmp_path / "taken", chosen) == 0
    train(tmp_path / "trained", chosen, share=False)
    same_run(tmp_path / "taken", tmp_path / "trained")
    longer = recipe("method.descent.epochs=3", method="temperature_scaling")
    assert steps_of(tmp_path / "longer", longer) == 3


def test_the_control_without_a_density_takes_over_the_representation(
    trained: Path, tmp_path: Path
) -> None:
    small = ("method.descent.epochs=2", "method.penalty.every=2", "engine.checkpoint_seconds=0.0")
    control = recipe(*small, method="constant_temperature")
    assert steps_of(tmp_path / "helped", control) == 0
    train(tmp_path / "alone", control, share=False)
    same_run(tmp_path / "alone", tmp_path / "helped")
    known = recipe(*small, "method.temperature=2.0", method="constant_temperature")
    assert steps_of(tmp_path / "known", known) == 2


@pytest.mark.parametrize("damage", ["changed", "deleted", "moved", "unreadable"])
def test_a_damaged_stage_is_trained_again(damage: str, trained: Path, tmp_path: Path) -> None:
    for file in trained.rglob("*.done.safetensors"):
        if damage == "changed":
            file.write_bytes(file.read_bytes()[:-1] + b"\x55")
        elif damage == "deleted":
            file.unlink()
    if damage == "moved":
        shutil.move(trained, tmp_path / "folder")
    if damage == "unreadable":
        (trained / "progress.json").write_text('{"identity": ')
    assert steps_of(tmp_path / "run") == FIRST + DENSITY + HEAD
    assert set(origins(tmp_path / "run").values()) == {""}


def test_a_run_that_is_not_finished_as_a_whole_gives_what_it_has(tmp_path: Path) -> None:
    with calls(torch.optim.Adam, "step", FIRST + 1), pytest.raises(Killed):
        train(tmp_path / "begun")
    assert steps_of(tmp_path / "helped") == DENSITY + HEAD
    train(tmp_path / "alone", share=False)
    same_run(tmp_path / "helped", tmp_path / "alone")


@pytest.mark.parametrize(
    ("target", "limit"),
    [
        ((torch.optim.Adam, "step"), 0),
        ((os, "fsync"), 2),  # recipe and environment are written, no checkpoint is
        ((Path, "replace"), 3),  # the checkpoint is there, and nothing says so
    ],
)
def test_killed_at_any_moment_it_resumes_to_the_same_run(
    target: tuple[type, str], limit: int, trained: Path, tmp_path: Path
) -> None:
    out, changes = tmp_path / "run", ("method.scale=max",)
    with calls(*target, limit), pytest.raises(Killed):
        train(out, recipe(*changes))
    train(out, recipe(*changes), resume=True)
    train(tmp_path / "alone", recipe(*changes), share=False)
    same_run(out, tmp_path / "alone")


def test_a_run_that_began_a_stage_itself_may_still_take_it_over(
    tmp_path: Path,
) -> None:
    out = tmp_path / "run"
    with calls(torch.optim.Adam, "step", 1), pytest.raises(Killed):
        train(out)
    assert list(out.rglob("representation.partial.safetensors"))
    train(tmp_path / "other")
    assert steps_of(out, resume=True) == 0
    same_run(out, tmp_path / "other")
    assert not list(out.rglob("*.partial.safetensors"))


def command(out: Path, *changes: str) -> list[str]:
    words = [word for change in (*SMALL, *changes) for word in ("--set", change)]
    return [sys.executable, "-m", "density_softmax", "train", "toy", *words, "--out", str(out)]


def test_several_processes_take_over_what_one_trained(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = command(out, "method.scale=max", "engine.devices=2", "engine.accelerator=cpu")
    subprocess.run(words, check=True, capture_output=True, timeout=600)
    ours, theirs = (load_file(p / "stages" / "scale.done.safetensors") for p in (out, trained))
    encoder = [name for name in theirs if name.startswith("encoder.")]
    assert encoder
    assert all(torch.equal(ours[name], theirs[name]) for name in encoder)
    assert origins(out)["representation"] == origins(out)["density"] == str(trained)


def test_of_two_runs_at_once_one_trains_and_one_waits(tmp_path: Path) -> None:
    longer = ("method.representation.epochs=40",)
    paths = [tmp_path / "a", tmp_path / "b"]
    both = [subprocess.Popen(command(path, *longer), stdout=subprocess.DEVNULL) for path in paths]
    assert [process.wait(timeout=600) for process in both] == [0, 0]
    found = [origins(path)["representation"] for path in paths]
    assert sorted(found) in (["", str(paths[0])], ["", str(paths[1])])
    same_run(*paths)


def test_a_run_that_is_killed_lets_the_next_one_train(tmp_path: Path) -> None:
    longer = "method.representation.epochs=2000"
    first = subprocess.Popen(command(tmp_path / "a", longer), stdout=subprocess.DEVNULL)
    while not list((tmp_path / "a").glob("stages/*.partial.safetensors")):
        assert first.poll() is None
        time.sleep(0.05)
    first.kill()
    first.wait()
    with calls(torch.optim.Adam, "step", 3), pytest.raises(Killed):
        train(tmp_path / "b", recipe(longer))


def test_the_demo_trains_the_network_of_both_scales_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments, "write_report", lambda runs, out: out / "index.html")
    monkeypatch.setattr(experiments, "results_text", lambda out: "")
    ours = [(m, (*c, *SMALL)) for m, c in experiments.CONTENDERS if m == "density_softmax"]
    monkeypatch.setattr(experiments, "CONTENDERS", ours)
    with calls(torch.optim.Adam, "step") as count:
        experiments.run_demo(tmp_path / "demo", 1, Console(quiet=True))
    assert count[0] == FIRST + DENSITY + 2 * HEAD


def test_any_folder_can_be_the_root(tmp_path: Path) -> None:
    root = tmp_path / "elsewhere"
    run(Run(recipe(), path=tmp_path / "a" / "run", root=root), progress=False)
    with calls(torch.optim.Adam, "step") as count:
        run(Run(recipe(), path=tmp_path / "b" / "run", root=root), progress=False)
    assert count[0] == 0


def test_a_root_that_cannot_be_written_shares_nothing(tmp_path: Path) -> None:
    (tmp_path / ".stages").write_text("a file in the way")
    assert steps_of(tmp_path / "a") == steps_of(tmp_path / "b") == FIRST + DENSITY + HEAD


def test_runs_below_a_folder_called_runs_share_stages() -> None:
    here = Path.cwd()
    assert shared_root(Path("runs/toy/density_softmax")) == here / "runs"
    assert shared_root(Path("runs/demo/runs")) == here / "runs"
    assert shared_root(Path("elsewhere/grid")) == here / "elsewhere" / "grid"
