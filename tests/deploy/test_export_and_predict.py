"""`export` and `predict` as a user meets them."""

import csv
import io
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from exported_models import draw

from density_softmax.benchmark import run
from density_softmax.cli import main
from density_softmax.deploy import export as exporter
from density_softmax.deploy.export import RunPredictor, export_run
from density_softmax.engine import start
from density_softmax.recipes import prepare
from density_softmax.runs.run import Run

SETTINGS = ("method.descent.epochs=1", "encoder.depth=1", "encoder.width=8")


def call(monkeypatch, *arguments):
    """Run the command line in this process; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["density-softmax", *map(str, arguments)])
    try:
        main()
    except SystemExit as stop:
        return stop.code or 0
    return 0


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    out = tmp_path_factory.mktemp("deployed") / "run"
    run(Run(prepare("toy", "deterministic", SETTINGS), 0, out), progress=False)
    return out


@pytest.fixture(scope="module")
def exported(run_directory):
    file = run_directory.parent / "model.onnx"
    with pytest.MonkeyPatch.context() as patch:
        assert call(patch, "export", run_directory, file) == 0
    return file


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    file = tmp_path_factory.mktemp("table") / "rows.csv"
    lines = [f"{a},{b}\n" for a, b in draw(20, 2).tolist()]
    file.write_text("".join(["a,b\n", *lines, "nan,0\n"]))
    return file


def answers(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_run_and_its_export_predict_the_same(
    run_directory, exported, table, monkeypatch, tmp_path
):
    found = []
    for number, model in enumerate((run_directory, exported)):
        out = tmp_path / f"{number}.csv"
        assert call(monkeypatch, "predict", model, table, "--out", out) == 0
        found.append(answers(out.read_text()))
    assert len(found[0]) == 21
    for ours, theirs in zip(*found, strict=True):
        assert (ours["label"], ours["flag"]) == (theirs["label"], theirs["flag"])
        assert float(ours["confidence"]) == pytest.approx(float(theirs["confidence"]), abs=1e-5)
    assert found[0][-1]["flag"] == "bad"


def test_thresholds_are_quantiles_of_the_runs_held_out_data(run_directory):
    trained = Run.at(run_directory)
    epistemic = trained.load().predict(trained.data.heldout.x).epistemic
    for share, threshold in RunPredictor.of(trained).card.thresholds.items():
        assert (epistemic > threshold).float().mean() <= share


def test_a_run_with_a_data_seed_has_the_thresholds_of_those_data(tmp_path):
    recipe = prepare("toy", "deterministic", (*SETTINGS, "data_seed=5"))
    run(Run(recipe, 0, tmp_path / "run"), progress=False)
    trained = Run.at(tmp_path / "run")
    epistemic = trained.load().predict(recipe.data.load(5).heldout.x).epistemic
    expected = pytest.approx(np.unique(epistemic.numpy()))
    assert trained.seed != 5
    exported = export_run(trained, tmp_path / "model.pt2", progress=False)
    for card in (RunPredictor.of(trained).card, exported.card):
        assert card.policy.typical.values == expected


def test_export_shows_parity_and_thresholds(run_directory, monkeypatch, tmp_path, capsys):
    file = tmp_path / "model.pt2"
    assert call(monkeypatch, "export", run_directory, file) == 0
    text = capsys.readouterr().out
    assert "largest difference of a probability, batch 7" in text
    assert "epistemic threshold for 5% false alarms" in text
    assert f"exported: {file}" in text


def test_an_exported_file_tells_the_layers_apart_if_asked(monkeypatch, tmp_path, table):
    out, file, answered = tmp_path / "run", tmp_path / "model.onnx", tmp_path / "answers.csv"
    experts = ("method.density=gaussian", "method.classes=true", 'method.layers=["input"]')
    settings = (*SETTINGS[1:], "method.representation.epochs=1", *experts)
    run(Run(prepare("toy", "density_softmax", settings), 0, out), progress=False)
    assert call(monkeypatch, "export", out, file, "--by-layer") == 0
    assert call(monkeypatch, "predict", file, table, "--out", answered) == 0
    assert "layers/input" in answers(answered.read_text())[0]


def test_predict_shows_throughput_and_keeps_the_output_clean(exported, table, monkeypatch, capsys):
    assert call(monkeypatch, "predict", exported, table) == 0
    streams = capsys.readouterr()
    assert len(answers(streams.out)) == 21
    assert "21 inputs in" in streams.err
    assert "a row out for each: " in streams.err
    assert "per second" in streams.err


@pytest.mark.parametrize(("threads", "expected"), [(3, 3), (0, None)])
def test_a_run_is_served_by_one_process_with_the_threads_asked_for(
    threads, expected, run_directory, table, monkeypatch
):
    trained = Run.at(run_directory)
    recipe = trained.recipe
    engine = replace(recipe.engine, devices=2, num_nodes=2, strategy="ddp")
    trained.recipe = replace(recipe, engine=engine)
    monkeypatch.setattr(Run, "at", lambda path: trained)
    started = []
    monkeypatch.setattr(
        exporter, "start", lambda engine: started.append(engine) or start(recipe.engine)
    )
    assert call(monkeypatch, "predict", run_directory, table, "--threads", threads) == 0
    assert started == [replace(recipe.engine, threads=expected)]


def test_an_exported_file_is_served_without_torch(exported, table):
    code = (
        "import sys\n"
        "from density_softmax.cli.main import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "predict", str(exported), str(table)]
    subprocess.run(command, check=True, capture_output=True)


def test_a_smaller_share_of_false_alarms_flags_less(exported, table, monkeypatch, capsys):
    flagged = []
    for share in (0.01, 0.05, 0.1):
        assert call(monkeypatch, "predict", exported, table, "--false-alarms", share) == 0
        flagged.append(sum(row["flag"] == "out" for row in answers(capsys.readouterr().out)))
    assert flagged == sorted(flagged)


BAD_INPUT = {
    "no model": (["predict", "none.onnx", "rows.csv"], "none.onnx: no such file"),
    "no run to export": (["export", "nowhere", "model.onnx"], "not a run directory"),
    "truncated model": (["predict", "cut.onnx", "rows.csv"], "cut.onnx: truncated or not"),
    "unknown share": (["predict", "model.onnx", "rows.csv", "--false-alarms", "2"], "a share"),
    "unknown format": (["predict", "model.onnx", "rows.csv", "--out", "a.xls"], ".parquet"),
    "no input": (["predict", "model.onnx", "none.csv"], "none.csv: not found"),
    "format of the export": (["export", "run", "model.pb"], "ends in .onnx or .pt2"),
    "8 bits in torch": (["export", "run", "model.pt2", "--int8"], "for .onnx files only"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line_and_exit_code_2(
    case, run_directory, exported, table, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").symlink_to(run_directory)
    (tmp_path / "model.onnx").symlink_to(exported)
    (tmp_path / "rows.csv").symlink_to(table)
    (tmp_path / "cut.onnx").write_bytes(exported.read_bytes()[:1000])
    before = set(tmp_path.iterdir())
    arguments, message = BAD_INPUT[case]
    assert call(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("density-softmax: ")
    assert message in error
    assert set(tmp_path.iterdir()) == before


def test_promises_are_fitted_to_the_held_out_data(run_directory, monkeypatch, tmp_path, capsys):
    file, number = tmp_path / "model.pt2", len(Run.at(run_directory).data.heldout)
    options = ["--coverage", "0.9", "--false-alarms", "0.05"]
    assert call(monkeypatch, "export", run_directory, file, *options) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "sets hold the true label of 0.9 of the inputs" in text
    assert f"samples {number}," in text  # which fitted nothing of this method
    assert call(monkeypatch, "export", run_directory, file, "--policy", "none.json") == 2
    wrong = ["--policy", "none.json", "--coverage", "0.9"]
    assert call(monkeypatch, "export", run_directory, file, *wrong) == 2
    assert "omit the others, or --policy" in capsys.readouterr().err
