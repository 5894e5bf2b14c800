"""Batch norms that normalise by their batch outside of training, and are fitted to data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from density_softmax.training import Values


def batch_norms(network: nn.Module) -> dict[str, _BatchNorm]:
    """The batch norms of a network that keep running statistics, by name.

    Args:
        network: any.
    """
    return {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats
    }


def set_momentum(network: nn.Module, momentum: float) -> None:
    """Let the running statistics of all batch norms move by this share of a batch's in a step.

    Args:
        network: changed in place.
        momentum: in torch's sense, where 1 forgets all batches but the last.
    """
    for norm in batch_norms(network).values():
        norm.momentum = momentum


@contextlib.contextmanager
def batch_statistics(network: nn.Module, momentum: float | None = None) -> Iterator[None]:
    """A context in which batch norms use the statistics of the batch, as in training.

    Before training their running statistics are 0 and 1 and mean nothing: an untrained WRN-28-10
    in evaluation mode gives features on another scale altogether. They are restored afterwards.

    Args:
        network: any.
        momentum: of the running statistics inside; 1 makes them those of the last batch.
    """
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    modes = [(norm.training, norm.momentum) for norm in norms]
    kept = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
    try:
        for norm in norms:
            norm.training = True
            norm.momentum = norm.momentum if momentum is None else momentum
        yield
    finally:
        for norm, (training, before) in zip(norms, modes, strict=True):
            norm.training, norm.momentum = training, before
        for buffer, value in kept:
            buffer.copy_(value)


def statistics_of(network: nn.Module, x: Tensor) -> Values:
    """The statistics of a batch in every batch norm, times its size, to be summed over batches.

    Args:
        network: any.
        x: inputs, (batch, ...).
    """
    with batch_statistics(network, momentum=1.0):
        network(x)
        sums = {name: buffer.double() * len(x) for name, buffer in _statistics(network).items()}
    return {**sums, "count": torch.tensor(len(x), device=x.device)}


def set_statistics(network: nn.Module, total: Values) -> None:
    """Set the running statistics to the mean over batches.

    Args:
        network: any.
        total: the sum of `statistics_of` over batches.
    """
    for name, buffer in _statistics(network).items():
        buffer.copy_(total[name] / total["count"])


def _statistics(network: nn.Module) -> dict[str, Tensor]:
    buffers: dict[str, Tensor] = {}
    for name, norm in batch_norms(network).items():
        assert norm.running_mean is not None, "the norm keeps statistics"
        assert norm.running_var is not None
        buffers |= {f"{name}.mean": norm.running_mean, f"{name}.variance": norm.running_var}
    return buffers
