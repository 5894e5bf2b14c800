"""How much memory a stage took at most."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

import torch

__all__ = ["PeakMemory"]

MEGABYTE = 2**20
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


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
