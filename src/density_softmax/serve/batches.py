"""How many inputs to compute at a time: as many as keep their activations in the caches."""

from __future__ import annotations

import functools
from pathlib import Path

# Where Linux tells the caches of a CPU, a folder each.
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
# Of a CPU that does not tell.
USUAL_CACHE = 16 * 2**20
# Of the last cache, for what a layer reads and writes; the rest is for weights and others.
SHARE = 0.5
# What keeps a GPU busy.
ACCELERATED = 2**30
# Below, weights are read too often; above, nothing is gained.
SMALLEST, LARGEST = 8, 512
# Of a network that is not known.
UNKNOWN = 64
# Features are rows of a few kilobytes.
ROWS = 4096


def batch_size(bytes_per_input: float, accelerated: bool = False) -> int:
    """The largest power of two whose activations fit, between 8 and 512.

    A batch that leaves the CPU's caches takes up to 2.5 times as long. Powers of two, so that
    nearly the same networks and machines compute in the same batches.

    Args:
        bytes_per_input: what the widest layer reads and writes for one input.
        accelerated: on a GPU, which is to be busy, rather than on a CPU.
    """
    room = ACCELERATED if accelerated else SHARE * last_cache()
    fitting = max(1, int(room / max(1.0, bytes_per_input)))
    return min(LARGEST, max(SMALLEST, 2 ** (fitting.bit_length() - 1)))


@functools.cache
def last_cache() -> int:
    """Bytes of the CPU's largest cache."""
    sizes = (_size(file) for file in CACHES.glob("index*/size"))
    return max(sizes, default=0) or USUAL_CACHE


def _size(file: Path) -> int:
    """The size that a file such as `32768K` tells; 0 if it cannot be read."""
    try:
        text = file.read_text(encoding="ascii").strip()
        return int(text.rstrip("KMG")) * UNITS.get(text[-1:], 1)
    except (OSError, ValueError):
        return 0
