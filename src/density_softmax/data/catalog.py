"""The image sets known by name, where their files are served, and how a name or path is opened.

MD5 digests are published on the home pages of the sets; SHA-256 digests are those of TensorFlow
Datasets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from density_softmax.data.corrupted import CorruptedArrays, CorruptedFolders, CorruptedOnRead
from density_softmax.data.corruptions import ALL_CORRUPTIONS, CORRUPTIONS, EXTRA_CORRUPTIONS
from density_softmax.data.download import Download
from density_softmax.data.folders import ImageFolders
from density_softmax.data.images import ImageSet, LabelledImages
from density_softmax.data.readers import (
    CIFAR10_CLASSES,
    CIFAR100_CLASSES,
    Cifar10,
    Cifar10p1,
    Cifar100,
    Digits,
    NpzImages,
    Svhn,
)
from density_softmax.errors import DataError, choices


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
        paths: what exists under the root once a set was obtained by hand.
    """

    open: Callable[[Path], ImageSet]
    images: str
    home: str
    licence: str
    downloads: tuple[Download, ...] = ()
    by_hand: str | None = None
    paths: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(item.size for item in self.downloads)

    def presence(self, root: Path) -> Literal["yes", "partly", "no"]:
        """Return whether the files of the set are under a data root."""
        exist = [(root / path).exists() for path in self.paths]
        exist += [item.present(root) for item in self.downloads]
        return "yes" if all(exist) else "partly" if any(exist) else "no"


def _cifar(open_set: Callable[[Path], ImageSet], name: str, sha256: str, size: int) -> Entry:
    # The second is where the first redirects to: the authors' host by its own name.
    homes = ("https://www.cs.toronto.edu/~kriz", "https://cave.cs.toronto.edu/kriz")
    archive = f"{name}-binary.tar.gz"
    urls = tuple(f"{home}/{archive}" for home in homes)
    batches = ("test_batch", *(f"data_batch_{i}" for i in range(1, 6)))
    provides = {
        "cifar-10": tuple(f"cifar-10-batches-bin/{batch}.bin" for batch in batches),
        "cifar-100": ("cifar-100-binary/train.bin", "cifar-100-binary/test.bin"),
    }
    return Entry(
        open=open_set,
        images="50,000 + 10,000 of 32×32",
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated",
        downloads=(Download(archive, urls, f"sha256:{sha256}", size, provides[name]),),
    )


def _cifar_c(class_names: tuple[str, ...], record: int, md5: str, size: int) -> Entry:
    classes = len(class_names)
    name, home = f"CIFAR-{classes}-C", f"https://zenodo.org/records/{record}"
    provides = tuple(f"{name}/{kind}.npy" for kind in (*CORRUPTIONS, "labels"))
    tar = Download(f"{name}.tar", (f"{home}/files/{name}.tar",), f"md5:{md5}", size, provides)

    def open_set(root: Path) -> CorruptedArrays:
        remedy = (
            f"run `density-softmax data fetch cifar{classes}-c`, or make it anew with "
            f"`density-softmax data corrupt cifar{classes} --out {root / name}`"
        )
        return CorruptedArrays(
            root / name, class_names=class_names, num_images=10_000, remedy=remedy
        )

    return Entry(open_set, "10,000 × 5 × 19 of 32×32", home, "CC BY 4.0", (tar,))


def _files(folder: str, homes: tuple[str, ...], **files: tuple[str, int]) -> tuple[Download, ...]:
    """Describe files by name, with SHA-256 and size, that are used as they are downloaded."""
    return tuple(
        Download(
            f"{folder}/{name}",
            tuple(f"{home}/{name}" for home in homes),
            f"sha256:{sha256}",
            size,
            (f"{folder}/{name}",),
        )
        for name, (sha256, size) in files.items()
    )


def _cifar10p1(version: Literal["v4", "v6"], images: str, **files: tuple[str, int]) -> Entry:
    repository = "modestyachts/CIFAR-10.1"
    homes = (
        f"https://github.com/{repository}/raw/master/datasets",
        f"https://raw.githubusercontent.com/{repository}/master/datasets",
    )
    named = {f"cifar10.1_{version}_{kind}.npy": file for kind, file in files.items()}
    return Entry(
        open=lambda root: Cifar10p1(root, version),
        images=images,
        home=f"https://github.com/{repository}",
        licence="MIT",
        downloads=_files("CIFAR-10.1", homes, **named),
    )


def _tar(group: str, md5: str, size: int, kinds: tuple[str, ...]) -> Download:
    """Describe one of the archives of ImageNet-C."""
    urls = (f"https://zenodo.org/records/2235448/files/{group}.tar",)
    provides = tuple(f"ImageNet-C/{kind}" for kind in kinds)
    return Download(f"ImageNet-C/{group}.tar", urls, f"md5:{md5}", size, provides, "ImageNet-C")


