"""Full precision where mixed precision would lose what matters."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["full_precision"]


def full_precision(like: Tensor) -> torch.autocast:
    """A context without autocast on the device of `like`.

    Log densities of a few hundred nats and squared Jacobian norms do not survive 8 bits of
    mantissa: flows, scales and penalties compute in float32 whatever the network does.
    """
    return torch.autocast(like.device.type, enabled=False)
