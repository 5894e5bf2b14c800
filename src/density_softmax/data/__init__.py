"""Data sets. `DataConfig.members` is their registry, `CATALOG` that of the named image sets."""

from typing import TYPE_CHECKING

from density_softmax.lazy import lazy_names

if TYPE_CHECKING:
    from density_softmax.data.catalog import CATALOG as CATALOG
    from density_softmax.data.catalog import find_images as find_images
    from density_softmax.data.image_data import ImageData as ImageData
    from density_softmax.data.images import ImagePreparation as ImagePreparation
    from density_softmax.data.images import Images as Images
    from density_softmax.data.loaders import DatasetSource as DatasetSource
    from density_softmax.data.loaders import as_source as as_source
    from density_softmax.data.readers import data_root as data_root
    from density_softmax.data.sources import ArraySource as ArraySource
    from density_softmax.data.sources import DataConfig as DataConfig
    from density_softmax.data.sources import hold_out as hold_out
    from density_softmax.data.tables import Table as Table
    from density_softmax.data.tables import read_table as read_table
    from density_softmax.data.toy import Toy as Toy
    from density_softmax.errors import DataError as DataError

_, __getattr__ = lazy_names(__name__, __file__)
