"""The generic image config: names of splits, roles, held-out slice, and every set in every role."""

import numpy as np
import pytest
import torch
from layouts import (
    write_cifar10,
    write_cifar10p1,
    write_cifar100,
    write_corrupted_arrays,
    write_folder,
    write_imagenet,
    write_svhn,
)
from PIL import Image

from density_softmax.config import ConfigError, from_dict, to_dict
from density_softmax.data import CATALOG, DataConfig, DataError, ImageData, data_root, readers
from density_softmax.data.corruptions import CORRUPTIONS

CPU = torch.device("cpu")
FIXED = {"mean": (0.5,) * 3, "std": (0.25,) * 3, "workers": 0}
SMALL = {"train": 30, "test": 20}


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """Every set, in its official layout."""
    root = tmp_path_factory.mktemp("data")
    write_cifar10(root)
    write_cifar100(root)
    write_cifar10p1(root)
    write_corrupted_arrays(root / "CIFAR-10-C")
    write_corrupted_arrays(root / "CIFAR-100-C", kinds=("fog",))
    write_imagenet(root)
    write_folder(root / "pets", num_images=10)
    for part, number in SMALL.items():
        write_svhn(root, part, number)
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(40, 32, 32, 3), dtype=np.uint8)
    np.savez(root / "mine.npz", x=x, y=np.arange(40) % 10)
    return root


@pytest.fixture(autouse=True)
def _small_svhn(monkeypatch):
    monkeypatch.setattr(readers, "SVHN_IMAGES", SMALL)


def load(root, train, seed=0, **changes):
    return ImageData(train=train, root=str(root), **{**FIXED, **changes}).load(seed)


def one_batch(source, num=4, seed=None):
    return next(source.read([list(range(min(num, len(source))))], CPU, seed))


def names(data):
    return [(split.name, split.role) for split in data.splits]


def test_splits_are_named_as_rows_name_them(root):
    data = load(
        root,
        "cifar10.1-v6",
        shifts=("cifar10-c/fog/3", "cifar10-c/snow", "cifar10.1-v4"),
        ood=("svhn", "mine.npz"),
    )
    assert names(data) == [
        ("iid", "iid"),
        ("cifar10-c/fog/3", "shift"),
        *((f"cifar10-c/snow/{severity}", "shift") for severity in range(1, 6)),
        ("cifar10.1-v4", "shift"),
        ("svhn", "ood"),
        ("mine", "ood"),
    ]


def test_a_corrupted_set_means_its_fifteen_main_types(root):
    data = load(root, "cifar10.1-v6", shifts=("cifar10-c",))
    expected = [f"cifar10-c/{kind}/{level}" for kind in CORRUPTIONS for level in range(1, 6)]
    assert [split.name for split in data.splits[1:]] == expected


def test_the_seed_decides_the_heldout_slice_and_nothing_else(root):
    first, again, other = (load(root, "mine.npz", seed, heldout=0.25) for seed in (0, 0, 1))
    assert (len(first.train), len(first.heldout), len(first.splits[0].source)) == (24, 8, 8)
    assert torch.equal(first.heldout.x, again.heldout.x)
    assert not torch.equal(first.heldout.x, other.heldout.x)
    assert torch.equal(first.splits[0].source.x, other.splits[0].source.x)


def test_official_test_images_are_kept(root):
    data = load(root, "svhn", heldout=0.2)
    assert (len(data.train), len(data.heldout), len(data.splits[0].source)) == (24, 6, 20)


@pytest.mark.parametrize(("subset", "number"), [("train", 30), ("test", 20)])
def test_a_subset_that_is_named_is_all_there_is_of_a_set(root, subset, number):
    data = load(root, f"svhn/{subset}", heldout=0.25, test_fraction=0.2)
    sources = (data.train, data.heldout, data.splits[0].source)
    assert [len(source) for source in sources] == [0.6 * number, 0.2 * number, 0.2 * number]


def test_only_training_batches_with_a_seed_are_augmented(root):
    data = load(root, "mine.npz")
    plain = one_batch(data.train).x
    assert not torch.equal(one_batch(data.train, seed=1).x, plain)
    assert torch.equal(one_batch(load(root, "mine.npz", augment=False).train, seed=1).x, plain)


