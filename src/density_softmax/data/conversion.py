"""Inputs and labels as users have them, as the tensors that methods read."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from density_softmax.errors import UserError
from density_softmax.types import Batch, as_numbers

__all__ = ["as_batch", "as_inputs", "as_labels"]


def as_inputs(x: Any) -> Tensor:
    """Inputs as a tensor: floating ones in float32, bytes and other integers as they are."""
    found = as_numbers(x)
    if found is None:
        raise UserError(f"inputs are {_type_name(x)}: they must be numbers, a row per sample")
    if found.ndim < 2:
        raise UserError(f"inputs of shape {tuple(found.shape)}: there must be a row per sample")
    found = found.detach()
    return found.float() if found.is_floating_point() else found


def as_labels(y: Any) -> Tensor:
    """Labels as a tensor of int64, from any type that holds whole numbers."""
    found = as_numbers(y)
    if found is None:
        raise UserError(
            f"labels are {_type_name(y)}: encode them as integers 0..K-1 "
            "(sklearn.preprocessing.LabelEncoder)"
        )
    if found.ndim != 1:
        raise UserError(
            f"labels of shape {tuple(found.shape)}: each sample needs one integer; argmax(1) makes "
            "it of one-hot labels, ravel() of a column"
        )
    whole = found.long()
    if not torch.equal(whole.to(found.dtype), found):
        label = found[(whole != found).nonzero()[0]].item()
        raise UserError(f"label {label} is no whole number: labels are integers 0..K-1")
    return whole


def as_batch(found: Any) -> Batch:
    """What a DataLoader gave, as a batch; anything but inputs and their labels is refused."""
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise UserError(f"the data set gives {_described(found)}: {_REMEDY}")
    x, y = found
    if not isinstance(x, Tensor | np.ndarray):
        raise UserError(f"the data set gives inputs that are {_described(x)}: {_REMEDY}")
    batch = Batch(as_inputs(x), as_labels(y))
    if len(batch.x) != len(batch.y):
        raise UserError(f"a batch has {len(batch.x)} inputs but {len(batch.y)} labels: {_REMEDY}")
    return batch


_REMEDY = "yield (inputs, integer labels); a collate_fn can make them of anything else"


def _type_name(values: Any) -> str:
    dtype = np.asarray(values).dtype
    return "text" if dtype.kind in "US" else f"of type {dtype}"


def _described(found: Any) -> str:
    counted = f" of {len(found)}" if isinstance(found, tuple | list) else ""
    return f"a {type(found).__name__}{counted}"
