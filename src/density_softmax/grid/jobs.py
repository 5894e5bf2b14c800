"""A job: a command that runs in a process of its own and writes its own log."""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from density_softmax.cluster import enter_cluster, import_ray
from density_softmax.errors import BusyError

# Imports of this module stay light: every worker of a cluster has it.


@dataclass(frozen=True)
class Job:
    """A call of `density-softmax`.

    Attributes:
        name: what it is called.
        words: the command line after the program's name.
        log: the file that gets what it prints. It exists as soon as the job has begun.
        folder: where the relative paths of the command begin.
        num_cpus: cores that it keeps busy.
        num_gpus: devices it computes on, if there are any.
    """

    name: str
    words: tuple[str, ...]
    log: Path
    folder: Path
    num_cpus: int = 1
    num_gpus: int = 0


class Outcome(NamedTuple):
    """How a job ended: after how long, and with which error, if any.

    Attributes:
        seconds: how long it ran.
        error: why it failed.
        busy: whether it left because another process is making what it needs.
    """

    seconds: float
    error: str = ""
    busy: bool = False


class Engine(Protocol):
    """Something that runs jobs.

    Attributes:
        capacity: how many jobs to give it at a time; None leaves the queue to it.
    """

    capacity: int | None

    def submit(self, job: Job) -> Future[Outcome]:
        """Run a job, now or later."""

    def stop(self) -> None:
        """End what is running, and start nothing more."""


def run_job(
    job: Job, begun: Callable[[subprocess.Popen[bytes]], None] = lambda process: None
) -> Outcome:
    """Run a job to its end, whatever that is.

    The process stops when its standard input ends, which happens when this process ends: a job
    never outlives the process that waits for it, even if that one is killed.

    Args:
        job: the command.
        begun: called with the process once it runs.
    """
    start = time.perf_counter()
    command = [sys.executable, "-m", "density_softmax.cli.attended", *job.words]
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=job.folder,
        )
        title = shlex.join(["density-softmax", *job.words])
        log.write(f"{title}\non {socket.gethostname()}, process {process.pid}\n".encode())
        log.flush()
        with process:
            begun(process)
            code = process.wait()
    busy = code == BusyError.exit_code
    return Outcome(time.perf_counter() - start, describe_failure(code, job.log), busy)


def describe_failure(code: int, log: Path) -> str:
    """Why a process with this exit code failed, in a line; empty if it did not.

    Args:
        code: the exit code of a process, negative if a signal ended it.
        log: what the process printed.
    """
    if code == 0:
        return ""
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (", perhaps for lack of memory" * (name == "SIGKILL"))
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").split("\n")]
    last = next((line for line in reversed(lines) if line), "")
    return last.removeprefix("density-softmax: ") or f"exit code {code}"


class LocalEngine:
    """Jobs on this machine, so many at a time."""

    def __init__(self, at_once: int = 1) -> None:
        self.capacity: int | None = at_once
        self._threads = ThreadPoolExecutor(at_once)
        self._processes: list[subprocess.Popen[bytes]] = []

    def submit(self, job: Job) -> Future[Outcome]:
        """Start a process as soon as one may."""
        return self._threads.submit(run_job, job, self._processes.append)

    def stop(self) -> None:
        """End the processes under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.terminate()  # nothing, if it has ended
        self._threads.shutdown()


# How often a job is started again whose worker or machine was lost; it continues where it was.
RETRIES = 5


class RayEngine:
    """Jobs as tasks of Ray: on the cluster of $RAY_ADDRESS, or on one made of this machine.

    All machines see the same files under the same paths, and have the package installed.
    """

    capacity: int | None = None

    def __init__(self) -> None:
        self._ray = import_ray()
        self._began = enter_cluster(self._ray)
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self._most_cpus = max(int(machine.get("CPU", 1)) for machine in machines)
        self._most_gpus = max(int(machine.get("GPU", 0)) for machine in machines)
        self._task = self._ray.remote(run_job)

    def submit(self, job: Job) -> Future[Outcome]:
        """Queue a task that takes the job's share of a machine."""
        task = self._task.options(
            name=job.name,
            # More than any machine has would be waited for in vain.
            num_cpus=min(job.num_cpus, self._most_cpus),
            num_gpus=min(job.num_gpus, self._most_gpus),
            max_retries=RETRIES,
        )
        return task.remote(job).future()

    def stop(self) -> None:
        """Leave the cluster, which ends the tasks under way, unless others entered it before."""
        if self._began:
            self._ray.shutdown()
