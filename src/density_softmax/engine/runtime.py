"""Where a run happens: devices, processes and precision, all through Lightning Fabric."""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed

from density_softmax import __version__
from density_softmax.config import ConfigError, at_least, local
from density_softmax.errors import UserError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PACKAGES = ("torch", "lightning-fabric", "numpy", "scikit-learn", "safetensors")
MEGABYTE = 2**20
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
CPUINFO = Path("/proc/cpuinfo")
# What a CPU is said to have if it computes in bfloat16: of AMD and Intel, of Intel, of ARM.
BFLOAT16 = re.compile(r"\b(avx512_bf16|amx_bf16|bf16)\b")


@dataclass(frozen=True)
class EngineConfig:
    """Devices, processes and precision.

    Attributes:
        accelerator: `cpu`, `cuda`, ... or `auto`, the fastest there is but Apple's `mps`, which
            cannot be used: it has no float64, in which sums over samples are computed.
        devices: processes per machine; under torchrun or SLURM, what those were started with.
        num_nodes: machines.
        strategy: Fabric's; `auto` is one device, or DDP over several.
        precision: `32-true`, `bf16-mixed`, `16-mixed`, ... On a CPU, bfloat16 is faster only where
            there are instructions for it.
        feature_memory: megabytes of cached features to keep in memory; above, a mapped file.
        predict_batch_size: samples per forward pass where nothing is learned; null chooses it, so
            that the activations of the network fit into the caches of a CPU.
        threads: CPU threads per process, or null for torch's choice.
        checkpoint_seconds: an epoch that ends sooner after the last checkpoint makes none.
    """

    accelerator: str = local("auto")
    devices: int = local(1)
    num_nodes: int = local(1)
    strategy: str = local("auto")
    precision: str = "32-true"
    feature_memory: int = local(2048)
    predict_batch_size: int | None = local(None)
    threads: int | None = local(None)
    checkpoint_seconds: float = local(30.0)

    def __post_init__(self) -> None:
        """Refuse counts that count nothing."""
        at_least(self, devices=1, num_nodes=1, predict_batch_size=1, threads=1)
        at_least(self, feature_memory=0, checkpoint_seconds=0)

    def in_one_process(self) -> EngineConfig:
        """The same on one device."""
        return replace(self, devices=1, num_nodes=1, strategy="auto")


def start(config: EngineConfig) -> Fabric:
    """A launched Fabric: from here on there are as many processes as asked for.

    Args:
        config: devices, processes and precision.
    """
    fabric = _fabric(config)
    fabric.launch()
    if fabric.world_size > 1:
        atexit.register(_leave_group)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if _lacks_bfloat16(fabric):
        warnings.warn(
            f"engine.precision={config.precision}: this CPU has no instructions for bfloat16 and "
            "takes longer than in float32; set engine.precision=32-true",
            stacklevel=2,
        )
    return fabric


def _leave_group() -> None:
    """Without this, the threads of a process group can abort a process that is about to end."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _fabric(config: EngineConfig) -> Fabric:
    """Fabric knows what there is on this machine, and lists it where it refuses a choice."""
    from lightning_fabric import Fabric
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    from density_softmax.engine.precision import RoundedPrecision

    shunned = config.accelerator == "auto" and torch.backends.mps.is_available()
    build = partial(
        Fabric,
        accelerator="cpu" if shunned else config.accelerator,
        devices=config.devices,
        num_nodes=config.num_nodes,
        strategy=config.strategy,
    )
    try:
        fabric = build(precision=config.precision)  # type: ignore[arg-type]
        if config.precision == "bf16-mixed" and _lacks_bfloat16(fabric):
            fabric = build(plugins=RoundedPrecision())
    except (TypeError, ValueError, RuntimeError, MisconfigurationException) as error:
        raise ConfigError(f"engine: {error}") from None
    if fabric.device.type == "mps":
        raise ConfigError(
            f"engine.accelerator={config.accelerator}: MPS has no float64, in which sums over "
            "samples are computed; choose accelerator=cpu"
        )
    return fabric


def _lacks_bfloat16(fabric: Fabric) -> bool:
    """Whether it computes in bfloat16 on a CPU that is known to have no instructions for it."""
    half = fabric.strategy.precision.precision.startswith("bf16")
    if not half or fabric.device.type != "cpu" or not CPUINFO.exists():
        return False
    return not BFLOAT16.search(CPUINFO.read_text(encoding="utf-8"))


def needs_wrappers(fabric: Fabric) -> bool:
    """Whether Fabric has something to do in a step: not with one device in full precision.

    What its wrappers do there is nothing, in a tenth of the time of a small step.

    Args:
        fabric: a launched one.
    """
    from lightning_fabric.plugins import Precision
    from lightning_fabric.strategies.single_device import SingleDeviceStrategy

    kinds = type(fabric.strategy), type(fabric.strategy.precision)
    return kinds != (SingleDeviceStrategy, Precision) or bool(fabric._callbacks)


def is_first_process() -> bool:
    """Whether this is the process that speaks for all that were started: the first, or only one."""
    several = distributed.is_available() and distributed.is_initialized()
    return not several or distributed.get_rank() == 0


def on_first_process(fabric: Fabric, action: Callable[[], object]) -> None:
    """Let one process act; all of them wait for it, and learn of a refusal.

    Args:
        fabric: the processes.
        action: what the first of them does.
    """
    refusal = None
    if fabric.is_global_zero:
        try:
            action()
        except UserError as error:
            refusal = str(error)
    refusal = fabric.broadcast(refusal)
    if refusal is not None:
        raise UserError(refusal)


def derive_seed(*keys: int) -> int:
    """A seed from a tuple of numbers.

    Every epoch of every stage has seeds of its own, so that no generator state has to be kept
    for a run to continue as if it had never stopped.
    """
    return int(np.random.SeedSequence(keys).generate_state(1, np.uint32)[0])


def name_device(device: torch.device) -> str:
    """What a device is called by its maker.

    Args:
        device: a torch device.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    text = CPUINFO.read_text(encoding="utf-8") if CPUINFO.exists() else ""
    found = re.search(r"model name\s*:\s*(.+)", text)
    return f"CPU, {found[1] if found else platform.processor() or platform.machine()}"


class PeakMemory:
    """The most memory in use since it was made, in megabytes.

    On a CUDA device, what torch held there. Elsewhere the resident memory of the whole process,
    Python and its libraries included; where the system cannot forget an earlier peak (it can on
    Linux), the highest since the process began.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            with contextlib.suppress(OSError):  # a container may forbid it
                RESET.write_text("5", encoding="ascii")  # proc(5): resets the high-water mark

    def megabytes(self) -> float:
        """The peak so far."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / MEGABYTE
        if STATUS.exists():
            # Not getrusage, whose peak a process inherits from the one that started it.
            found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text(encoding="utf-8"))
            if found:
                return int(found[1]) * 1024 / MEGABYTE
        import resource  # which Windows has not

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak * (1 if sys.platform == "darwin" else 1024) / MEGABYTE


def describe_environment() -> dict[str, Any]:
    """Versions and hardware, to repeat a run by."""
    return {
        "density-softmax": __version__,
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }
