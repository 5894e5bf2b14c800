"""Random draws that can be repeated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["seeded"]


@contextlib.contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Draw from `seed` inside the block, then restore the generators; None does neither."""
    if seed is None:
        yield
        return
    accelerated = device.type not in ("cpu", "meta")
    devices = [device.index or 0] if accelerated else []
    with torch.random.fork_rng(devices, device_type=device.type if accelerated else "cuda"):
        torch.manual_seed(seed)
        yield
