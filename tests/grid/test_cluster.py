"""The same grid on a Ray cluster, one of whose workers is killed."""

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_grid import LONG, cells_of, changes_of, results
from test_jobs import is_alive, process_of, wait_for

from density_softmax.benchmark import run
from density_softmax.errors import UserError
from density_softmax.grid.cluster import RayEngine


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_cluster_gives_the_local_rows_though_a_worker_is_killed(tmp_path: Path) -> None:
    out, local = tmp_path / "ray", tmp_path / "local"
    settings = [
        word for change in changes_of(["deterministic"], *LONG) for word in ("--set", change)
    ]
    grid = ["benchmark", "toy", "--methods", "deterministic", "--seeds", "2", "--engine", "ray"]
    command = [sys.executable, "-m", "density_softmax", *grid, *settings, "--out", str(out)]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    benchmark = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    first = cells_of(out, ["deterministic"], 2, *LONG)[0]
    log = out / "logs" / f"{first.name}.log"
    wait_for((first.path / "stages" / "train.partial.safetensors").exists)
    cell = process_of(log)
    os.kill(parent_of(cell), signal.SIGKILL)  # the worker, which waits for the cell
    wait_for(lambda: not is_alive(cell), 5.0)
    assert benchmark.wait(timeout=120) == 0
    assert log.read_text().count(", process ") == 2  # it was started again
    for each in cells_of(local, ["deterministic"], 2, *LONG):
        run(each.recipe, each.path, seed=each.seed, progress=False)
    assert results(out) == results(local)
    with (out / "cells.csv").open(encoding="utf-8") as lines:
        assert [row["state"] for row in csv.DictReader(lines)] == ["done"] * 3
    assert (out / "report" / "index.html").is_file()


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"density-softmax\[cluster\]"):
        RayEngine()
