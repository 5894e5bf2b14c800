"""Image sets as arrays: CIFAR, SVHN, digits, and a user's own .npz files.

Files are checked, never trusted: nothing is unpickled. An .npz file holds `x_train, y_train,
x_test, y_test`, or `x` and `y` alone. Images are bytes (images, height, width, channels) with 3
channels or 1, or (images, height, width). Labels are integers or strings, and the classes are
their distinct values in order, unless an array `class_names` lists them. An OOD set needs no
labels. Other arrays are ignored.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from density_softmax.data.images import Images, ImageSet, check_labels, numerals
from density_softmax.errors import DataError
from density_softmax.files import regular_file
from density_softmax.files.arrays import ArrayHeader, Npz, load_npy, open_npz

# Of rows without a label, so many are named in a message.
NUM_NAMED = 5
# How numpy and pandas write a value that is missing.
MISSING = ("", "nan", "NaN", "NAN", "None", "NaT", "<NA>")
Arrays = Mapping[str, NDArray[Any]]


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder of data sets.

    Args:
        root: None takes $DENSITY_SOFTMAX_DATA, or else ~/.cache/density-softmax.
    """
    chosen = root or os.environ.get("DENSITY_SOFTMAX_DATA") or Path("~/.cache/density-softmax")
    return Path(chosen).expanduser()


def load_npz(path: Path, check: Callable[[str, ArrayHeader], None]) -> dict[str, NDArray[Any]]:
    """Read the inputs, labels and class names of an .npz file by name.

    Args:
        path: the file.
        check: called with the name and the header of all inputs before any array is read.
    """
    with open_npz(path) as archive:
        suffixes = ["" if s == "all" else f"_{s}" for s in array_subsets(archive.names, path)]
        for suffix in suffixes:
            header = archive.header(f"x{suffix}")
            check(f"x{suffix}", header)
            _check_labels_fit(archive, suffix, header.shape[0])
        wanted = [f"{name}{suffix}" for suffix in suffixes for name in "xy"]
        return {n: archive.read(n) for n in (*wanted, "class_names") if n in archive.names}


def _check_labels_fit(archive: Npz, suffix: str, num_rows: int) -> None:
    if num_rows == 0:
        raise DataError(f"{archive.path}: x{suffix} holds no rows")
    if f"y{suffix}" in archive.names:
        shape = archive.header(f"y{suffix}").shape
        if shape != (num_rows,):
            raise DataError(f"{archive.path}: y{suffix} has shape {shape} for {num_rows} rows")


def array_subsets(arrays: Collection[str], path: Path) -> tuple[str, ...]:
    """Return the subsets in an .npz file: `train` and `test`, or `all`.

    Args:
        arrays: the names of its arrays.
        path: the file that an error names.
    """
    if {"x_train", "y_train", "x_test", "y_test"} <= set(arrays):
        return ("train", "test")
    if "x" in arrays:
        return ("all",)
    raise DataError(
        f"{path}: holds {', '.join(sorted(arrays)) or 'nothing'}; it needs x and y, or x_train, "
        "y_train, x_test and y_test"
    )


