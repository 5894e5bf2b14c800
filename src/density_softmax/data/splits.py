"""Sets cut in two, and sets told apart by name."""

from __future__ import annotations

from torch import Tensor

from density_softmax.config import ConfigError
from density_softmax.data.files import DataError
from density_softmax.data.sources import hold_out
from density_softmax.types import Split

__all__ = ["named_apart", "split_off"]


def split_off(num_samples: int, fraction: float, seed: int, name: str) -> tuple[Tensor, Tensor]:
    """`hold_out`, with an error that names the set."""
    try:
        return hold_out(num_samples, fraction, seed)
    except ValueError as error:
        raise DataError(f"{name}: {error}") from None


def named_apart(*splits: Split) -> tuple[Split, ...]:
    """`splits`, if no two have the same name."""
    names = [split.name for split in splits]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two sets are called '{name}': list each once, or rename a file")
    return splits
