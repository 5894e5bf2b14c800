"""The files of the public sets: where they are served, their digests and their sizes.

MD5 digests stand on the homes of the sets; SHA-256 digests are those of TensorFlow Datasets.
"""

from __future__ import annotations

from density_softmax.data.corruptions import CORRUPTIONS
from density_softmax.data.download import Download

__all__ = ["DOWNLOADS"]


def _cifar(classes: int, sha256: str, size: int, files: tuple[str, ...]) -> Download:
    archive = f"cifar-{classes}-binary.tar.gz"
    # The second is where the first redirects to: the authors' host by its own name.
    homes = ("https://www.cs.toronto.edu/~kriz", "https://cave.cs.toronto.edu/kriz")
    urls = tuple(f"{home}/{archive}" for home in homes)
    folder = "cifar-10-batches-bin" if classes == 10 else "cifar-100-binary"
    provides = tuple(f"{folder}/{file}" for file in files)
    return Download(archive, urls, f"sha256:{sha256}", size, provides)


def _cifar_c(classes: int, record: int, md5: str, size: int) -> Download:
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
    "cifar10-c": (_cifar_c(10, 2535967, "56bf5dcef84df0e2308c6dcbcbbd8499", 2_918_471_680),),
    "cifar100-c": (_cifar_c(100, 3555552, "11f0ed0f1191edbf9fa23466ae6021d3", 2_918_473_216),),
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
