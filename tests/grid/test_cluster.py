"""The same grid on a Ray cluster, one of whose workers is killed."""

import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_grid import LONG, cells_of, results
from test_jobs import is_alive, wait_for

from density_softmax.benchmark import run
from density_softmax.errors import UserError
from density_softmax.grid.board import Board, execute
from density_softmax.grid.cluster import RayEngine
from density_softmax.grid.run import entry_of


class Blind:
    """Sees nothing."""

    def look(self, board: object, changed: object) -> None:
        """Nothing to do."""


@pytest.fixture
def two_workers() -> Iterator[RayEngine]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        import ray

        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        yield RayEngine()
        ray.shutdown()


def kill_the_worker_of(log: Path, partial: Path) -> None:
    """Once its cell has a checkpoint, kill the process that waits for the cell."""
    wait_for(partial.exists)
    pid = int(re.findall(r"process (\d+)", log.read_text())[0])
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid), 5.0)


def test_a_cluster_gives_the_local_rows_though_a_worker_is_killed(
    two_workers: RayEngine, tmp_path: Path
) -> None:
    out, local = tmp_path / "ray", tmp_path / "local"
    cells = cells_of(out, ["deterministic"], 2, *LONG)
    board = Board([entry_of(cell, out) for cell in cells], out / "cells.csv")
    log = board.entries[0].job.log
    partial = cells[0].path / "stages" / "train.partial.safetensors"
    killer = threading.Thread(target=kill_the_worker_of, args=(log, partial))
    killer.start()
    execute(board, two_workers, Blind())
    killer.join()
    assert [entry.error for entry in board.entries] == ["", ""]
    assert log.read_text().count(", process ") == 2  # it was started again
    for cell in cells_of(local, ["deterministic"], 2, *LONG):
        run(cell.recipe, cell.path, seed=cell.seed, progress=False)
    assert results(out) == results(local)
    assert len(results(out)) == 2


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"density-softmax\[cluster\]"):
        RayEngine()
