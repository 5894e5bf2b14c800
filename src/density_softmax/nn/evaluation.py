"""Evaluation mode for the time of a call, and one caller at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

from torch import nn

__all__ = ["CallerLock", "evaluating"]


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
