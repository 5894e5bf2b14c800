"""The command line as a user meets it: what it writes, and one-line errors with exit code 2."""

import errno
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from rich.table import Table
from safetensors.torch import load_file
from sklearn.datasets import load_iris

from density_softmax import __version__
from density_softmax.cli import experiments, main
from density_softmax.cli.terminal import Terminal
from density_softmax.engine.progress import Bars
from density_softmax.files import PART
from density_softmax.recipes import prepare
from density_softmax.runs.rows import read_rows
from density_softmax.runs.run import Run

SHORT = ("method.representation.epochs=2", "method.density.descent.epochs=2")


def call(monkeypatch, *arguments):
    """Run the command line in this process; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["density-softmax", *map(str, arguments)])
    try:
        main()
    except SystemExit as stop:
        return stop.code or 0
    return 0


def settings(*changes):
    return [option for change in changes for option in ("--set", change)]


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    out = tmp_path_factory.mktemp("command") / "run"
    with pytest.MonkeyPatch.context() as patch:
        assert call(patch, "train", "toy", *settings(*SHORT), "--out", out) == 0
    return out


def found(run):
    """The figures of a run by split and metric."""
    return {(row.split, row.metric): row.value for row in read_rows(run / "rows.csv")}


def contents(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_train_writes_a_complete_run_directory(run_directory):
    expected = {"recipe.json", "environment.json", "progress.json", "epochs.csv", "rows.csv"}
    assert expected <= {file.name for file in run_directory.iterdir()}
    splits = {row.split for row in read_rows(run_directory / "rows.csv")}
    assert splits == {"iid", "cluster", "cost"}
    assert {file.stem for file in (run_directory / "predictions").iterdir()} == {
        "iid",
        "cluster",
        "grid",
        "train",
    }
    assert [file.name for file in (run_directory / "features").glob("*.*")] == ["iid.safetensors"]


def test_evaluate_repeats_what_training_reported(run_directory, monkeypatch):
    before = read_rows(run_directory / "rows.csv")
    assert call(monkeypatch, "evaluate", run_directory) == 0
    after = {row[:-1]: row.value for row in read_rows(run_directory / "rows.csv")}
    assert after.keys() == {row[:-1] for row in before}
    for row in before:
        if "latency" not in row.metric:
            assert after[row[:-1]] == row.value


def test_evaluate_adds_named_sets_to_what_was_found(tmp_path, monkeypatch):
    out, one = tmp_path / "run", ("method.descent.epochs=1", 'data.shifts=["digits-c/fog/1"]')
    train = ("train", "digits", "--method", "deterministic", *settings(*one), "--out", out)
    assert call(monkeypatch, *train) == 0
    before = found(out)
    sets = ("--shift", "digits-c/contrast/5", "--ood", "digits-c/impulse_noise/5")
    assert call(monkeypatch, "evaluate", out, *sets) == 0
    after = found(out)
    assert {key: after[key] for key in before if key[0].startswith(("iid", "digits-c/"))} == {
        key: value for key, value in before.items() if key[0].startswith(("iid", "digits-c/"))
    }
    assert ("digits-c/impulse_noise/5", "auroc:entropy") in after
    shifts = [after[f"digits-c/{name}", "nll"] for name in ("fog/1", "contrast/5")]
    assert after["digits-c", "cnll"] == pytest.approx(sum(shifts) / 2)


def test_evaluate_gives_no_split_a_second_role(tmp_path, monkeypatch, capsys):
    out, one = tmp_path / "run", ("method.descent.epochs=1", 'data.shifts=["digits-c/fog/1"]')
    train = ("train", "digits", "--method", "deterministic", *settings(*one), "--out", out)
    assert call(monkeypatch, *train) == 0
    before = contents(out)
    np.savez(tmp_path / "digits-c.npz", x=np.zeros((2, 8, 8), np.uint8))
    roles = {"digits-c/fog/1": "shift", tmp_path / "digits-c.npz": "mean over shifts"}
    for name, role in roles.items():
        assert call(monkeypatch, "evaluate", out, "--ood", name) == 2
        assert f"has results of it as {role}, and cannot have any as ood" in capsys.readouterr().err
    assert contents(out) == before


def test_evaluate_on_sets_by_name_needs_data_that_have_names(run_directory, monkeypatch, capsys):
    assert call(monkeypatch, "evaluate", run_directory, "--ood", "svhn") == 2
    assert "generated whole: omit --shift and --ood" in capsys.readouterr().err


def test_evaluate_bounds_the_lipschitz_constant_if_asked(run_directory, monkeypatch):
    assert call(monkeypatch, "evaluate", run_directory, "--lipschitz") == 0
    rows = {row.metric: row.value for row in read_rows(run_directory / "rows.csv")}
    assert 0 < rows["lipschitz_lower"] <= rows["lipschitz_upper"]


def test_resuming_a_finished_run_keeps_what_was_found_since(run_directory, monkeypatch):
    assert call(monkeypatch, "evaluate", run_directory, "--lipschitz") == 0
    before = found(run_directory)
    train = ("train", "toy", *settings(*SHORT), "--out", run_directory, "--resume")
    assert call(monkeypatch, *train) == 0
    assert ("cost", "lipschitz_upper") in before
    assert found(run_directory) == before


@pytest.mark.parametrize("method", ["deep_ensemble", "mimo", "batch_ensemble", "rank1_bnn"])
def test_a_method_without_an_encoder_to_bound_is_refused_before_anything_is_predicted(
    method, monkeypatch, tmp_path, capsys
):
    small = ("encoder.depth=1", "encoder.width=8", "data.num_points=80")
    run = Run(prepare("toy", method, small), path=tmp_path)
    run.claim(resume=False)
    run.save_rows([])
    before = contents(tmp_path)
    monkeypatch.setattr(Run, "_restore", lambda run, method: None)  # as if trained
    assert call(monkeypatch, "evaluate", tmp_path, "--lipschitz") == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert f"{method} has no encoder that maps" in error
    assert contents(tmp_path) == before


def test_report_makes_a_page_from_a_run(run_directory, monkeypatch, tmp_path, capsys):
    assert call(monkeypatch, "report", run_directory, "--out", tmp_path / "report") == 0
    assert str(tmp_path / "report" / "index.html") in capsys.readouterr().out
    assert (tmp_path / "report" / "rows.csv").read_text() == (
        run_directory / "rows.csv"
    ).read_text()


@pytest.mark.parametrize("what", ["methods", "recipes", "ablations", "datasets", "metrics"])
def test_list_names_what_there_is(what, monkeypatch, capsys):
    assert call(monkeypatch, "list", what) == 0
    known = {
        "methods": "density_softmax",
        "recipes": "toy",
        "ablations": "lambda",
        "datasets": "cifar10",
        "metrics": "cnll, caccuracy, cece",
    }
    assert known[what] in capsys.readouterr().out


BAD_INPUT = {
    "unknown recipe": (["train", "x"], "unknown recipe 'x'; there are: toy, table"),
    "misspelt recipe": (["train", "Tony"], "unknown recipe 'Tony'; did you mean 'toy'?"),
    "misspelt recipe of a grid": (["benchmark", "toi"], "did you mean 'toy'?"),
    "misspelt ablation": (
        ["benchmark", "toy", "--ablation", "Lamda"],
        "unknown ablation 'Lamda'; did you mean 'lambda'?",
    ),
    "unknown method": (["train", "toy", "--method", "x"], "no method 'x'; there are:"),
    "capital method": (["train", "toy", "--method", "SNGP"], "did you mean 'sngp'? there are:"),
    "capital method of a grid": (
        ["benchmark", "toy", "--methods", "ddu,Density-Softmax"],
        "no method 'Density-Softmax'; did you mean 'density_softmax'?",
    ),
    "end of a path": (
        ["train", "toy", "--method", "sngp", "--set", "lr=0.1"],
        "unknown name 'lr'; did you mean method.descent.optimizer.lr?",
    ),
    "no value": (["train", "toy", "--set", "method.scale="], "'method.scale=' has no value"),
    "no table": (["train", "table"], "name it with --set data.train=FILE.csv"),
    "missing table": (["train", "rows.csv"], "rows.csv: not found"),
    "unknown path": (
        ["train", "toy", "--set", "method.scle=max"],
        "unknown name 'scle'; did you mean 'scale'?",
    ),
    "unknown kind": (["train", "toy", "--set", "method.scale=mx"], "unknown name 'mx'"),
    "wrong type": (
        ["train", "toy", "--set", "method.representation.epochs=many"],
        "method.representation.epochs=many: expected int",
    ),
    "impossible value": (["train", "toy", "--set", "method.head.epochs=0"], "choose 1 or more"),
    "no accelerator": (
        ["train", "toy", "--set", "engine.accelerator=gpuu"],
        "accelerator='gpuu'`. Available names are: ",
    ),
    "no precision": (["train", "toy", "--set", "engine.precision=foo"], "Allowed precision values"),
    "no points": (["train", "toy", "--set", "data.num_points=0"], "choose 1 or more"),
    "nothing held out": (
        ["train", "toy", "--set", "data.heldout=0"],
        "stage scale: reads held-out data, and there are none",
    ),
    "too little held out": (
        ["train", "toy", "--set", "data.heldout=1e-9"],
        "choose a fraction between",
    ),
    "no assignment": (["train", "toy", "--set", "method"], "path=value"),
    "no run": (["evaluate", "nowhere"], "not a run directory"),
    "nothing to report": (["report", "nowhere"], "nowhere"),
    "unknown set": (["data", "fetch", "cifar11"], "unknown data set 'cifar11'; did you mean"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line_with_a_remedy_and_exit_code_2(case, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    arguments, message = BAD_INPUT[case]
    assert call(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1
    assert not contents(tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "toy", "--seed", 10**20),
        ("train", "toy", "--seed", -1),
        ("benchmark", "toy", "--seeds", 0),
        ("demo", "--seeds", 0),
    ],
)
def test_a_seed_that_torch_cannot_take_and_no_seeds_are_refused(
    arguments, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *arguments) == 2
    assert f"Invalid value for '{arguments[-2]}'" in capsys.readouterr().err
    assert not contents(tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "toy", "--out", "a" * 300),
        ("train", "toy", "--out", "file"),
        ("train", "toy", "--out", "file/run"),
        ("benchmark", "toy", "--methods", "deterministic", "--out", "file"),
        ("evaluate", "file"),
        ("evaluate", "a" * 300),
        ("export", "file", "model.onnx"),
        ("report", "a" * 300),
        ("predict", "a" * 300, "rows.csv"),
        ("train", f"{'a' * 300}.csv"),
    ],
)
def test_a_place_that_cannot_be_used_is_one_line_without_a_traceback(
    arguments, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    assert call(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert error.startswith("density-softmax: ")
    assert contents(tmp_path) == {tmp_path / "file": b"mine"}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_what_the_system_refuses_is_named_with_a_remedy(number, monkeypatch, capsys):
    def refused(what):
        raise OSError(number, os.strerror(number), "place")

    monkeypatch.setattr("density_softmax.cli.experiments.listing", refused)
    assert call(monkeypatch, "list", "methods") == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith(f"density-softmax: place: {os.strerror(number).lower()}: ")


def test_a_file_of_another_kind_is_answered_with_what_can_be_trained_on(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.xlsx").write_text("")
    (tmp_path / "photos").mkdir()
    assert call(monkeypatch, "train", "rows.xlsx") == 2
    assert "a table is a .csv or an .npz file" in capsys.readouterr().err
    assert call(monkeypatch, "train", "photos") == 2
    assert "such as cifar10_small with --set data.train=photos" in capsys.readouterr().err


def test_the_version_is_shown(monkeypatch, capsys):
    assert call(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"density-softmax {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "0"], "add --resume"),
        (["--seed", "1", "--resume"], "another recipe or seed"),
        (["--method", "deterministic"], "another recipe or seed"),
    ],
)
def test_a_run_directory_is_never_overwritten(
    arguments, message, run_directory, monkeypatch, capsys
):
    before = contents(run_directory)
    options = settings(*SHORT) if "--method" not in arguments else []
    assert call(monkeypatch, "train", "toy", *options, "--out", run_directory, *arguments) == 2
    assert message in capsys.readouterr().err
    assert contents(run_directory) == before


def test_a_folder_of_other_things_is_refused(monkeypatch, tmp_path, capsys):
    (tmp_path / "letter.txt").write_text("mine")
    assert call(monkeypatch, "train", "toy", "--out", tmp_path) == 2
    assert "is not empty and not a run" in capsys.readouterr().err
    assert (tmp_path / "letter.txt").read_text() == "mine"


def test_what_a_killed_command_was_writing_is_removed_by_the_next(run_directory, monkeypatch):
    for folder in (run_directory, run_directory / "predictions"):
        (folder / f".iid.safetensors.0a{PART}").write_text("half")
    assert call(monkeypatch, "evaluate", run_directory) == 0
    assert not list(run_directory.rglob("*.part"))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_run_whose_recipe_is_no_file_is_refused(monkeypatch, tmp_path, capsys, make):
    make(tmp_path / "recipe.json")
    assert call(monkeypatch, "evaluate", tmp_path) == 2
    assert "not a run directory, it has no recipe.json" in capsys.readouterr().err


def test_a_truncated_checkpoint_is_named(monkeypatch, tmp_path, capsys):
    out = tmp_path / "run"
    arguments = ["train", "toy", *settings(*SHORT), "--out", out]
    assert call(monkeypatch, *arguments) == 0
    file = out / "stages" / "head.done.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    capsys.readouterr()
    assert call(monkeypatch, *arguments, "--resume") == 2
    assert str(file) in capsys.readouterr().err


def test_an_interrupt_says_how_to_continue(monkeypatch, capsys):
    def interrupted(what):
        raise KeyboardInterrupt

    monkeypatch.setattr("density_softmax.cli.experiments.listing", interrupted)
    assert call(monkeypatch, "list", "methods") == 130
    assert capsys.readouterr().err.startswith("interrupted: a run continues with --resume")


def test_a_killed_process_resumes_to_the_weights_of_an_undisturbed_one(tmp_path):
    command = [sys.executable, "-m", "density_softmax", "train", "toy", "--no-share"]
    command += settings(
        "method.representation.epochs=6",
        "method.density.descent.epochs=6",
        "engine.checkpoint_seconds=0.0",
    )
    quiet = {"stdout": subprocess.DEVNULL, "check": True, "timeout": 120}
    subprocess.run([*command, "--out", tmp_path / "whole"], **quiet)
    killed = subprocess.Popen([*command, "--out", tmp_path / "run"], stdout=subprocess.DEVNULL)
    partial = tmp_path / "run" / "stages" / "representation.partial.safetensors"
    while not partial.exists():
        assert killed.poll() is None
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    subprocess.run([*command, "--out", tmp_path / "run", "--resume"], **quiet)
    ours = load_file(tmp_path / "run" / "stages" / "head.done.safetensors")
    whole = load_file(tmp_path / "whole" / "stages" / "head.done.safetensors")
    assert ours.keys() == whole.keys()
    assert all(ours[name].equal(whole[name]) for name in whole)


def test_a_run_without_a_held_out_slice_is_trained_exported_and_reported(tmp_path, monkeypatch):
    changes = settings("data.heldout=0", "method.descent.epochs=1")
    out, model = tmp_path / "runs" / "erm", tmp_path / "model.pt2"
    monkeypatch.chdir(tmp_path)
    arguments = ("--method", "deterministic", *changes, "--out", out)
    assert call(monkeypatch, "train", "toy", *arguments) == 0
    assert Run.at(out).data.heldout is None
    assert call(monkeypatch, "export", out, model) == 0
    assert call(monkeypatch, "report", tmp_path / "runs") == 0
    assert call(monkeypatch, "export", out, tmp_path / "int8.onnx", "--int8") == 2


@pytest.mark.parametrize("command", ["report", "train"])
def test_a_path_that_is_too_long_is_one_line(command, run_directory, monkeypatch, tmp_path, capsys):
    what = run_directory if command == "report" else "toy"
    assert call(monkeypatch, command, what, "--out", tmp_path / ("x" * 300)) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "choose a shorter path" in error


def test_names_are_printed_as_they_are(capsys):
    console = Terminal(width=200)
    table = Table("[bold]head", title="[/x]")
    table.add_row("[red]cell :smile:")
    console.print(table)
    console.print("run directory: [/]\x1b[2J\u202e$HOME\udcff")
    console.rule("[b]rule")
    out = capsys.readouterr().out
    for name in ("[bold]head", "[/x]", "[red]cell :smile:", "[/] [2J $HOME", "[b]rule"):
        assert name in out
    assert "\x1b" not in out


def test_bars_show_names_as_they_are():
    with Bars(show=True) as bars:
        bars.add("[/stage]", 1).note("[bold]set[/x]")


def test_latency_says_when_the_machine_was_too_busy(run_directory, monkeypatch, capsys):
    for spread, said in ((0.1, False), (5.0, True)):
        values = {"latency_ratio:1": 2.0, "latency_spread:1": spread}
        rows = Run.at(run_directory).make_rows({"cost": values})
        monkeypatch.setattr(experiments, "measure_latencies", lambda runs, rows=rows: rows)
        assert call(monkeypatch, "latency", run_directory) == 0
        out = capsys.readouterr().out
        assert ("~2" in out) is said
        assert ("too busy to measure" in out) is said


@pytest.fixture
def iris(tmp_path):
    file = tmp_path / "iris.csv"
    load_iris(as_frame=True).frame.to_csv(file, index=False)
    return file


def test_a_table_is_trained_exported_and_predicted_by_its_path(iris, monkeypatch, capsys):
    monkeypatch.chdir(iris.parent)
    assert call(monkeypatch, "train", "iris.csv", "--out", "run") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "iris.csv: label 'target' with 3 classes, 4 features; 96 rows to train on" in shown
    assert found(iris.parent / "run")["iid", "accuracy"] >= 0.9
    assert call(monkeypatch, "export", "run", "iris.onnx") == 0
    assert call(monkeypatch, "predict", "iris.onnx", "iris.csv", "--out", "labels.csv") == 0
    labels = pd.read_csv("labels.csv")["label"]
    assert (labels == pd.read_csv("iris.csv")["target"]).mean() >= 0.9
    assert call(monkeypatch, "report", "run", "--out", "report") == 0


def test_a_table_by_its_path_is_the_recipe_table(iris, monkeypatch):
    path, named = iris.parent / "path", iris.parent / "named"
    assert call(monkeypatch, "train", iris, "--out", path, "--no-share") == 0
    train = ("train", "table", *settings(f"data.train={iris}"), "--out", named, "--no-share")
    assert call(monkeypatch, *train) == 0
    assert Run.at(path).recipe == Run.at(named).recipe
    metrics = [key for key in found(path) if key[0] == "iid"]
    assert [found(path)[key] for key in metrics] == [found(named)[key] for key in metrics]
