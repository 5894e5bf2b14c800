"""Where data files live, and arrays read from them without trusting them. Nothing is unpickled."""

from __future__ import annotations

import errno
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import scipy.io
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor

from density_softmax.data.images import Images, ImageSet, check_labels, numerals
from density_softmax.errors import DataError

__all__ = [
    "CIFAR10_CLASSES",
    "CIFAR100_CLASSES",
    "ROOT_VARIABLE",
    "Cifar10",
    "Cifar10p1",
    "Cifar100",
    "DataError",
    "Digits",
    "Report",
    "Svhn",
    "data_root",
    "full_disk_named",
    "is_disk_full",
    "load_npy",
    "load_npz",
    "require",
]

ROOT_VARIABLE = "DENSITY_SOFTMAX_DATA"

Report = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is to do."""


def data_root(root: str | Path | None = None) -> Path:
    """Where data sets live: `root`, else $DENSITY_SOFTMAX_DATA, else ~/.cache/density-softmax."""
    chosen = root or os.environ.get(ROOT_VARIABLE) or Path("~/.cache/density-softmax")
    return Path(chosen).expanduser()


def require(path: Path, remedy: str) -> Path:
    """`path`, if it is there."""
    if not path.exists():
        raise DataError(f"{path}: not found; {remedy}")
    return path


def load_npy(path: Path, remedy: str = "replace it") -> NDArray[Any]:
    """The array of an .npy file, memory-mapped: rows are read from disk when they are needed."""
    require(path, remedy)
    try:
        # Copy-on-write, because torch takes no read-only memory; nothing ever writes to it.
        return np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{path}: truncated or not an .npy array ({error}); {remedy}") from None


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name."""
    require(path, "check the path")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, OSError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path}: truncated or not an .npz file of plain arrays ({error}); write it again "
            "with numpy.savez"
        ) from None


@contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Turn the error of a full disk into one that says what to do."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        free = shutil.disk_usage(path if path.exists() else path.parent).free
        raise DataError(
            f"{path}: no space left on the disk ({free:,} bytes free); make room and run the same "
            "command to continue"
        ) from None


def is_disk_full(error: Exception) -> bool:
    """Whether the disk, or the user's share of it, is used up."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


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


NUM_IMAGES = {"train": 73_257, "test": 26_032}
REMEDY = "run `density-softmax data fetch svhn`"


@final
@dataclass(frozen=True)
class Svhn(ImageSet):
    """Netzer et al. 2011, format 2: `svhn/train_32x32.mat` and `svhn/test_32x32.mat`."""

    root: Path

    @property
    def parts(self) -> tuple[str, ...]:
        """The official split, without the extra images."""
        return ("train", "test")

    def read(self, part: str) -> Images:
        """73,257 training or 26,032 test images; the digit 0, stored as 10, is class 0."""
        path = self.root / "svhn" / f"{part}_32x32.mat"
        x, y = _load_mat(path)
        if x.shape != (32, 32, 3, NUM_IMAGES[part]) or x.dtype != np.uint8 or y.size != x.shape[3]:
            raise DataError(
                f"{path}: {x.dtype} of shape {x.shape} with {y.size} labels, where there should "
                f"be bytes of shape (32, 32, 3, {NUM_IMAGES[part]}); {REMEDY}"
            )
        digits = torch.from_numpy(y.reshape(-1).astype(np.int64))
        labels = check_labels(digits, 11, path) % 10
        images = torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1)))
        return Images(images, labels, numerals(10))


def _load_mat(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    require(path, REMEDY)
    try:
        arrays = scipy.io.loadmat(path, variable_names=["X", "y"])
        return arrays["X"], arrays["y"]
    # A damaged file makes scipy raise whatever its parser stumbles over.
    except Exception as error:
        raise DataError(
            f"{path}: truncated or not an SVHN .mat file ({type(error).__name__}: {error}); "
            f"{REMEDY}"
        ) from None


NUM_TEST = 450


@final
@dataclass(frozen=True)
class Digits(ImageSet):
    """1,797 grey images of 8×8 (Alpaydin & Kaynak 1998), 450 of them for testing.

    The set has no official split; ours is a fixed random one, the same for every seed.
    """

    @property
    def parts(self) -> tuple[str, ...]:
        """Our fixed split."""
        return ("train", "test")

    def read(self, part: str) -> Images:
        """1,347 training or 450 test images; their 17 levels of grey spread over a byte."""
        pixels, y = _load()
        order = np.random.default_rng(0).permutation(len(y))
        rows = order[:NUM_TEST] if part == "test" else order[NUM_TEST:]
        x = np.rint(pixels[rows] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
        return Images(torch.from_numpy(x), torch.from_numpy(y[rows]).long(), numerals(10))


@cache
def _load() -> tuple[NDArray[Any], NDArray[Any]]:
    pixels, y = load_digits(return_X_y=True)
    return pixels, y
