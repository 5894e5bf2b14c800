"""The readers of published sets, on files in their layouts: whole, truncated and tampered with."""

import numpy as np
import pytest
import scipy.io
import torch
from layouts import (
    write_cifar10,
    write_cifar10p1,
    write_cifar100,
    write_corrupted_arrays,
    write_records,
    write_sparse_npy,
    write_svhn,
)
from sklearn.datasets import load_digits

from density_softmax.data import DataError, readers
from density_softmax.data.corrupted import CorruptedArrays
from density_softmax.data.readers import (
    CIFAR10_CLASSES,
    CIFAR100_CLASSES,
    Cifar10,
    Cifar10p1,
    Cifar100,
    Digits,
    Svhn,
)


def cut(path) -> None:
    """Lose the last bytes, as a broken copy does."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)


def overwrite(path, place: int, byte: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes([byte]))


def test_cifar10_has_its_images_and_labels(tmp_path):
    write_cifar10(tmp_path)
    train, test = (Cifar10(tmp_path).read(subset) for subset in ("train", "test"))
    assert (len(train), len(test)) == (50_000, 10_000)
    assert train.shape == (3, 32, 32)
    assert train.class_names == CIFAR10_CLASSES
    assert train.y[10_000:10_004].tolist() == [3, 1, 4, 0]
    assert train.x[10_000:10_004].float().mean((1, 2, 3)).tolist() == [13, 11, 14, 0]


def test_cifar10_keeps_red_green_and_blue_rows_and_columns(tmp_path):
    folder = write_cifar10(tmp_path)
    red_top_right, blue_bottom_left = 1 + 31, 1 + 2 * 1024 + 31 * 32
    overwrite(folder / "test_batch.bin", red_top_right, 200)
    overwrite(folder / "test_batch.bin", blue_bottom_left, 100)
    x = Cifar10(tmp_path).read("test").x[0]
    assert x[0, 0, 31] == 200
    assert x[2, 31, 0] == 100


def test_cifar100_has_fine_labels(tmp_path):
    write_cifar100(tmp_path)
    train, test = (Cifar100(tmp_path).read(subset) for subset in ("train", "test"))
    assert (len(train), len(test)) == (50_000, 10_000)
    assert [CIFAR100_CLASSES[label] for label in test.y[:2]] == ["worm", "aquarium_fish"]
    assert len(set(CIFAR100_CLASSES)) == 100
    assert sorted(CIFAR100_CLASSES) == list(CIFAR100_CLASSES)


@pytest.mark.parametrize(
    ("write", "read", "file"),
    [
        (write_cifar10, lambda root: Cifar10(root).read("test"), "test_batch.bin"),
        (write_cifar10, lambda root: Cifar10(root).read("train"), "data_batch_4.bin"),
        (write_cifar100, lambda root: Cifar100(root).read("test"), "test.bin"),
        (write_cifar10p1, lambda root: Cifar10p1(root, "v6").read("test"), "cifar10.1_v6_data.npy"),
        (
            write_cifar10p1,
            lambda root: Cifar10p1(root, "v4").read("test"),
            "cifar10.1_v4_labels.npy",
        ),
    ],
)
def test_a_truncated_or_missing_file_is_named_with_the_remedy(tmp_path, write, read, file):
    path = write(tmp_path) / file
    cut(path)
    with pytest.raises(DataError, match=rf"{file}: .*density-softmax data fetch cifar"):
        read(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=rf"{file}: not found.*density-softmax data fetch cifar"):
        read(tmp_path)


def test_a_label_that_is_no_class_is_named(tmp_path):
    folder = write_cifar10(tmp_path)
    overwrite(folder / "data_batch_2.bin", 5 * 3073, 10)
    with pytest.raises(DataError, match=r"data_batch_2\.bin: label 10 of image 5 "):
        Cifar10(tmp_path).read("train")


def test_a_file_of_fewer_images_is_not_cifar10(tmp_path):
    write_records(tmp_path / "cifar-10-batches-bin" / "test_batch.bin", 20, 1)
    with pytest.raises(DataError, match="61,460 bytes, where 10,000 images make 30,730,000"):
        Cifar10(tmp_path).read("test")


@pytest.mark.parametrize(("version", "num_images"), [("v4", 2021), ("v6", 2000)])
def test_cifar10p1_has_its_images(tmp_path, version, num_images):
    write_cifar10p1(tmp_path)
    images = Cifar10p1(tmp_path, version).read("test")
    assert images.x.shape == (num_images, 3, 32, 32)
    assert images.y.dtype == torch.int64


def test_cifar10p1_refuses_other_arrays(tmp_path):
    folder = write_cifar10p1(tmp_path)
    write_sparse_npy(folder / "cifar10.1_v6_data.npy", (2000, 32, 32))
    with pytest.raises(DataError, match=r"v6_data\.npy: uint8 of shape \(2000, 32, 32\)"):
        Cifar10p1(tmp_path, "v6").read("test")


def test_nothing_is_unpickled(tmp_path):
    folder = write_cifar10p1(tmp_path)
    np.save(folder / "cifar10.1_v6_labels.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"v6_labels\.npy: truncated or not an \.npy array"):
        Cifar10p1(tmp_path, "v6").read("test")


@pytest.fixture
def small_svhn(monkeypatch):
    monkeypatch.setattr(readers, "SVHN_IMAGES", {"train": 30, "test": 20})


@pytest.mark.usefixtures("small_svhn")
def test_svhn_turns_the_label_10_into_the_digit_0(tmp_path):
    write_svhn(tmp_path, "test", 20)
    images = Svhn(tmp_path).read("test")
    assert images.y[8:12].tolist() == [9, 0, 1, 2]
    assert images.x.shape == (20, 3, 32, 32)
    assert images.x[4].nonzero().tolist() == [[2, 0, 1]]


def test_svhn_has_the_published_number_of_images(tmp_path):
    write_svhn(tmp_path, "test", 20)
    with pytest.raises(DataError, match=r"test_32x32\.mat: .*\(32, 32, 3, 26032\)"):
        Svhn(tmp_path).read("test")


@pytest.mark.usefixtures("small_svhn")
def test_damaged_svhn_files_are_named(tmp_path):
    path = write_svhn(tmp_path, "test", 20, labels=[11] * 20)
    with pytest.raises(DataError, match=r"test_32x32\.mat: label 11 of image 0"):
        Svhn(tmp_path).read("test")
    cut(write_svhn(tmp_path, "test", 20))
    with pytest.raises(DataError, match=r"test_32x32\.mat: truncated"):
        Svhn(tmp_path).read("test")
    scipy.io.savemat(path, {"X": np.zeros(3)})
    with pytest.raises(DataError, match=r"test_32x32\.mat: .* not an SVHN"):
        Svhn(tmp_path).read("test")
    with pytest.raises(DataError, match=r"train_32x32\.mat: not found.*fetch svhn"):
        Svhn(tmp_path).read("train")


def test_digits_are_split_once_and_for_all():
    train, test = (Digits().read(subset) for subset in ("train", "test"))
    assert (len(train), len(test)) == (1347, 450)
    assert train.shape == (1, 8, 8)
    assert train.x.max() == 255
    levels = (torch.cat([train.x, test.x]).flatten(1) * (16 / 255)).round()
    assert sorted(levels.tolist()) == sorted(load_digits().data.tolist())
    assert test.y.bincount().min() > 30


def test_rows_of_a_severity_follow_each_other(tmp_path):
    x = np.arange(5 * 4, dtype=np.uint8)[:, None, None, None] * np.ones((8, 8, 3), np.uint8)
    np.save(tmp_path / "fog.npy", x)
    np.save(tmp_path / "labels.npy", np.tile(np.arange(4), 5))
    images = CorruptedArrays(tmp_path, ("fog",), ()).read("fog/3")
    assert images.x[:, 0, 0, 0].tolist() == [8, 9, 10, 11]
    assert images.y.tolist() == [0, 1, 2, 3]


def test_published_corruptions_are_mapped_not_read(tmp_path):
    write_corrupted_arrays(tmp_path)
    images = CorruptedArrays(tmp_path, class_names=CIFAR10_CLASSES, num_images=10_000)
    subsets = [images.read(subset) for subset in images.default_subsets]
    assert len(subsets) == 75
    assert {subset.x.shape for subset in subsets} == {(10_000, 3, 32, 32)}


@pytest.mark.parametrize("file", ["fog.npy", "labels.npy"])
def test_damaged_corruption_files_are_named(tmp_path, file):
    write_corrupted_arrays(tmp_path, kinds=("fog",))
    images = CorruptedArrays(tmp_path, class_names=CIFAR10_CLASSES, num_images=10_000)
    cut(tmp_path / file)
    with pytest.raises(DataError, match=f"{file}: truncated"):
        images.read("fog/1")


def test_corruption_files_that_do_not_fit_together_are_named(tmp_path):
    write_corrupted_arrays(tmp_path, kinds=("fog",))
    images = CorruptedArrays(tmp_path, class_names=CIFAR10_CLASSES, num_images=10_000)
    write_sparse_npy(tmp_path / "labels.npy", (40_000,))
    with pytest.raises(DataError, match=r"fog\.npy: 50000 images and 40000 labels"):
        images.read("fog/1")
    np.save(tmp_path / "labels.npy", np.full(50_000, 10))
    with pytest.raises(DataError, match=r"labels\.npy: label 10 of image 0"):
        images.read("fog/1")
    write_sparse_npy(tmp_path / "fog.npy", (50_000, 32, 32))
    with pytest.raises(DataError, match=r"fog\.npy: uint8 of shape \(50000, 32, 32\)"):
        images.read("fog/1")
