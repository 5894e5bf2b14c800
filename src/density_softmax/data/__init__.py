"""Data sets. `DataConfig.members` is their registry."""

from density_softmax.data.base import DataConfig
from density_softmax.data.sources import ArraySource, DatasetSource, as_source, hold_out
from density_softmax.data.toy import Toy

__all__ = ["ArraySource", "DataConfig", "DatasetSource", "Toy", "as_source", "hold_out"]
