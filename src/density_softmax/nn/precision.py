"""Full precision where mixed precision would lose what matters."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor

__all__ = ["full_precision"]


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """A context without autocast on the device of `like`.

    Log densities of a few hundred nats and squared Jacobian norms do not survive 8 bits of
    mantissa: flows, scales and penalties compute in float32 whatever the network does.
    """
    if not torch.is_autocast_enabled(like.device.type):
        return contextlib.nullcontext()  # entering autocast costs as much as a small matmul
    return torch.autocast(like.device.type, enabled=False)
