"""Data sets. `DataConfig.members` is their registry, `CATALOG` that of the named image sets."""

from density_softmax.data.catalog import CATALOG, find_images
from density_softmax.data.image_data import ImageData
from density_softmax.data.images import ImagePreparation, Images
from density_softmax.data.loaders import DatasetSource, as_source
from density_softmax.data.readers import data_root
from density_softmax.data.sources import ArraySource, DataConfig, hold_out
from density_softmax.data.tables import Table, read_table
from density_softmax.data.toy import Toy
from density_softmax.errors import DataError

__all__ = [
    "CATALOG",
    "ArraySource",
    "DataConfig",
    "DataError",
    "DatasetSource",
    "ImageData",
    "ImagePreparation",
    "Images",
    "Table",
    "Toy",
    "as_source",
    "data_root",
    "find_images",
    "hold_out",
    "read_table",
]
