"""The peak of memory is that of its own stage."""

from pathlib import Path

import pytest
import torch
from toy_problem import EVERY_EPOCH, points, small_method

from density_softmax.engine import Checkpoints, fit
from density_softmax.engine import runtime as memory_module
from density_softmax.engine.runtime import PeakMemory
from density_softmax.training import Estimate

LARGE = 300  # megabytes, well above what everything else here takes


def taking(megabytes: int) -> Estimate:
    """A stage that needs so much memory for a moment."""

    def statistics(batch):
        return {"sum": torch.ones(megabytes * 2**18).sum()}

    return Estimate(f"take{megabytes}", statistics, lambda total: None)


def can_forget() -> bool:
    try:
        memory_module.RESET.write_text("5")
    except OSError:
        return False
    return True


def test_a_stage_reports_its_own_peak_and_not_that_of_the_one_before(tmp_path: Path) -> None:
    if not can_forget():
        pytest.skip("this system keeps the highest peak of a process")
    method = small_method()
    stages = (taking(1), taking(LARGE), taking(2))
    object.__setattr__(method, "stages", lambda: stages)
    record = fit(method, points(8, 1), points(8, 2), directory=tmp_path, engine=EVERY_EPOCH)
    before, large, after = (stage.peak_memory for stage in record.finished)
    assert large - before > 0.9 * LARGE
    assert large - after > 0.9 * LARGE
    again = Checkpoints(tmp_path, record.identity, resume=True)
    assert [stage.peak_memory for stage in again.finished] == [before, large, after]


def test_without_a_proc_file_system_the_peak_of_the_process_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = PeakMemory(torch.device("cpu")).megabytes()
    monkeypatch.setattr(memory_module, "STATUS", tmp_path / "status")
    monkeypatch.setattr(memory_module, "RESET", tmp_path / "no" / "clear_refs")
    assert PeakMemory(torch.device("cpu")).megabytes() >= 0.9 * known


def test_on_a_gpu_torch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", asked.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**20)
    assert PeakMemory(torch.device("cuda")).megabytes() == 3.0
    assert asked == [torch.device("cuda")]
