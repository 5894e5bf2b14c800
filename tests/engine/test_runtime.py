"""Where a run happens: what is chosen, and what is refused with a remedy."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lightning_fabric.accelerators import MPSAccelerator
from torch.utils._python_dispatch import TorchDispatchMode

from density_softmax.config import ConfigError
from density_softmax.engine import EngineConfig, runtime, start
from density_softmax.engine.precision import PRODUCTS


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


@pytest.fixture
def cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes this machine say that its CPU has these features."""
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(runtime, "CPUINFO", cpuinfo)
    return lambda flags: cpuinfo.write_text(f"flags : {flags}\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("flags", "slow"),
    [("avx2 avx512f", True), ("avx512_vnni avx512_bf16", False), ("asimd bf16", False)],
)
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_a_cpu_that_is_slower_in_bfloat16_is_warned_of(
    precision: str, flags: str, slow: bool, cpu: Callable[[str], None]
) -> None:
    cpu(flags)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        start(EngineConfig(accelerator="cpu", precision=precision))
        start(EngineConfig(accelerator="cpu"))
    texts = [str(each.message) for each in found]
    assert sum("no instructions for bfloat16" in text for text in texts) == slow
    assert sum("set engine.precision=32-true" in text for text in texts) == slow


class Types(TorchDispatchMode):
    """Which types of numbers the kernels of convolutions and products of matrices are given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation in PRODUCTS:
            self.seen |= {each.dtype for each in args if isinstance(each, torch.Tensor)}
        return operation(*args, **(kwargs or {}))


CONVOLUTION = (torch.nn.functional.conv2d, (8, 3, 6, 6), (5, 3, 3, 3))
LINEAR = (torch.nn.functional.linear, (8, 40), (5, 40))


@pytest.mark.filterwarnings("ignore:engine.precision")
@pytest.mark.parametrize(("function", "shape", "weights"), [CONVOLUTION, LINEAR])
def test_without_instructions_products_of_rounded_numbers_are_rounded_once(
    function: Callable[..., torch.Tensor],
    shape: tuple[int, ...],
    weights: tuple[int, ...],
    cpu: Callable[[str], None],
) -> None:
    cpu("avx2 avx512f")
    fabric = start(EngineConfig(accelerator="cpu", precision="bf16-mixed"))
    torch.manual_seed(0)
    x, w = (torch.randn(size, requires_grad=True) for size in (shape, weights))
    with Types() as kernels:
        with fabric.autocast():
            result = function(x, w)
        towards = torch.randn(result.shape).bfloat16()
        fabric.backward((result.float() * towards).sum())
    assert result.dtype == torch.bfloat16
    assert kernels.seen == {torch.float32}

    exact_x, exact_w = (each.detach().bfloat16().double().requires_grad_() for each in (x, w))
    exact = function(exact_x, exact_w)
    exact.backward(towards.double())
    # Half the distance of two bfloat16 numbers, which have 8 digits, and some for float32.
    for ours, theirs in ((result, exact), (x.grad, exact_x.grad), (w.grad, exact_w.grad)):
        torch.testing.assert_close(ours.double(), theirs, rtol=2**-8 + 2**-20, atol=1e-6)
