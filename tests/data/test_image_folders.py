import numpy as np
import pytest
import torch
from layouts import write_folder, write_imagenet
from PIL import Image

from density_softmax.data import CATALOG, DataError, ImagePreparation
from density_softmax.data.folders import FileSource, ImageFolders, scan

CPU = torch.device("cpu")
PREPARE = ImagePreparation((0.0,) * 3, (1 / 255,) * 3)


def batch(files, seed=None, workers=0, indices=(0, 1, 2, 3)):
    return next(FileSource(files, PREPARE, workers).read([list(indices)], CPU, seed))


def test_classes_are_the_folders_in_alphabetical_order(tmp_path):
    files = ImageFolders({"all": write_folder(tmp_path, ("dog", "cat", "ant"))}).read("all")
    assert files.class_names == ("ant", "cat", "dog")
    assert files.y.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert files.path(4) == tmp_path / "cat" / "1.png"


def test_a_folder_without_classes_has_no_labels(tmp_path):
    files = scan(write_folder(tmp_path, ("cat",)) / "cat", "")
    assert files.class_names == ()
    assert files.y.tolist() == [-1, -1, -1]


def test_files_are_cut_to_size_in_any_role(tmp_path):
    files = scan(write_folder(tmp_path), "").resized(16, 3)
    assert files.shape == (3, 16, 16)
    assert batch(files).x.shape == batch(files, seed=1).x.shape == (4, 3, 16, 16)
    assert files.resized(16, 1).decode([0, 1]).shape == (2, 1, 16, 16)


def test_an_image_of_the_right_size_is_left_alone(tmp_path):
    files = scan(write_folder(tmp_path, size=(16, 16)), "").resized(16, 3)
    pixels = np.asarray(Image.open(files.path(2)))
    np.testing.assert_allclose(batch(files).x[2].permute(1, 2, 0), pixels, atol=1e-3)


def test_the_centre_is_what_is_tested_on(tmp_path):
    pixels = np.zeros((70, 140, 3), np.uint8)
    pixels[30:40, 65:75] = 255
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels).save(tmp_path / "a" / "x.png")
    x = scan(tmp_path, "").resized(15, 3).decode([0])[0, 0].float()
    assert x[7, 7] > 250
    torch.testing.assert_close(x, x.flip(0), atol=1, rtol=0)
    torch.testing.assert_close(x, x.flip(1), atol=1, rtol=0)


def test_augmentation_depends_on_seed_and_image_alone(tmp_path):
    files = scan(write_folder(tmp_path, num_images=4), "").resized(16, 3)
    x = batch(files, seed=1, indices=range(8)).x
    torch.testing.assert_close(batch(files, seed=1, indices=[5, 2]).x, x[[5, 2]])
    torch.testing.assert_close(batch(files, seed=1, indices=range(8), workers=1).x, x)
    assert not torch.equal(batch(files, seed=2, indices=range(8)).x, x)
    assert not torch.equal(batch(files, indices=range(8)).x, x)


def test_half_of_the_training_images_are_mirrored(tmp_path):
    pixels = np.linspace(0, 255, 32).astype(np.uint8)[:, None] * np.ones((32, 1, 3), np.uint8)
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels).save(tmp_path / "a" / "x.png")
    files = scan(tmp_path, "").resized(8, 3)
    crops = [files.decode([0], seed, flip=True)[0, 0, 0].int() for seed in range(60)]
    assert 15 < sum(int(crop[-1] < crop[0]) for crop in crops) < 45


def test_reading_leaves_the_global_random_state_alone(tmp_path):
    files = scan(write_folder(tmp_path), "").resized(8, 3)
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    batch(files, seed=3)
    assert torch.rand(1) == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_cannot_be_decoded_is_named_in_one_line(tmp_path, workers):
    files = scan(write_folder(tmp_path), "").resized(8, 3)
    path = files.path(1)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"cat/1\.png: cannot be decoded") as caught:
        batch(files, workers=workers)
    assert "\n" not in str(caught.value)


def test_without_a_size_all_images_must_have_the_same(tmp_path):
    files = scan(write_folder(tmp_path, ("cat",)), "")
    assert files.shape == (3, 30, 40)
    assert batch(files, indices=[0]).x.shape == (1, 3, 30, 40)
    write_folder(tmp_path, ("dog",), size=(20, 20))
    with pytest.raises(DataError, match=r"dog/0\.png: shape \(3, 20, 20\).*set image_size"):
        batch(scan(tmp_path, ""))


def test_empty_folders_are_named(tmp_path):
    with pytest.raises(DataError, match="holds no images"):
        scan(tmp_path, "")
    (write_folder(tmp_path) / "bird").mkdir()
    with pytest.raises(DataError, match="bird: holds no images"):
        scan(tmp_path, "")


def test_imagenet_layouts(tmp_path):
    write_imagenet(tmp_path)
    train = CATALOG["imagenet"].open(tmp_path).read("train")
    fog = CATALOG["imagenet-c"].open(tmp_path).read("fog/3")
    assert train.class_names == fog.class_names == ("n01440764", "n01443537")
    assert (len(train), len(fog)) == (10, 8)


def test_missing_imagenet_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"imagenet/train: not found.*image-net\.org/download"):
        CATALOG["imagenet"].open(tmp_path).read("train")


def test_a_million_names_stay_small():
    names = np.array([b"n01440764/n01440764_10026.JPEG"] * 1000)
    assert names.nbytes < 40 * len(names)


def test_statistics_of_a_folder_come_from_its_images(tmp_path):
    files = scan(write_folder(tmp_path, size=(16, 16)), "").resized(16, 3)
    x = files.decode(range(6)).double() / 255
    mean, std = files.statistics()
    np.testing.assert_allclose(mean, x.mean((0, 2, 3)))
    np.testing.assert_allclose(std, x.std((0, 2, 3), correction=0))
