"""`density-softmax benchmark` as a user meets it."""

import sys
from pathlib import Path

import pytest
from small_grid import InlineEngine, changes_of

from density_softmax.cli import experiments as command
from density_softmax.cli import main

METHODS = ["deterministic", "density_softmax"]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch):
    """Run the command line in this process, cells included; returns its exit code."""
    monkeypatch.setattr(command, "LocalEngine", lambda jobs: InlineEngine())

    def called(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["density-softmax", *map(str, words)])
        try:
            main()
        except SystemExit as stop:
            return int(stop.code or 0)
        return 0

    return called


def grid(out: Path, *changes: str) -> list[str]:
    settings = [word for change in changes_of(METHODS, *changes) for word in ("--set", change)]
    return ["benchmark", "toy", "--methods", ",".join(METHODS), *settings, "--out", str(out)]


def test_a_benchmark_ends_with_a_report_on_all_its_runs(call, tmp_path, capsys) -> None:
    assert call(*grid(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert str(tmp_path / "report" / "index.html") in printed
    assert "3 run, 0 failed, 0 finished before" in printed
    rows = (tmp_path / "report" / "rows.csv").read_text()
    assert all(f"toy,{method}," in rows for method in METHODS)
    page = (tmp_path / "report" / "index.html").read_text()
    assert "latency batch sizes" in page
    assert "latency threads" in page


def test_a_failed_cell_is_named_with_its_error_and_the_exit_code_is_1(
    call, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr("density_softmax.grid.board.write_report", lambda runs, out: out)
    monkeypatch.setattr(command, "results_text", lambda out: "")
    assert call(*grid(tmp_path, "deterministic.descent.optimizer.lr=1e30")) == 1
    printed = capsys.readouterr().out
    (failed,) = [line for line in printed.splitlines() if line.startswith("failed: ")]
    assert failed.startswith("failed: deterministic-")
    assert "lower the learning rate" in failed
    assert str(tmp_path / "logs") in failed
    assert "2 run, 1 failed, 0 finished before" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tony"], "unknown recipe 'tony'"),
        (["toy", "--methods", "deterministic,x"], "no method 'x'"),
        (["toy", "--methods", ""], "--methods '' names none: write all"),
        (["toy", "--ablation", "x"], "unknown ablation 'x'; there are: lambda"),
        (["toy", "--set", "data.colour=red"], "unknown name 'colour'"),
        (["toy", "--engine", "ray", "--jobs", "2"], "--jobs 2 is for --engine local"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], message: str, call, monkeypatch, tmp_path, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("benchmark", *words) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())
