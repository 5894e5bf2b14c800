"""Where a run happens: what is chosen, and what is refused with a remedy."""

import warnings
from pathlib import Path

import pytest
import torch
from lightning_fabric.accelerators import MPSAccelerator

from density_softmax.config import ConfigError
from density_softmax.engine import EngineConfig, runtime, start


def test_more_devices_than_there_are_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"requested gpu: \[0, 1\]"):
        start(EngineConfig(accelerator="cuda", devices=2))


@pytest.fixture
def apple(monkeypatch):
    """A machine whose only accelerator has no float64."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(MPSAccelerator, "is_available", staticmethod(lambda: True))


@pytest.mark.usefixtures("apple")
def test_auto_never_takes_a_device_without_float64():
    assert start(EngineConfig()).device.type == "cpu"


@pytest.mark.usefixtures("apple")
@pytest.mark.parametrize("name", ["mps", "gpu"])
def test_a_device_without_float64_is_refused_with_the_reason_and_a_remedy(name):
    with pytest.raises(ConfigError, match=f"{name}: MPS has no float64, .*accelerator=cpu"):
        start(EngineConfig(accelerator=name))


@pytest.mark.parametrize(
    ("flags", "slow"),
    [("avx2 avx512f", True), ("avx512_vnni avx512_bf16", False), ("asimd bf16", False)],
)
def test_a_cpu_that_would_be_slower_in_bfloat16_is_warned_of(
    flags: str, slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"flags : {flags}\n", encoding="utf-8")
    monkeypatch.setattr(runtime, "CPUINFO", cpuinfo)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        start(EngineConfig(accelerator="cpu", precision="bf16-mixed"))
        start(EngineConfig(accelerator="cpu"))
    texts = [str(each.message) for each in found]
    assert sum("no instructions for bfloat16" in text for text in texts) == slow
    assert sum("set engine.precision=32-true" in text for text in texts) == slow
