"""A batch of inputs, as a user has it and as a network reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from density_softmax.errors import UserError

__all__ = ["as_batch"]


def as_batch(x: Any, like: Tensor, example_dtype: torch.dtype | None) -> Tensor:
    """Numbers on the device of `like`.

    Floats take its type, and so do integers if the example that a network was built with had
    floats: what is a number to one network is the name of a token to another.
    """
    x = _as_tensor(x).to(like.device)
    if x.ndim < 2:
        raise UserError(f"inputs of shape {tuple(x.shape)}: predict takes a batch of them")
    types = (x.dtype, example_dtype)
    floats = any(dtype is not None and dtype.is_floating_point for dtype in types)
    return x.to(like.dtype) if floats else x


def _as_tensor(x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return x
    # Torch takes neither read-only arrays nor negative strides: such are copied.
    array = np.require(x, requirements=["C", "W"])
    if array.dtype.kind not in "biuf":
        raise UserError(f"inputs of type {array.dtype}: predict takes numbers")
    return torch.as_tensor(array)