def test_normalisation_comes_from_the_images_trained_on(root):
    data = load(root, "mine.npz", mean=None, std=None)
    x = one_batch(data.train, len(data.train)).x
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-4, rtol=0)


SETS = [
    *("digits", "digits-c/fog/3", "cifar10", "cifar100", "svhn", "cifar10.1-v4", "cifar10.1-v6"),
    *("cifar10-c/fog/3", "cifar100-c/fog/3", "imagenet", "imagenet-c/fog/3", "mine.npz", "pets"),
]


def test_the_sets_under_test_are_all_there_are():
    assert {name.split("/")[0] for name in SETS} - {"mine.npz", "pets"} == set(CATALOG)


def settings(name):
    """What a training set needs: a size for image files, one mean for grey images."""
    if name.startswith("digits"):
        return {"mean": (0.5,), "std": (0.5,)}
    return {"image_size": 8} if name.startswith(("imagenet", "pets")) else {}


@pytest.mark.parametrize("name", SETS)
def test_every_set_can_be_trained_on_and_be_ood(root, name):
    data = load(root, name, heldout=0.25, ood=(name,), **settings(name))
    assert data.splits[1].role == "ood"
    assert set(one_batch(data.splits[1].source).y.tolist()) == {-1}
    for source in (data.train, data.heldout, data.splits[0].source):
        batch = one_batch(source, seed=0)
        assert batch.x.shape[1:] == data.task.input_shape
        assert batch.y.min() >= 0
        assert batch.y.max() < data.task.num_classes


@pytest.mark.parametrize(
    ("train", "shift"),
    [
        ("digits", "digits-c/fog/3"),
        ("digits", "digits/train"),
        ("cifar10.1-v6", "cifar10"),
        ("cifar10.1-v6", "cifar10-c/fog/3"),
        ("cifar10.1-v4", "cifar10.1-v6"),
        ("cifar10.1-v6", "svhn"),
        ("cifar10.1-v6", "mine.npz"),
        ("mine.npz", "svhn"),
        ("cifar100-c/fog/3", "cifar100"),
        ("cifar100-c/fog/3", "cifar100-c/fog/5"),
        ("imagenet", "imagenet-c/fog/3"),
        ("pets", "pets"),
    ],
)
def test_sets_of_the_same_classes_serve_as_shifts(root, train, shift):
    data = load(root, train, shifts=(shift,), **settings(train))
    assert data.splits[1].role == "shift"
    y = one_batch(data.splits[1].source).y
    assert y.min() >= 0
    assert y.max() < data.task.num_classes


def test_classes_of_a_shift_are_matched_by_name(root, tmp_path):
    write_folder(tmp_path / "strays", ("dog",), num_images=2)
    data = load(root, "pets", image_size=8, shifts=(str(tmp_path / "strays"),))
    assert data.task.class_names == ("cat", "dog")
    assert one_batch(data.splits[1].source).y.tolist() == [1, 1]


def test_a_shift_of_other_classes_is_refused(root):
    with pytest.raises(DataError, match=r"cifar100: class 'worm' is not one of.*under ood"):
        load(root, "cifar10.1-v6", shifts=("cifar100",))


def test_both_shapes_are_named_where_they_differ(root):
    with pytest.raises(DataError, match=r"digits: images of shape \(1, 8, 8\).*\(3, 32, 32\)"):
        load(root, "cifar10.1-v6", ood=("digits",))
    with pytest.raises(DataError, match=r"pets: images of shape \(3, 30, 40\).*image_size"):
        load(root, "cifar10.1-v6", ood=("pets",))
    assert load(root, "cifar10.1-v6", ood=("pets",), image_size=32).splits[1].name == "pets"


def test_unknown_sets_and_subsets_are_listed_with_the_known_ones(root):
    with pytest.raises(
        DataError, match=r"unknown data set 'cifr10'; did you mean 'cifar10'\?.*svhn"
    ):
        load(root, "cifr10")
    with pytest.raises(DataError, match=r"cifar10-c has no subset 'mist'; there are: .*fog"):
        load(root, "cifar10.1-v6", shifts=("cifar10-c/mist",))
    with pytest.raises(DataError, match=r"cifar10-c has 75 subsets: train on one"):
        load(root, "cifar10-c")
    with pytest.raises(ConfigError, match="two sets are called 'svhn'"):
        load(root, "cifar10.1-v6", ood=("svhn", "svhn"))


