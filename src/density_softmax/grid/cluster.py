"""Jobs on a Ray cluster."""

from __future__ import annotations

import importlib
import os
from concurrent.futures import Future
from typing import Any

from density_softmax.errors import UserError
from density_softmax.grid.jobs import Job, Outcome, run_job

__all__ = ["RayEngine"]

# How often a job is started again whose worker or machine was lost; it continues where it was.
RETRIES = 5


class RayEngine:
    """Jobs as tasks of Ray: on the cluster of $RAY_ADDRESS, or on one made of this machine.

    All machines see the same files under the same paths, and have the package installed.
    """

    capacity: int | None = None

    def __init__(self) -> None:
        self._ray = _import_ray()
        self._began = not self._ray.is_initialized()
        if self._began:
            self._enter(os.environ.get("RAY_ADDRESS", "local"))
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self._most_cpus = max(int(machine.get("CPU", 1)) for machine in machines)
        self._most_gpus = max(int(machine.get("GPU", 0)) for machine in machines)
        self._task = self._ray.remote(run_job)

    def _enter(self, address: str) -> None:
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # Ray has no common base for what can go wrong here
            raise UserError(
                f"Ray at '{address}' cannot be used ({error}); its logs are in "
                "/tmp/ray/session_latest/logs, and --engine local needs no cluster"
            ) from error

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


def _import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UserError(
            "--engine ray needs the package ray: pip install 'density-softmax[cluster]'"
        ) from None
