"""The image sets known by name: how they are read, where they come from, under what terms."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from density_softmax.data.cifar import (
    CIFAR10_CLASSES,
    CIFAR100_CLASSES,
    Cifar10,
    Cifar10p1,
    Cifar100,
)
from density_softmax.data.corrupted import CorruptedArrays, CorruptedFolders, CorruptedOnRead
from density_softmax.data.digits import Digits
from density_softmax.data.download import Download
from density_softmax.data.files import DataError
from density_softmax.data.folders import ImageFolders
from density_softmax.data.homes import DOWNLOADS
from density_softmax.data.images import ImageSet
from density_softmax.data.own import open_images
from density_softmax.data.svhn import Svhn

__all__ = ["CATALOG", "Entry", "Selection", "entry", "find_images"]

IMAGENET_REMEDY = (
    "ImageNet needs an account: get ILSVRC2012 from https://image-net.org/download and lay it out "
    "as imagenet/train/<wnid>/*.JPEG and imagenet/val/<wnid>/*.JPEG under the data root"
)


@dataclass(frozen=True)
class Entry:
    """What is known of a set.

    Attributes:
        open: the set under a data root.
        images: how many of what size.
        home: where it comes from.
        licence: the terms its authors state.
        downloads: the files to fetch.
        by_hand: how to get a set that cannot be fetched; None if it can.
        places: what is under the root when a set got by hand is there.
    """

    open: Callable[[Path], ImageSet]
    images: str
    home: str
    licence: str
    downloads: tuple[Download, ...] = ()
    by_hand: str | None = None
    places: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(item.size for item in self.downloads)

    def presence(self, root: Path) -> Literal["yes", "partly", "no"]:
        """Whether the set is there to be read."""
        there = [(root / place).exists() for place in self.places]
        there += [item.present(root) for item in self.downloads]
        return "yes" if all(there) else "partly" if any(there) else "no"


def _cifar_c(directory: Path, clean: str, class_names: tuple[str, ...]) -> CorruptedArrays:
    remedy = (
        f"run `density-softmax data fetch {clean}-c`, or make it anew with "
        f"`density-softmax data corrupt {clean} --out {directory}`"
    )
    return CorruptedArrays(directory, class_names=class_names, num_images=10_000, remedy=remedy)


CATALOG: dict[str, Entry] = {
    "digits": Entry(
        open=lambda root: Digits(),
        images="1,347 + 450 of 8×8, grey",
        home="inside scikit-learn",
        licence="CC BY 4.0",
    ),
    "digits-c": Entry(
        open=lambda root: CorruptedOnRead(Digits()),
        images="450 × 5 × 19 of 8×8, grey",
        home="generated from digits",
        licence="CC BY 4.0",
    ),
    "cifar10": Entry(
        open=Cifar10,
        images="50,000 + 10,000 of 32×32",
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated",
        downloads=DOWNLOADS["cifar10"],
    ),
    "cifar100": Entry(
        open=Cifar100,
        images="50,000 + 10,000 of 32×32",
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated",
        downloads=DOWNLOADS["cifar100"],
    ),
    "svhn": Entry(
        open=Svhn,
        images="73,257 + 26,032 of 32×32",
        home="http://ufldl.stanford.edu/housenumbers",
        licence="non-commercial use",
        downloads=DOWNLOADS["svhn"],
    ),
    "cifar10.1-v4": Entry(
        open=lambda root: Cifar10p1(root, "v4"),
        images="2,021 of 32×32",
        home="https://github.com/modestyachts/CIFAR-10.1",
        licence="MIT",
        downloads=DOWNLOADS["cifar10.1-v4"],
    ),
    "cifar10.1-v6": Entry(
        open=lambda root: Cifar10p1(root, "v6"),
        images="2,000 of 32×32",
        home="https://github.com/modestyachts/CIFAR-10.1",
        licence="MIT",
        downloads=DOWNLOADS["cifar10.1-v6"],
    ),
    "cifar10-c": Entry(
        open=lambda root: _cifar_c(root / "CIFAR-10-C", "cifar10", CIFAR10_CLASSES),
        images="10,000 × 5 × 19 of 32×32",
        home="https://zenodo.org/records/2535967",
        licence="CC BY 4.0",
        downloads=DOWNLOADS["cifar10-c"],
    ),
    "cifar100-c": Entry(
        open=lambda root: _cifar_c(root / "CIFAR-100-C", "cifar100", CIFAR100_CLASSES),
        images="10,000 × 5 × 19 of 32×32",
        home="https://zenodo.org/records/3555552",
        licence="CC BY 4.0",
        downloads=DOWNLOADS["cifar100-c"],
    ),
    "imagenet": Entry(
        open=lambda root: ImageFolders(
            root / "imagenet" / "train", root / "imagenet" / "val", IMAGENET_REMEDY
        ),
        images="1,281,167 + 50,000",
        home="https://image-net.org/download",
        licence="non-commercial research",
        by_hand=IMAGENET_REMEDY,
        places=("imagenet/train", "imagenet/val"),
    ),
    "imagenet-c": Entry(
        open=lambda root: CorruptedFolders(
            root / "ImageNet-C", remedy="run `density-softmax data fetch imagenet-c`"
        ),
        images="50,000 × 5 × 19 of 224×224",
        home="https://zenodo.org/records/2235448",
        licence="CC BY 4.0; images as ImageNet",
        downloads=DOWNLOADS["imagenet-c"],
    ),
}


class Selection(NamedTuple):
    """Some parts of a set, under the name that rows carry.

    Attributes:
        name: of the set.
        images: all of it.
        parts: which of its parts are meant.
        whole: whether these are what the bare name of the set means.
    """

    name: str
    images: ImageSet
    parts: tuple[str, ...]
    whole: bool

    def split_name(self, part: str) -> str:
        """`svhn` for a test set, `cifar10-c/fog/3` for one part of many."""
        return self.name if part in ("test", "all") else f"{self.name}/{part}"


def entry(name: str) -> Entry:
    """The entry of a set known by name."""
    if name not in CATALOG:
        raise DataError(f"unknown data set '{name}'; {_hint(name)}there are: {', '.join(CATALOG)}")
    return CATALOG[name]


def find_images(text: str, root: Path) -> Selection:
    """The set that `text` means: `svhn`, `cifar10-c/fog`, `cifar10/train`, or a path of one's own.

    The bare name of a set means its test part, or the main types of a corrupted one.
    """
    name, _, part = text.partition("/")
    if name in CATALOG:
        images = CATALOG[name].open(root)
        return Selection(name, images, _parts(images, part, name), whole=not part)
    for path in (Path(text).expanduser(), root / text):
        if path.exists():
            images = open_images(path)
            name = path.stem if path.is_file() else path.name
            return Selection(name, images, images.default_parts, whole=True)
    raise DataError(
        f"unknown data set '{text}'; {_hint(name)}there are: {', '.join(CATALOG)}; "
        "or give the path of an .npz file or of an image folder"
    )


def _parts(images: ImageSet, part: str, name: str) -> tuple[str, ...]:
    if not part:
        return images.default_parts
    found = tuple(item for item in images.parts if item == part or item.startswith(f"{part}/"))
    if not found:
        tops = dict.fromkeys(item.split("/")[0] for item in images.parts)
        raise DataError(f"{name} has no part '{part}'; there are: {', '.join(tops)}")
    return found


def _hint(name: str) -> str:
    close = difflib.get_close_matches(name, CATALOG, n=1)
    return f"did you mean '{close[0]}'? " if close else ""
