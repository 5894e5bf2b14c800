"""Folders of image files, one per class, decoded when they are read: they need not fit in memory.

Files are cropped and resized in one step. At test time the crop is the central 7/8 of the shorter
side (resize to 256, crop 224), and an image that has the right size already is left alone. In
training it covers a random 8 to 100 % of the area with a random aspect ratio from 3:4 to 4:3
(Szegedy et al. 2015, "Going deeper with convolutions", CVPR), and half of the images are mirrored.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from density_softmax.data.images import (
    ImagePreparation,
    Images,
    ImageSet,
    LabelledImages,
    Shape,
    Statistics,
)
from density_softmax.data.sources import ShuffledSource
from density_softmax.errors import DataError
from density_softmax.files.images import IMAGE_SUFFIXES, Box, central_box, image_size, read_image
from density_softmax.types import Batch, Source

# How many images the mean and standard deviation of a folder are computed from.
STATISTICS_SAMPLE = 512

Bytes = NDArray[np.uint8]


@final
@dataclass(frozen=True, eq=False)
class ImageFiles(LabelledImages):
    """Image files with labels.

    Attributes:
        folder: the folder that holds them.
        names: their encoded paths inside the folder, in one compact array.
        y: labels, (images,).
        class_names: the name of each label.
        size: height and width that they are decoded to; None keeps their own.
        channels: 3 for colour, 1 for grey.
    """

    folder: Path
    names: NDArray[np.bytes_]
    y: Tensor
    class_names: tuple[str, ...]
    size: int | None = None
    channels: int = 3

    @property
    def shape(self) -> Shape:
        """Channels, height and width; those of the first file if no size is set."""
        if self.size is not None:
            return self.channels, self.size, self.size
        width, height = image_size(self.path(0))
        return self.channels, height, width

    def path(self, index: int) -> Path:
        """Return the file of one image."""
        return self.folder / os.fsdecode(self.names[index])

    def decode(self, indices: Sequence[int], seed: int | None = None, flip: bool = False) -> Tensor:
        """Return bytes (images, channels, height, width); a seed turns on random crop and flip.

        The randomness of an image depends on the seed and on its index alone.
        """
        shape = self.shape
        images = np.empty((len(indices), *shape), dtype=np.uint8)
        for image, index in zip(images, indices, strict=True):
            rng = None if seed is None else np.random.default_rng([seed, index])
            pixels = self._decode_one(self.path(index), rng, flip)
            if pixels.shape != shape:
                raise DataError(
                    f"{self.path(index)}: shape {pixels.shape}, but {self.path(0).name} has "
                    f"{shape}; set image_size to bring all images to one size"
                )
            image[...] = pixels
        return torch.from_numpy(images)

    def _decode_one(self, path: Path, rng: np.random.Generator | None, flip: bool) -> Bytes:
        from PIL.Image import Resampling

        image = read_image(path, self.channels)
        size = image.size if self.size is None else (self.size, self.size)
        if rng is not None:
            image = image.resize(size, Resampling.BILINEAR, _random_box(*image.size, rng))
        elif image.size != size:
            image = image.resize(size, Resampling.BILINEAR, central_box(*image.size))
        pixels = np.asarray(image).reshape(size[1], size[0], self.channels).transpose(2, 0, 1)
        return pixels[:, :, ::-1] if flip and rng is not None and rng.random() < 0.5 else pixels

    def resized(self, size: int | None, channels: int) -> ImageFiles:
        """Return the same files, decoded to this size and depth."""
        return dataclasses.replace(self, size=size, channels=channels)

    def take(self, indices: Tensor) -> ImageFiles:
        """Return the images with these indices."""
        return dataclasses.replace(self, names=self.names[indices.numpy()], y=self.y[indices])

    def statistics(self) -> Statistics:
        """Return mean and deviation of every channel, from up to 512 evenly spaced images."""
        number = min(len(self), STATISTICS_SAMPLE)
        rows = np.linspace(0, len(self) - 1, number).astype(int).tolist()
        return Images(self.decode(rows), self.y[rows], self.class_names).statistics()

    def source(self, prepare: ImagePreparation, workers: int) -> Source:
        """Return a source of batches decoded by worker processes, normalised on the device."""
        return FileSource(self, prepare, workers)


@final
class FileSource(ShuffledSource):
    """Image files, decoded and cropped by the workers of a DataLoader, normalised on the device."""

    def __init__(self, files: ImageFiles, preparation: ImagePreparation, workers: int) -> None:
        self.files, self.preparation, self.workers = files, preparation, workers

    def __len__(self) -> int:
        return len(self.files)

    def read(
        self, batches: Sequence[Sequence[int]], device: torch.device, seed: int | None = None
    ) -> Iterator[Batch]:
        """Yield one batch per list of indices; a seed turns on random crop and flip."""
        prepare = self.preparation
        loader = DataLoader(
            _Decoded(self.files, seed if prepare.augment else None, prepare.flip),
            batch_size=None,
            sampler=batches,
            num_workers=self.workers,
            pin_memory=device.type == "cuda",
            # Its own generator: reading data leaves the global random state alone.
            generator=torch.Generator(),
        )
        for item in loader:
            if isinstance(item, DataError):
                raise item
            x, y = item
            yield Batch(prepare(x.to(device, non_blocking=True), None), y.to(device))


class _Decoded(Dataset[Any]):
    """Whole batches of decoded images, indexed by lists of indices."""

    def __init__(self, files: ImageFiles, seed: int | None, flip: bool) -> None:
        self.files, self.seed, self.flip = files, seed, flip

    def __getitem__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor] | DataError:
        """Return images and labels, or an error: raised in a worker, it would lose its type."""
        rows = torch.as_tensor(indices).tolist()
        try:
            return self.files.decode(rows, self.seed, self.flip), self.files.y[rows]
        except DataError as error:
            return error


@final
@dataclass(frozen=True)
class ImageFolders(ImageSet):
    """One folder per subset, each of `<class>/<image>`, or of images without classes.

    Attributes:
        folders: by the name of the subset.
        remedy: what to do about a missing or empty folder.
    """

    folders: Mapping[str, Path]
    remedy: str = "check the path"

    @property
    def subsets(self) -> tuple[str, ...]:
        """The names of the folders."""
        return tuple(self.folders)

    def read(self, subset: str) -> ImageFiles:
        """Return every image of one folder."""
        return scan(self.folders[subset], self.remedy)


def scan(folder: Path, remedy: str) -> ImageFiles:
    """Find the image files of a folder, sorted by class and name.

    Args:
        folder: has a folder per class, or images without classes.
        remedy: what an error tells the user to do.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: {'not a folder' if folder.exists() else 'not found'}; {remedy}")
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    names, labels = [], []
    for label, class_name in enumerate(classes):
        found = _image_names(folder / class_name)
        if not found:
            raise DataError(f"{folder / class_name}: holds no images; delete it, or {remedy}")
        names += [os.fsencode(os.path.join(class_name, name)) for name in found]  # noqa: PTH118
        labels += [label] * len(found)
    if not classes:
        names = [os.fsencode(name) for name in _image_names(folder)]
        labels = [-1] * len(names)
    if not names:
        raise DataError(f"{folder}: holds no images ({', '.join(IMAGE_SUFFIXES)}); {remedy}")
    return ImageFiles(folder, np.array(names), torch.tensor(labels), tuple(classes))


def _image_names(folder: Path) -> list[str]:
    names = os.listdir(folder)  # noqa: PTH208
    return sorted(name for name in names if name.lower().endswith(IMAGE_SUFFIXES))


def _random_box(width: int, height: int, rng: np.random.Generator) -> Box:
    area = width * height * rng.uniform(0.08, 1.0)
    aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
    # A box larger than the image is clipped to it.
    box_width = min(width, math.sqrt(area * aspect))
    box_height = min(height, math.sqrt(area / aspect))
    left, top = rng.uniform(0, width - box_width), rng.uniform(0, height - box_height)
    return left, top, left + box_width, top + box_height
