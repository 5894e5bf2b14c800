"""CIFAR-10 and CIFAR-100 (binary versions), and the new test set CIFAR-10.1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor

from density_softmax.data.files import DataError, load_npy, require
from density_softmax.data.images import Images, ImageSet, check_labels

__all__ = ["CIFAR10_CLASSES", "CIFAR100_CLASSES", "Cifar10", "Cifar10p1", "Cifar100"]

# Words in a row read better than a hundred quoted strings.
CIFAR10_CLASSES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())  # noqa: SIM905
CIFAR100_CLASSES = tuple(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
    crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
    lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm""".split()  # noqa: SIM905
)

PIXELS = 3 * 32 * 32


@final
@dataclass(frozen=True)
class Cifar10(ImageSet):
    """Krizhevsky 2009: `cifar-10-batches-bin/`, six files of 10,000 records (label, pixels)."""

    root: Path

    @property
    def parts(self) -> tuple[str, ...]:
        """The official split."""
        return ("train", "test")

    def read(self, part: str) -> Images:
        """50,000 training or 10,000 test images."""
        names = [f"data_batch_{i}" for i in range(1, 6)] if part == "train" else ["test_batch"]
        batches = [
            _read_records(self.root / "cifar-10-batches-bin" / f"{name}.bin", 10_000, 1, 10)
            for name in names
        ]
        x, y = (torch.cat(arrays) for arrays in zip(*batches, strict=True))
        return Images(x, y, CIFAR10_CLASSES)


@final
@dataclass(frozen=True)
class Cifar100(ImageSet):
    """Krizhevsky 2009: `cifar-100-binary/`, records of coarse label, fine label and pixels."""

    root: Path

    @property
    def parts(self) -> tuple[str, ...]:
        """The official split."""
        return ("train", "test")

    def read(self, part: str) -> Images:
        """50,000 training or 10,000 test images with their fine labels."""
        num_images = {"train": 50_000, "test": 10_000}[part]
        path = self.root / "cifar-100-binary" / f"{part}.bin"
        return Images(*_read_records(path, num_images, 2, 100), CIFAR100_CLASSES)


@final
@dataclass(frozen=True)
class Cifar10p1(ImageSet):
    """CIFAR-10.1, Recht et al. 2018: a new test set for CIFAR-10, in two versions."""

    root: Path
    version: Literal["v4", "v6"]

    @property
    def parts(self) -> tuple[str, ...]:
        """There is a test set only."""
        return ("test",)

    def read(self, part: str) -> Images:
        """2,021 images (v4), or 2,000 balanced ones (v6)."""
        num_images = {"v4": 2021, "v6": 2000}[self.version]
        stem = self.root / "CIFAR-10.1" / f"cifar10.1_{self.version}"
        remedy = _remedy(f"cifar10.1-{self.version}")
        x, y = (load_npy(Path(f"{stem}_{name}.npy"), remedy) for name in ("data", "labels"))
        if x.shape != (num_images, 32, 32, 3) or x.dtype != np.uint8 or len(y) != num_images:
            raise DataError(
                f"{stem}_data.npy: {x.dtype} of shape {x.shape} with {len(y)} labels, where "
                f"there should be {num_images} images of 32×32×3 bytes; {remedy}"
            )
        labels = check_labels(torch.tensor(y), 10, Path(f"{stem}_labels.npy"))
        return Images(torch.from_numpy(x).permute(0, 3, 1, 2), labels, CIFAR10_CLASSES)


def _read_records(
    path: Path, num_images: int, num_labels: int, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Images and (last) labels of a file of records: the labels, a byte each, and the pixels."""
    remedy = _remedy(f"cifar{num_classes}")
    require(path, remedy)
    length = num_labels + PIXELS
    if (size := path.stat().st_size) != num_images * length:
        raise DataError(
            f"{path}: {size:,} bytes, where {num_images:,} images make "
            f"{num_images * length:,}; {remedy}"
        )
    records = torch.from_numpy(np.fromfile(path, dtype=np.uint8)).reshape(num_images, length)
    x = records[:, num_labels:].reshape(num_images, 3, 32, 32)
    return x, check_labels(records[:, num_labels - 1], num_classes, path)


def _remedy(name: str) -> str:
    return f"run `density-softmax data fetch {name}`"
