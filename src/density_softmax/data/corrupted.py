"""Corrupted copies of test sets: published ones, ones written by `data corrupt`, and made on read.

Published layouts (Hendrycks & Dietterich 2019): arrays as `<type>.npy` with the severities one
after another and `labels.npy`, or files as `<type>/<severity>/<class>/<image>`. Where only some
severities were written, `generated.json` says which.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from density_softmax.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES, corrupt
from density_softmax.data.folders import ImageFiles, scan
from density_softmax.data.images import Images, ImageSet, check_labels, numerals
from density_softmax.data.readers import DataError, load_npy

__all__ = [
    "MANIFEST",
    "CorruptedArrays",
    "CorruptedFolders",
    "CorruptedOnRead",
    "CorruptedSet",
    "manifest",
]

MANIFEST = "generated.json"
REMEDY = "write it again with `density-softmax data corrupt`"


class CorruptedSet(ImageSet):
    """Parts called `<type>/<severity>`; the bare name of the set means its main types.

    Attributes:
        kinds: the main types.
        extra_kinds: types that are read only when they are named.
    """

    kinds: tuple[str, ...]
    extra_kinds: tuple[str, ...]

    @property
    @abstractmethod
    def severities(self) -> tuple[int, ...]:
        """The severities there are, in the order of the rows."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Every type at every severity."""
        kinds = self.kinds + self.extra_kinds
        return tuple(f"{kind}/{severity}" for kind in kinds for severity in self.severities)

    @property
    def default_parts(self) -> tuple[str, ...]:
        """The main types at every severity."""
        return self.parts[: len(self.kinds) * len(self.severities)]


@final
@dataclass(frozen=True)
class CorruptedArrays(CorruptedSet):
    """`<type>.npy` with severities × images rows, and `labels.npy`; memory-mapped.

    Attributes:
        directory: where the files are.
        kinds: the main types.
        extra_kinds: types that are read only when they are named.
        class_names: what the labels count in; None takes plain numbers.
        num_images: images per severity; None takes it from `labels.npy`.
        remedy: what to do about a missing or bad file.
    """

    directory: Path
    kinds: tuple[str, ...] = CORRUPTIONS
    extra_kinds: tuple[str, ...] = EXTRA_CORRUPTIONS
    class_names: tuple[str, ...] | None = None
    num_images: int | None = None
    remedy: str = REMEDY

    @property
    def severities(self) -> tuple[int, ...]:
        """All five, unless the manifest says otherwise."""
        return tuple(manifest(self.directory).get("severities", SEVERITIES))

    def read(self, part: str) -> Images:
        """The images of one type and severity."""
        kind, severity = part.split("/")
        severities = self.severities
        path, labels_path = self.directory / f"{kind}.npy", self.directory / "labels.npy"
        x, labels = (load_npy(file, self.remedy) for file in (path, labels_path))
        self._check(path, x, len(labels), len(severities))
        step = len(x) // len(severities)
        start = severities.index(int(severity)) * step
        names = self.class_names or numerals(int(labels.max()) + 1)
        y = check_labels(torch.tensor(labels[start : start + step]), len(names), labels_path)
        return Images(torch.from_numpy(x[start : start + step]).permute(0, 3, 1, 2), y, names)

    def _check(self, path: Path, x: NDArray[Any], num_labels: int, num_severities: int) -> None:
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[3] not in (1, 3):
            raise DataError(
                f"{path}: {x.dtype} of shape {x.shape}, where there should be bytes of shape "
                f"(rows, height, width, channels); {self.remedy}"
            )
        num_images = self.num_images or num_labels // num_severities
        rows = num_severities * num_images
        if not len(x) == num_labels == rows > 0:
            raise DataError(
                f"{path}: {len(x)} images and {num_labels} labels, where {num_severities} "
                f"severities of {num_images} images make {rows}; {self.remedy}"
            )


@final
@dataclass(frozen=True)
class CorruptedFolders(CorruptedSet):
    """`<type>/<severity>/<class>/<image>`, decoded when they are read."""

    directory: Path
    kinds: tuple[str, ...] = CORRUPTIONS
    extra_kinds: tuple[str, ...] = EXTRA_CORRUPTIONS
    remedy: str = REMEDY

    @property
    def severities(self) -> tuple[int, ...]:
        """All five, unless the manifest says otherwise."""
        return tuple(manifest(self.directory).get("severities", SEVERITIES))

    def read(self, part: str) -> ImageFiles:
        """The images of one type and severity."""
        return scan(self.directory / part, self.remedy)


@final
@dataclass(frozen=True)
class CorruptedOnRead(CorruptedSet):
    """The test part of a small set, corrupted in memory when it is read."""

    clean: ImageSet
    kinds: tuple[str, ...] = CORRUPTIONS
    extra_kinds: tuple[str, ...] = EXTRA_CORRUPTIONS

    @property
    def severities(self) -> tuple[int, ...]:
        """All five."""
        return SEVERITIES

    def read(self, part: str) -> Images:
        """The images of one type and severity."""
        return _corrupted(self.clean, *part.split("/"))


@cache
def _corrupted(clean: ImageSet, kind: str, severity: str) -> Images:
    """Kept, because every run of a process reads the same small sets."""
    images = clean.read("test")
    assert isinstance(images, Images)
    corrupted = corrupt(images.x.permute(0, 2, 3, 1).numpy(), kind, int(severity))
    x = torch.from_numpy(corrupted).permute(0, 3, 1, 2)
    return Images(x, images.y, images.class_names)


def manifest(directory: Path) -> dict[str, Any]:
    """What `data corrupt` noted about the set it wrote to `directory`; empty for other sets."""
    path = directory / MANIFEST
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: not a manifest ({error}); write the set again") from None
