"""A user's own images: .npz arrays, folders of files, and corrupted sets that we wrote.

An .npz file holds `x_train, y_train, x_test, y_test`, or `x` and `y` alone. Images are bytes
(images, height, width, channels) with 3 channels or 1, or (images, height, width). Labels are
integers or strings, and classes are their distinct values in order; an array `class_names`
makes the labels count in it. Labels may be missing where the set only serves as OOD. Other
arrays are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from density_softmax.data.corrupted import CorruptedArrays, CorruptedFolders
from density_softmax.data.corruptions import ALL_CORRUPTIONS
from density_softmax.data.folders import ImageFolder, ImageFolders
from density_softmax.data.images import Images, ImageSet, check_labels
from density_softmax.data.readers import DataError, load_npz

__all__ = ["NpzImages", "array_parts", "class_order", "open_images"]

Arrays = Mapping[str, NDArray[Any]]


def open_images(path: Path) -> ImageSet:
    """The image set at `path`, by its form."""
    if path.suffix == ".npz":
        return NpzImages(path)
    if not path.is_dir():
        raise DataError(f"{path}: images come as an .npz file or as a folder")
    if (path / "labels.npy").exists():
        kinds = sorted(file.stem for file in path.glob("*.npy") if file.name != "labels.npy")
        return CorruptedArrays(path, tuple(kinds), ())
    kinds = [kind for kind in ALL_CORRUPTIONS if (path / kind).is_dir()]
    if kinds:
        return CorruptedFolders(path, tuple(kinds), ())
    for test in ("test", "val"):
        if (path / "train").is_dir() and (path / test).is_dir():
            return ImageFolders(path / "train", path / test, "check the path")
    return ImageFolder(path)


@final
@dataclass(frozen=True)
class NpzImages(ImageSet):
    """The images of an .npz file."""

    path: Path

    @cached_property
    def _arrays(self) -> Arrays:
        return load_npz(self.path)

    @property
    def parts(self) -> tuple[str, ...]:
        """`train` and `test`, or `all`."""
        return array_parts(self._arrays, self.path)

    def read(self, part: str) -> Images:
        """The images of one part."""
        assert part in self.parts
        suffix = "" if part == "all" else f"_{part}"
        x = _image_bytes(self._arrays[f"x{suffix}"], self.path)
        names = self._class_names()
        y = self._arrays.get(f"y{suffix}")
        if y is None:
            return Images(x, torch.full((len(x),), -1), ())
        if y.shape != (len(x),):
            raise DataError(
                f"{self.path}: y{suffix} has shape {y.shape}, but x{suffix} holds {len(x)} images"
            )
        return Images(x, self._labels(y, names), names)

    def _class_names(self) -> tuple[str, ...]:
        if "class_names" in self._arrays:
            return tuple(map(str, self._arrays["class_names"]))
        labels = [self._arrays[name] for name in ("y", "y_train", "y_test") if name in self._arrays]
        return class_order(str(label) for array in labels for label in np.unique(array))

    def _labels(self, y: NDArray[Any], names: tuple[str, ...]) -> Tensor:
        if "class_names" in self._arrays and y.dtype.kind in "iu":
            return check_labels(torch.from_numpy(y.astype(np.int64)), len(names), self.path)
        places = {name: place for place, name in enumerate(names)}
        values, inverse = np.unique(y, return_inverse=True)
        if unknown := [value for value in values if str(value) not in places]:
            raise DataError(
                f"{self.path}: label '{unknown[0]}' is not in class_names; "
                f"there are: {', '.join(names)}"
            )
        return torch.tensor([places[str(value)] for value in values])[torch.from_numpy(inverse)]


def array_parts(arrays: Arrays, path: Path) -> tuple[str, ...]:
    """The parts that an .npz file holds, by the names of its arrays."""
    if {"x_train", "y_train", "x_test", "y_test"} <= set(arrays):
        return ("train", "test")
    if "x" in arrays:
        return ("all",)
    raise DataError(
        f"{path}: holds {', '.join(sorted(arrays)) or 'nothing'}; it needs x and y, or x_train, "
        "y_train, x_test and y_test"
    )


def class_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Distinct labels in order: of size if all are numbers, otherwise of the alphabet."""
    distinct = set(labels)
    numeric = all(label.lstrip("-").isdecimal() for label in distinct)
    return tuple(sorted(distinct, key=int if numeric else None))


def _image_bytes(x: NDArray[Any], path: Path) -> Tensor:
    if x.ndim == 3:
        x = x[..., None]
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[3] not in (1, 3):
        raise DataError(
            f"{path}: images are {x.dtype} of shape {x.shape}; they must be uint8 of shape "
            "(images, height, width) or (images, height, width, 1 or 3 channels)"
        )
    return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
