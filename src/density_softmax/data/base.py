"""The contract of every data set that a recipe can name."""

from __future__ import annotations

from abc import ABC, abstractmethod

from density_softmax.config import Family
from density_softmax.types import Data

__all__ = ["DataConfig"]


class DataConfig(Family, ABC):
    """The family of data configs; the seed decides the held-out slice and what is generated."""

    @abstractmethod
    def load(self, seed: int) -> Data:
        """Training set, held-out slice and the sets to evaluate on."""
