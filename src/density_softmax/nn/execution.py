"""Evaluation mode for the time of a call, and one caller at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from density_softmax.errors import UserError
from density_softmax.types import as_numbers

__all__ = ["CallerLock", "as_batch", "at_least_float32", "evaluating", "full_precision", "seeded"]


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block, then every module's own mode again."""
    training = [module for module in network.modules() if module.training]
    if training:
        network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@final
class CallerLock:
    """A lock that a copy, also one in another process, has anew."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[CallerLock], tuple[Any, ...]]:
        return CallerLock, ()


def as_batch(x: Any, like: Tensor, example_dtype: torch.dtype | None) -> Tensor:
    """Numbers on the device of `like`.

    Floats take its type, and so do integers if the example that a network was built with had
    floats: what is a number to one network is the name of a token to another.
    """
    found = as_numbers(x)
    if found is None:
        raise UserError(f"inputs of type {np.asarray(x).dtype}: predict takes numbers")
    if found.ndim < 2:
        raise UserError(f"inputs of shape {tuple(found.shape)}: predict takes a batch of them")
    found, types = found.to(like.device), (found.dtype, example_dtype)
    floats = any(dtype is not None and dtype.is_floating_point for dtype in types)
    return found.to(like.dtype) if floats else found


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
