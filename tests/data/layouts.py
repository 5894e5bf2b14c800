"""Small writers of the official layouts. Large files are sparse: they cost no disk and no time."""

from pathlib import Path

import numpy as np
import scipy.io
from PIL import Image

from density_softmax.data.corruptions import CORRUPTIONS


def write_records(path: Path, num_images: int, num_labels: int, labels=(3, 1, 4)) -> Path:
    """A CIFAR binary file whose first images have these labels and the pixel value label + 10."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for label in labels:
            pixels = bytes([label + 10]) * 3072
            file.write(bytes([0] * (num_labels - 1) + [label]) + pixels)
        file.truncate(num_images * (num_labels + 3072))
    return path


def write_cifar10(root: Path) -> Path:
    folder = root / "cifar-10-batches-bin"
    for name in ("test_batch", *(f"data_batch_{i}" for i in range(1, 6))):
        write_records(folder / f"{name}.bin", 10_000, 1)
    return folder


def write_cifar100(root: Path) -> Path:
    folder = root / "cifar-100-binary"
    write_records(folder / "train.bin", 50_000, 2, labels=(99, 1))
    write_records(folder / "test.bin", 10_000, 2, labels=(99, 1))
    return folder


def write_sparse_npy(path: Path, shape: tuple[int, ...], dtype="uint8") -> Path:
    """An array of zeros."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + int(np.prod(shape)) * np.dtype(dtype).itemsize)
    return path


def write_cifar10p1(root: Path) -> Path:
    folder = root / "CIFAR-10.1"
    for version, num_images in (("v4", 2021), ("v6", 2000)):
        write_sparse_npy(folder / f"cifar10.1_{version}_data.npy", (num_images, 32, 32, 3))
        write_sparse_npy(folder / f"cifar10.1_{version}_labels.npy", (num_images,), "int32")
    return folder


def write_corrupted_arrays(folder: Path, num_images: int = 10_000, kinds=CORRUPTIONS) -> Path:
    for kind in kinds:
        write_sparse_npy(folder / f"{kind}.npy", (5 * num_images, 32, 32, 3))
    write_sparse_npy(folder / "labels.npy", (5 * num_images,))
    return folder


def write_svhn(root: Path, part: str, num_images: int, labels=None) -> Path:
    path = root / "svhn" / f"{part}_32x32.mat"
    path.parent.mkdir(parents=True, exist_ok=True)
    x = np.zeros((32, 32, 3, num_images), dtype=np.uint8)
    x[0, 1, 2] = 7
    y = np.arange(num_images) % 10 + 1 if labels is None else np.asarray(labels)
    scipy.io.savemat(path, {"X": x, "y": y.reshape(-1, 1).astype(np.uint8)})
    return path


def write_folder(folder: Path, classes=("cat", "dog"), num_images=3, size=(40, 30)) -> Path:
    """`<class>/<number>.png`: noise around a level of grey that rises with the class."""
    rng = np.random.default_rng(0)
    for level, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(num_images):
            pixels = rng.integers(20, 60, (size[1], size[0], 3)) + 60 * level
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


def write_imagenet(root: Path) -> None:
    wnids = ("n01440764", "n01443537")
    write_folder(root / "imagenet" / "train", wnids, num_images=5)
    write_folder(root / "imagenet" / "val", wnids, num_images=2)
    for kind in CORRUPTIONS:
        for severity in range(1, 6):
            folder = root / "ImageNet-C" / kind / str(severity)
            write_folder(folder, wnids, num_images=4 if kind == "fog" else 1, size=(8, 8))
