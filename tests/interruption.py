"""Runs that are killed on the way, and how many steps they took."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


class Killed(BaseException):
    """Stands for a kill at any moment, which nothing catches."""


@contextmanager
def steps(limit: float = float("inf")) -> Iterator[list[int]]:
    """Count the steps of all optimizers, and kill before the one after the last."""
    original, count = torch.optim.Adam.step, [0]

    def counted(self, *args, **kwargs):
        if count[0] >= limit:
            raise Killed
        count[0] += 1
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", counted)
        yield count
