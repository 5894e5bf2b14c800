"""The same grid on a Ray cluster, one of whose workers is killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_grid import LONG, cells_of, results
from test_jobs import is_alive, process_of, wait_for

from density_softmax.benchmark import run
from density_softmax.errors import UserError
from density_softmax.grid.board import entry_of
from density_softmax.grid.jobs import RayEngine

# In a process of its own: Ray leaves behind what pytest complains about.
DRIVER = """
import json, sys
from pathlib import Path
import ray
from density_softmax.grid.jobs import RayEngine
from density_softmax.grid.jobs import Job
ray.init(address="local", num_cpus=2, log_to_driver=False, logging_level="ERROR")
engine = RayEngine()
jobs = [Job(name, tuple(words), Path(log), Path.cwd()) for name, words, log in json.load(sys.stdin)]
futures = [engine.submit(job) for job in jobs]
print(json.dumps([future.result().error for future in futures]))
"""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_cluster_gives_the_local_rows_though_a_worker_is_killed(tmp_path: Path) -> None:
    out, local = tmp_path / "ray", tmp_path / "local"
    cells = cells_of(out, ["deterministic"], 2, *LONG)
    jobs = [entry_of(cell, out).job for cell in cells]
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with driver:
        driver.stdin.write(json.dumps([(job.name, job.words, str(job.log)) for job in jobs]))
        driver.stdin.close()
        wait_for((cells[0].run.path / "stages" / "train.partial.safetensors").exists, driver)
        cell = process_of(jobs[0].log)
        os.kill(parent_of(cell), signal.SIGKILL)  # the worker, which waits for the cell
        wait_for(lambda: not is_alive(cell))
        assert json.loads(driver.stdout.read().splitlines()[-1]) == ["", ""]
    assert jobs[0].log.read_text().count(", process ") == 2  # it was started again
    for each in cells_of(local, ["deterministic"], 2, *LONG):
        run(each.run, progress=False)
    assert len(results(out)) == 2
    assert results(out) == results(local)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"density-softmax\[cluster\]"):
        RayEngine()