def class_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct labels, sorted as numbers if all are numbers, otherwise as text.

    Args:
        labels: in any order, repeated or not.
    """
    distinct = set(labels)
    numeric = all(label.removeprefix("-").isdecimal() for label in distinct)
    return tuple(sorted(distinct, key=int if numeric else None))


def label_texts(y: NDArray[Any], name: str, path: Path) -> list[str]:
    """Return labels as text, after checking that every row has one.

    Args:
        y: whole or real numbers, bools or text, (rows,).
        name: what the file calls them.
        path: the file that an error names.
    """
    if y.dtype.kind not in "biufU":
        raise DataError(f"{path}: {name} is {y.dtype}; labels are numbers or text")
    if y.dtype.kind == "f":
        y = np.where(np.isfinite(y), y, np.nan)
    texts = list(map(str, y))
    refuse_missing_labels(texts, [f"row {row}" for row in range(len(texts))], path)
    return texts


def refuse_missing_labels(labels: Sequence[str], rows: Sequence[str], path: Path) -> None:
    """Refuse labels that stand for a missing one, which would become a class of their own.

    Args:
        labels: one per row.
        rows: what an error calls each row.
        path: the file that an error names.
    """
    stripped = (label.strip() for label in labels)
    missing = [row for label, row in zip(stripped, rows, strict=True) if label in MISSING]
    if missing:
        more = f" and {len(missing) - NUM_NAMED} more" if len(missing) > NUM_NAMED else ""
        raise DataError(
            f"{path}: no label in {', '.join(missing[:NUM_NAMED])}{more}; label or drop these rows "
            f"(no class can be called {', '.join(MISSING[1:])})"
        )


@final
@dataclass(frozen=True)
class NpzImages(ImageSet):
    """The images of an .npz file."""

    path: Path

    @cached_property
    def _arrays(self) -> Arrays:
        return load_npz(self.path, self._check)

    def _check(self, name: str, header: ArrayHeader) -> None:
        shape, dtype = header.shape, header.dtype
        if dtype != np.uint8 or len(shape) not in (3, 4) or (*shape, 1)[3] not in (1, 3):
            raise DataError(
                f"{self.path}: {name} is {dtype} of shape {shape}; they must be uint8 of shape "
                "(images, height, width) or (images, height, width, 1 or 3 channels)"
            )

    @property
    def subsets(self) -> tuple[str, ...]:
        """`train` and `test`, or `all`."""
        return array_subsets(self._arrays, self.path)

    def read(self, subset: str) -> Images:
        """Return the images of one subset."""
        assert subset in self.subsets
        suffix = "" if subset == "all" else f"_{subset}"
        x = _channels_first(self._arrays[f"x{suffix}"])
        names = self._class_names()
        y = self._arrays.get(f"y{suffix}")
        if y is None:
            return Images(x, torch.full((len(x),), -1), ())
        return Images(x, self._labels(y, names), names)

    def _class_names(self) -> tuple[str, ...]:
        if (names := self._arrays.get("class_names")) is not None:
            if names.ndim != 1:
                raise DataError(
                    f"{self.path}: class_names has shape {names.shape}; give a list of names"
                )
            texts = label_texts(names, "class_names", self.path)
            if len(set(texts)) != len(texts):
                twice = next(text for text in texts if texts.count(text) > 1)
                raise DataError(f"{self.path}: class_names has '{twice}' twice; name it once")
            return tuple(texts)
        named = [name for name in ("y", "y_train", "y_test") if name in self._arrays]
        labels = [label_texts(self._arrays[name], name, self.path) for name in named]
        return class_order(itertools.chain(*labels))

    def _labels(self, y: NDArray[Any], names: tuple[str, ...]) -> Tensor:
        if "class_names" in self._arrays and y.dtype.kind in "iu":
            return check_labels(torch.from_numpy(y.astype(np.int64)), len(names), self.path)
        index = {name: label for label, name in enumerate(names)}
        values, inverse = np.unique(y, return_inverse=True)
        if unknown := [value for value in values if str(value) not in index]:
            raise DataError(
                f"{self.path}: label '{unknown[0]}' is not in class_names; "
                f"there are: {', '.join(names)}"
            )
        return torch.tensor([index[str(value)] for value in values])[torch.from_numpy(inverse)]


def _channels_first(x: NDArray[Any]) -> Tensor:
    x = x[..., None] if x.ndim == 3 else x
    return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))


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

    def read(self, subset: str) -> Images:
        """Return 50,000 training or 10,000 test images."""
        names = [f"data_batch_{i}" for i in range(1, 6)] if subset == "train" else ["test_batch"]
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

    def read(self, subset: str) -> Images:
        """Return 50,000 training or 10,000 test images with their fine labels."""
        num_images = {"train": 50_000, "test": 10_000}[subset]
        path = self.root / "cifar-100-binary" / f"{subset}.bin"
        return Images(*_read_records(path, num_images, 2, 100), CIFAR100_CLASSES)


@final
@dataclass(frozen=True)
class Cifar10p1(ImageSet):
    """CIFAR-10.1, Recht et al. 2018: a new test set for CIFAR-10, in two versions."""

    root: Path
    version: Literal["v4", "v6"]

    @property
    def subsets(self) -> tuple[str, ...]:
        """There is only a test set."""
        return ("test",)

    def read(self, subset: str) -> Images:
        """Return 2,021 images (v4), or 2,000 balanced ones (v6)."""
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
    """Read images and last labels from records of labels, a byte each, and pixels."""
    remedy = _remedy(f"cifar{num_classes}")
    regular_file(path, remedy)
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


SVHN_IMAGES = {"train": 73_257, "test": 26_032}


@final
@dataclass(frozen=True)
class Svhn(ImageSet):
    """Netzer et al. 2011, format 2, without the extra images: `svhn/<subset>_32x32.mat`."""

    root: Path

    def read(self, subset: str) -> Images:
        """Return 73,257 training or 26,032 test images; the digit 0, stored as 10, is class 0."""
        path = self.root / "svhn" / f"{subset}_32x32.mat"
        x, y = _load_mat(path)
        shape = (32, 32, 3, SVHN_IMAGES[subset])
        if x.shape != shape or x.dtype != np.uint8 or y.size != shape[3]:
            raise DataError(
                f"{path}: {x.dtype} of shape {x.shape} with {y.size} labels, where there should "
                f"be bytes of shape {shape}; {_remedy('svhn')}"
            )
        digits = torch.from_numpy(y.reshape(-1).astype(np.int64))
        labels = check_labels(digits, 11, path) % 10
        images = torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1)))
        return Images(images, labels, numerals(10))


def _load_mat(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    import scipy.io

    remedy = _remedy("svhn")
    regular_file(path, remedy)
    try:
        arrays = scipy.io.loadmat(path, variable_names=["X", "y"])
        return arrays["X"], arrays["y"]
    # A damaged file makes scipy raise whatever its parser stumbles over.
    except Exception as error:
        raise DataError(
            f"{path}: truncated or not an SVHN .mat file ({type(error).__name__}: {error}); "
            f"{remedy}"
        ) from None


@final
@dataclass(frozen=True)
class Digits(ImageSet):
    """1,797 grey images of 8×8 (Alpaydin & Kaynak 1998), 450 of them for testing.

    The set has no official split; ours is random but fixed, the same for every seed.
    """

    def read(self, subset: str) -> Images:
        """Return 1,347 training or 450 test images, their 17 grey levels scaled to a byte."""
        pixels, y = _load_digits()
        order = np.random.default_rng(0).permutation(len(y))
        rows = order[:450] if subset == "test" else order[450:]
        x = np.rint(pixels[rows] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
        return Images(torch.from_numpy(x), torch.from_numpy(y[rows]).long(), numerals(10))


@cache
def _load_digits() -> tuple[NDArray[Any], NDArray[Any]]:
    from sklearn.datasets import load_digits

    pixels, y = load_digits(return_X_y=True)
    return pixels, y
