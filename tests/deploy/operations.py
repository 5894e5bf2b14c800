"""Counting what torch is asked for."""

from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += 1
        return func(*args, **(kwargs or {}))


def num_operations(function: Callable[..., object], *inputs: torch.Tensor) -> int:
    """How many operations a call takes."""
    with torch.no_grad(), _Calls() as calls:
        function(*inputs)
    return calls.number
