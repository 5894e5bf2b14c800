"""Sets cut in two, and sets told apart by name."""

from __future__ import annotations

from torch import Tensor

from density_softmax.config import ConfigError
from density_softmax.data.files import DataError
from density_softmax.data.sources import hold_out
from density_softmax.types import Split

__all__ = ["named_apart", "split_off"]

# What a run calls its training samples, and the rows that are about no samples.
RESERVED = ("train", "cost")


def split_off(num_samples: int, fraction: float, seed: int, name: str) -> tuple[Tensor, Tensor]:
    """`hold_out`, with an error that names the set."""
    try:
        return hold_out(num_samples, fraction, seed)
    except ValueError as error:
        raise DataError(f"{name}: {error}") from None


def named_apart(*splits: Split) -> tuple[Split, ...]:
    """`splits`, if no two have the same name, nor one that a run needs for something else.

    The mean over shifts `<set>/<type>/<severity>` is called `<set>`.
    """
    names = [split.name for split in splits]
    shifts = (split.name for split in splits if split.role == "shift" and "/" in split.name)
    means = {name.partition("/")[0]: name for name in shifts}
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two sets are called '{name}': list each once, or rename a file")
        if name in means:
            raise ConfigError(
                f"'{name}' is also the mean over '{means[name]}': list only one, or rename a file"
            )
        if name.partition("/")[0] in RESERVED:
            raise ConfigError(
                f"a set is called '{name}', which a run needs for itself: rename the file or folder"
            )
    return splits
