"""Batch norms that normalise by their batch, outside of training, and learn from it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from density_softmax.training import Values

__all__ = ["batch_norms", "batch_statistics", "set_statistics", "statistics_of"]


def batch_norms(network: nn.Module) -> dict[str, _BatchNorm]:
    """The batch norms of a network that keep statistics, by name."""
    return {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats
    }


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


def statistics_of(network: nn.Module, x: Tensor) -> Values:
    """What its batch norms see of a batch, weighted by the batch, to be summed over batches."""
    norms = batch_norms(network)
    with batch_statistics(network), _momentum(norms.values(), 1.0):
        network(x)
        seen = {
            f"{name}.{key}": buffer.double() * len(x)
            for name, norm in norms.items()
            for key, buffer in _statistics(norm).items()
        }
    return {**seen, "count": torch.tensor(len(x), device=x.device)}


def set_statistics(network: nn.Module, total: Values) -> None:
    """Let evaluation mode normalise by the mean of what `statistics_of` has summed."""
    for name, norm in batch_norms(network).items():
        for key, buffer in _statistics(norm).items():
            buffer.copy_(total[f"{name}.{key}"] / total["count"])


@contextlib.contextmanager
def _momentum(norms: Iterable[_BatchNorm], momentum: float) -> Iterator[None]:
    """Inside, running statistics move by that share: at 1 they are those of the last batch."""
    kept = [(norm, norm.momentum) for norm in norms]
    try:
        for norm, _ in kept:
            norm.momentum = momentum
        yield
    finally:
        for norm, before in kept:
            norm.momentum = before


def _statistics(norm: _BatchNorm) -> dict[str, Tensor]:
    assert norm.running_mean is not None, "the norm keeps statistics"
    assert norm.running_var is not None
    return {"mean": norm.running_mean, "variance": norm.running_var}
