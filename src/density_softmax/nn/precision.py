"""Full precision where mixed precision would lose what matters."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor

__all__ = ["at_least_float32", "full_precision"]


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """A context without autocast on the device of `like`.

    Log densities of a few hundred nats and squared Jacobian norms do not survive 8 bits of
    mantissa: flows, scales and penalties compute in float32 whatever the network does.
    """
    if not torch.is_autocast_enabled(like.device.type):
        return contextlib.nullcontext()  # entering autocast costs as much as a small matmul
    return torch.autocast(like.device.type, enabled=False)


def at_least_float32(x: Tensor) -> Tensor:
    """What a network gave in less precision becomes float32; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()
