"""The files of the public sets: where they are served, their digests and their sizes.

MD5 digests stand on the homes of the sets; SHA-256 digests are those of TensorFlow Datasets.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from density_softmax.data.corrupted import CorruptedArrays, CorruptedFolders, CorruptedOnRead
from density_softmax.data.corruptions import CORRUPTIONS
from density_softmax.data.download import Download
from density_softmax.data.folders import ImageFolders
from density_softmax.data.images import ImageSet
from density_softmax.data.own import open_images
from density_softmax.data.readers import (
    CIFAR10_CLASSES,
    CIFAR100_CLASSES,
    Cifar10,
    Cifar10p1,
    Cifar100,
    DataError,
    Digits,
    Svhn,
)

__all__ = ["CATALOG", "DOWNLOADS", "Entry", "Selection", "entry", "find_images"]


def _cifar(classes: int, sha256: str, size: int, files: tuple[str, ...]) -> Download:
    archive = f"cifar-{classes}-binary.tar.gz"
    # The second is where the first redirects to: the authors' host by its own name.
    homes = ("https://www.cs.toronto.edu/~kriz", "https://cave.cs.toronto.edu/kriz")
    urls = tuple(f"{home}/{archive}" for home in homes)
    folder = "cifar-10-batches-bin" if classes == 10 else "cifar-100-binary"
    provides = tuple(f"{folder}/{file}" for file in files)
    return Download(archive, urls, f"sha256:{sha256}", size, provides)


def _cifar_c_download(classes: int, record: int, md5: str, size: int) -> Download:
    name = f"CIFAR-{classes}-C"
    urls = (f"https://zenodo.org/records/{record}/files/{name}.tar",)
    provides = tuple(f"{name}/{kind}.npy" for kind in (*CORRUPTIONS, "labels"))
    return Download(f"{name}.tar", urls, f"md5:{md5}", size, provides)


def _svhn(part: str, sha256: str, size: int) -> Download:
    urls = (f"http://ufldl.stanford.edu/housenumbers/{part}_32x32.mat",)
    file = f"svhn/{part}_32x32.mat"
    return Download(file, urls, f"sha256:{sha256}", size, (file,))


def _cifar10p1(name: str, sha256: str, size: int) -> Download:
    name = f"cifar10.1_{name}.npy"
    repository = "modestyachts/CIFAR-10.1"
    urls = (
        f"https://github.com/{repository}/raw/master/datasets/{name}",
        f"https://raw.githubusercontent.com/{repository}/master/datasets/{name}",
    )
    file = f"CIFAR-10.1/{name}"
    return Download(file, urls, f"sha256:{sha256}", size, (file,))


def _imagenet_c(group: str, md5: str, size: int, kinds: tuple[str, ...]) -> Download:
    urls = (f"https://zenodo.org/records/2235448/files/{group}.tar",)
    provides = tuple(f"ImageNet-C/{kind}" for kind in kinds)
    return Download(f"ImageNet-C/{group}.tar", urls, f"md5:{md5}", size, provides, "ImageNet-C")


DOWNLOADS: dict[str, tuple[Download, ...]] = {
    "cifar10": (
        _cifar(
            10,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            170_052_171,
            ("test_batch.bin", *(f"data_batch_{i}.bin" for i in range(1, 6))),
        ),
    ),
    "cifar100": (
        _cifar(
            100,
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            168_513_733,
            ("train.bin", "test.bin"),
        ),
    ),
    "svhn": (
        _svhn(
            "train",
            "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            182_040_794,
        ),
        _svhn(
            "test",
            "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            64_275_384,
        ),
    ),
    "cifar10.1-v4": (
        _cifar10p1(
            "v4_data",
            "5aaedc268df8f4cffca2ac0cf9e608ae1897a8cddb630c7a850a2ea8f6558e75",
            6_208_640,
        ),
        _cifar10p1(
            "v4_labels",
            "1f9544300ded199539b6662364ce7fe6c2e1ea9f87408f06db4b1a6184cffb18",
            8_212,
        ),
    ),
    "cifar10.1-v6": (
        _cifar10p1(
            "v6_data",
            "2997188e5816f5bd545dc77771b6227828c28146049fcecf3fa10775474cacc6",
            6_144_128,
        ),
        _cifar10p1(
            "v6_labels",
            "ae40beda001693674edc94d925ee8268cfe68905f8f9aff800c8dcdfcd6c9448",
            8_128,
        ),
    ),
    "cifar10-c": (
        _cifar_c_download(10, 2535967, "56bf5dcef84df0e2308c6dcbcbbd8499", 2_918_471_680),
    ),
    "cifar100-c": (
        _cifar_c_download(100, 3555552, "11f0ed0f1191edbf9fa23466ae6021d3", 2_918_473_216),
    ),
    "imagenet-c": (
        _imagenet_c(
            "noise",
            "e80562d7f6c3f8834afb1ecf27252745",
            22_565_673_785,
            ("gaussian_noise", "shot_noise", "impulse_noise"),
        ),
        _imagenet_c(
            "blur",
            "2d8e81fdd8e07fef67b9334fa635e45c",
            7_112_704_951,
            ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
        ),
        _imagenet_c(
            "weather",
            "33ffea4db4d93fe4a428c40a6ce0c25d",
            12_797_438_995,
            ("snow", "frost", "fog", "brightness"),
        ),
        _imagenet_c(
            "digital",
            "89157860d7b10d5797849337ca2e5c03",
            7_757_510_705,
            ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
        ),
        _imagenet_c(
            "extra",
            "d492dfba5fc162d8ec2c3cd8ee672984",
            15_789_490_144,
            ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
        ),
    ),
}


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