SVHN_HOME = "http://ufldl.stanford.edu/housenumbers"
SVHN_FILES = {
    "train_32x32.mat": (
        "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        182_040_794,
    ),
    "test_32x32.mat": (
        "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        64_275_384,
    ),
}
IMAGENET_REMEDY = (
    "ImageNet needs an account: get ILSVRC2012 from https://image-net.org/download and lay it out "
    "as imagenet/train/<wnid>/*.JPEG and imagenet/val/<wnid>/*.JPEG under the data root"
)

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
    "cifar10": _cifar(
        Cifar10,
        "cifar-10",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        170_052_171,
    ),
    "cifar100": _cifar(
        Cifar100,
        "cifar-100",
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        168_513_733,
    ),
    "svhn": Entry(
        open=Svhn,
        images="73,257 + 26,032 of 32×32",
        home=SVHN_HOME,
        licence="non-commercial use",
        downloads=_files("svhn", (SVHN_HOME,), **SVHN_FILES),
    ),
    "cifar10.1-v4": _cifar10p1(
        "v4",
        "2,021 of 32×32",
        data=("5aaedc268df8f4cffca2ac0cf9e608ae1897a8cddb630c7a850a2ea8f6558e75", 6_208_640),
        labels=("1f9544300ded199539b6662364ce7fe6c2e1ea9f87408f06db4b1a6184cffb18", 8_212),
    ),
    "cifar10.1-v6": _cifar10p1(
        "v6",
        "2,000 of 32×32",
        data=("2997188e5816f5bd545dc77771b6227828c28146049fcecf3fa10775474cacc6", 6_144_128),
        labels=("ae40beda001693674edc94d925ee8268cfe68905f8f9aff800c8dcdfcd6c9448", 8_128),
    ),
    "cifar10-c": _cifar_c(
        CIFAR10_CLASSES, 2535967, "56bf5dcef84df0e2308c6dcbcbbd8499", 2_918_471_680
    ),
    "cifar100-c": _cifar_c(
        CIFAR100_CLASSES, 3555552, "11f0ed0f1191edbf9fa23466ae6021d3", 2_918_473_216
    ),
    "imagenet": Entry(
        open=lambda root: ImageFolders(
            {"train": root / "imagenet" / "train", "test": root / "imagenet" / "val"},
            IMAGENET_REMEDY,
        ),
        images="1,281,167 + 50,000",
        home="https://image-net.org/download",
        licence="non-commercial research",
        by_hand=IMAGENET_REMEDY,
        paths=("imagenet/train", "imagenet/val"),
    ),
    "imagenet-c": Entry(
        open=lambda root: CorruptedFolders(
            root / "ImageNet-C", remedy="run `density-softmax data fetch imagenet-c`"
        ),
        images="50,000 × 5 × 19 of 224×224",
        home="https://zenodo.org/records/2235448",
        licence="CC BY 4.0; images as ImageNet",
        downloads=(
            _tar("noise", "e80562d7f6c3f8834afb1ecf27252745", 22_565_673_785, CORRUPTIONS[:3]),
            _tar("blur", "2d8e81fdd8e07fef67b9334fa635e45c", 7_112_704_951, CORRUPTIONS[3:7]),
            _tar("weather", "33ffea4db4d93fe4a428c40a6ce0c25d", 12_797_438_995, CORRUPTIONS[7:11]),
            _tar("digital", "89157860d7b10d5797849337ca2e5c03", 7_757_510_705, CORRUPTIONS[11:]),
            _tar("extra", "d492dfba5fc162d8ec2c3cd8ee672984", 15_789_490_144, EXTRA_CORRUPTIONS),
        ),
    ),
}


class Selection(NamedTuple):
    """Some subsets of a set, and the name that rows carry.

    Attributes:
        name: of the set.
        images: all of the set.
        subsets: the names of those selected.
        whole: whether the set was named without a subset.
    """

    name: str
    images: ImageSet
    subsets: tuple[str, ...]
    whole: bool

    def split_name(self, subset: str) -> str:
        """Return `svhn` for a test set, `cifar10-c/fog/3` for one subset of many."""
        return self.name if subset in ("test", "all") else f"{self.name}/{subset}"

    def read_one(self, purpose: str) -> LabelledImages:
        """Read the subset if only one is selected; `purpose` says in an error what needs one."""
        if len(self.subsets) != 1:
            raise DataError(
                f"{self.name} has {len(self.subsets)} subsets: {purpose} one of them, such as "
                f"{self.name}/{self.subsets[0]}"
            )
        return self.images.read(self.subsets[0])


def entry(name: str) -> Entry:
    """Look up a set in the catalog.

    Args:
        name: of the set.
    """
    if name not in CATALOG:
        raise _unknown(name, name)
    return CATALOG[name]


def find_images(text: str, root: Path) -> Selection:
    """Find the set that a text names.

    Args:
        text: a set (`svhn`), some of its subsets (`cifar10-c/fog`, `cifar10/train`), or the path
            of an .npz file or a folder. The bare name of a set means its test images, or the main
            types of a corrupted set.
        root: the data root.
    """
    name, _, subset = text.partition("/")
    if name in CATALOG:
        images = CATALOG[name].open(root)
        return Selection(name, images, _subsets(images, subset, name), whole=not subset)
    for path in (Path(text).expanduser(), root / text):
        if path.exists():
            images = _open_path(path)
            name = path.stem if path.is_file() else path.name
            return Selection(name, images, images.default_subsets, whole=True)
    raise _unknown(text, name, "; or give the path of an .npz file or of an image folder")


def _subsets(images: ImageSet, subset: str, name: str) -> tuple[str, ...]:
    if not subset:
        return images.default_subsets
    found = tuple(item for item in images.subsets if f"{item}/".startswith(f"{subset}/"))
    if not found:
        known = dict.fromkeys(item.split("/")[0] for item in images.subsets)
        raise DataError(f"{name} has no subset '{subset}'; {choices(subset, known)}")
    return found


def _open_path(path: Path) -> ImageSet:
    """Open a user's own images: an .npz file, folders of files, or a set that we corrupted."""
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
            return ImageFolders({"train": path / "train", "test": path / test})
    return ImageFolders({"all": path})


def _unknown(text: str, name: str, more: str = "") -> DataError:
    return DataError(f"unknown data set '{text}'; {choices(name, CATALOG)}{more}")
