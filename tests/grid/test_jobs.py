"""Jobs as processes: how they fail, and that they end with whoever waits for them."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from small_grid import LONG, cells_of, results

from density_softmax.benchmark import run
from density_softmax.grid.jobs import Job, LocalEngine, describe_failure, run_job

WAITER = """
import sys
from pathlib import Path
from density_softmax.grid.jobs import Job, run_job
log, folder, *words = sys.argv[1:]
run_job(Job("cell", tuple(words), Path(log), Path(folder)))
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def process_of(log: Path) -> int:
    """Which process wrote a log."""
    return int(re.findall(r", process (\d+)", log.read_text())[0])


def wait_for(condition: Callable[[], bool], process: subprocess.Popen | None = None) -> None:
    """Until it holds, or the process that is to make it hold has ended."""
    end = time.monotonic() + 300.0
    while not condition():
        assert time.monotonic() < end
        assert process is None or process.poll() is None
        time.sleep(0.005)


def test_the_error_of_a_job_is_the_last_line_it_printed(tmp_path: Path) -> None:
    job = Job("x", ("data", "fetch", "cifar11"), tmp_path / "logs" / "x.log", tmp_path)
    outcome = run_job(job)
    assert outcome.error.startswith("unknown data set 'cifar11'; did you mean")
    assert outcome.seconds > 0
    assert job.log.read_text().startswith("density-softmax data fetch cifar11\n")


@pytest.mark.parametrize(
    ("code", "printed", "error"),
    [
        (0, "fine", ""),
        (1, "Traceback\n  File\nValueError: no\n\n", "ValueError: no"),
        (2, "density-softmax: choose another", "choose another"),
        (3, "", "exit code 3"),
        (-signal.SIGKILL, "epoch 3", "killed by SIGKILL, perhaps for lack of memory"),
        (-signal.SIGSEGV, "epoch 3", "killed by SIGSEGV"),
    ],
)
def test_a_failure_is_said_in_a_line(code: int, printed: str, error: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(printed)
    assert describe_failure(code, log) == error


def test_stopping_ends_what_runs_and_starts_nothing_more(tmp_path: Path) -> None:
    (cell,) = cells_of(tmp_path, ["deterministic"])
    engine = LocalEngine(1)
    jobs = [Job(n, cell.command(), tmp_path / n, tmp_path) for n in ("first", "second")]
    first, second = map(engine.submit, jobs)
    wait_for(lambda: jobs[0].log.exists() and b"process" in jobs[0].log.read_bytes())
    engine.stop()
    assert first.result(timeout=0).error == "killed by SIGTERM"
    assert second.cancelled()
    assert not jobs[1].log.exists()


def test_a_cell_ends_with_a_killed_grid_and_continues_to_the_same_rows(tmp_path: Path) -> None:
    (cell,) = cells_of(tmp_path / "grid", ["deterministic"], 1, *LONG)
    log = tmp_path / "cell.log"
    command = [sys.executable, "-c", WAITER, log, tmp_path, *cell.command()]
    waiter = subprocess.Popen(command)
    partial = cell.run.path / "stages" / "train.partial.safetensors"
    wait_for(partial.exists, waiter)
    pid = process_of(log)
    assert is_alive(pid)
    os.kill(waiter.pid, signal.SIGKILL)
    waiter.wait()
    wait_for(lambda: not is_alive(pid))
    assert not cell.is_finished()
    run(cell.run, resume=True, progress=False)
    (whole,) = cells_of(tmp_path / "whole", ["deterministic"], 1, *LONG)
    run(whole.run, progress=False)
    assert results(tmp_path / "grid") == results(tmp_path / "whole") != {}