@pytest.mark.parametrize("role", ["shifts", "ood"])
def test_a_set_does_not_share_its_name_with_a_mean_over_shifts(root, role):
    sets = {"shifts": ("svhn/train",), "ood": ()}
    sets[role] = (*sets[role], "svhn")
    with pytest.raises(ConfigError, match="'svhn' is also the mean over 'svhn/train'"):
        load(root, "cifar10.1-v6", **sets)
    assert len(load(root, "cifar10.1-v6", ood=("svhn", "svhn/train")).splits) == 3


@pytest.mark.parametrize("name", ["train", "cost"])
def test_no_set_takes_the_name_of_something_else_in_a_run(root, tmp_path, name):
    write_folder(tmp_path / name)
    with pytest.raises(ConfigError, match=f"a set is called '{name}'.*rename the file or folder"):
        load(root, "pets", image_size=8, ood=(str(tmp_path / name),))


def test_without_a_held_out_slice_every_image_trains(root):
    data, other = load(root, "svhn", heldout=0.0), load(root, "svhn", heldout=0.2)
    assert data.heldout is None
    assert len(data.train) == len(other.train) + len(other.heldout) == 30
    assert len(data.splits[0].source) == 20


def test_a_test_set_is_never_left_out(root):
    with pytest.raises(DataError, match="leaves nothing on one side"):
        load(root, "mine.npz", heldout=0.0, test_fraction=0.0)


def test_settings_that_cannot_be_are_refused(root):
    with pytest.raises(ConfigError, match=r"mean=\(0\.5,\): expected 3 entries"):
        load(root, "mine.npz", mean=(0.5,))
    with pytest.raises(ConfigError, match="expected positive numbers"):
        load(root, "mine.npz", std=(0.5, 0.0, 0.5))
    with pytest.raises(DataError, match=r"mine\.npz: holding out 1\.5 of"):
        load(root, "mine.npz", heldout=1.5)


def test_sets_that_cannot_be_learned_from_are_refused(root, tmp_path):
    np.savez(tmp_path / "one.npz", x=np.zeros((9, 8, 8), np.uint8), y=np.zeros(9, int))
    with pytest.raises(DataError, match="1 labelled classes; training needs two"):
        load(root, str(tmp_path / "one.npz"))
    np.savez(tmp_path / "none.npz", x=np.zeros((9, 8, 8), np.uint8))
    with pytest.raises(DataError, match="0 labelled classes; training needs two"):
        load(root, str(tmp_path / "none.npz"))
    np.savez(tmp_path / "bare.npz", x=np.zeros((9, 32, 32, 3), np.uint8))
    with pytest.raises(DataError, match="bare: no labels; list it under ood"):
        load(root, "mine.npz", shifts=(str(tmp_path / "bare.npz"),))


def test_the_root_is_chosen_by_config_then_environment_then_home(monkeypatch, tmp_path):
    monkeypatch.setenv("DENSITY_SOFTMAX_DATA", str(tmp_path))
    assert data_root("/elsewhere").as_posix() == "/elsewhere"
    assert data_root() == tmp_path
    monkeypatch.delenv("DENSITY_SOFTMAX_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "density-softmax"


def test_config_survives_a_round_trip():
    config = ImageData(shifts=("cifar10-c",), ood=("svhn",), mean=(0.1, 0.2, 0.3), image_size=32)
    assert from_dict(DataConfig, to_dict(config)) == config


def test_a_folder_of_several_sizes_is_told_from_two_sets_that_differ(tmp_path):
    for number in range(10):
        folder = tmp_path / "mine" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.zeros((8 + number, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    with pytest.raises(DataError, match=r"mine: its images have several sizes.*set image_size"):
        ImageData(str(tmp_path / "mine")).load(0)
    assert ImageData(str(tmp_path / "mine"), image_size=8).load(0).task.input_shape == (3, 8, 8)
