"""A batch of inputs, as a user has it and as a network reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from density_softmax.errors import UserError
from density_softmax.types import as_numbers

__all__ = ["as_batch"]


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
