"""Batch norms that normalise by their batch, outside of training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["batch_statistics"]


@contextlib.contextmanager
def batch_statistics(network: nn.Module) -> Iterator[None]:
    """Inside, features are those that training sees: batch norms use the statistics of the batch.

    Before training their running statistics are 0 and 1 and say nothing: an untrained WRN-28-10
    in evaluation mode gives features on another scale altogether. They are left as they are.
    """
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    modes = [norm.training for norm in norms]
    kept = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
    try:
        for norm in norms:
            norm.training = True
        yield
    finally:
        for norm, mode in zip(norms, modes, strict=True):
            norm.training = mode
        for buffer, value in kept:
            buffer.copy_(value)
