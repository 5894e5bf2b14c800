import numpy as np
import pytest
from layouts import write_folder

from density_softmax.data import DataError, find_images
from density_softmax.data.corrupted import CorruptedFolders
from density_softmax.data.folders import ImageFolders
from density_softmax.data.readers import NpzImages, class_order

X = np.random.default_rng(0).integers(256, size=(6, 8, 10, 3), dtype=np.uint8)
Y = np.array([2, 0, 1, 1, 0, 2])


def open_images(path):
    return find_images(str(path), path.parent).images


def npz(folder, **arrays):
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


def test_one_pair_of_arrays_is_one_subset(tmp_path):
    images = open_images(npz(tmp_path, x=X, y=Y))
    assert images.subsets == ("all",)
    read = images.read("all")
    np.testing.assert_array_equal(read.x.permute(0, 2, 3, 1), X)
    assert read.y.tolist() == Y.tolist()
    assert read.class_names == ("0", "1", "2")


def test_two_pairs_are_training_and_test_images_and_other_arrays_are_ignored(tmp_path):
    path = npz(tmp_path, x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2], coarse=Y)
    images = open_images(path)
    assert images.subsets == ("train", "test")
    assert len(images.read("test")) == 2
    assert images.read("test").class_names == ("0", "1", "2")


def test_grey_images_may_lack_their_channel(tmp_path):
    assert open_images(npz(tmp_path, x=X[..., 0], y=Y)).read("all").shape == (1, 8, 10)


def test_labels_may_be_words_and_numbers_need_not_start_at_zero(tmp_path):
    words = np.array(["dog", "cat", "ant"])[Y]
    read = open_images(npz(tmp_path, x=X, y=words)).read("all")
    assert [read.class_names[label] for label in read.y] == words.tolist()
    read = open_images(npz(tmp_path, x=X, y=Y + 9)).read("all")
    assert read.class_names == ("9", "10", "11")
    assert read.y.tolist() == Y.tolist()


def test_class_names_give_labels_their_meaning(tmp_path):
    names = np.array(["a", "b", "c", "d"])
    read = open_images(npz(tmp_path, x=X, y=Y, class_names=names)).read("all")
    assert read.class_names == ("a", "b", "c", "d")
    with pytest.raises(DataError, match="label 4 of image 0"):
        open_images(npz(tmp_path, x=X, y=Y + 2, class_names=names)).read("all")


def test_a_label_that_is_no_class_name_is_named(tmp_path):
    path = npz(tmp_path, x=X, y=np.array(["a", "b", "z"])[Y], class_names=np.array(["a", "b"]))
    with pytest.raises(DataError, match=r"mine\.npz: label 'z' is not in class_names.*: a, b$"):
        open_images(path).read("all")


def test_images_without_labels_can_be_read(tmp_path):
    read = open_images(npz(tmp_path, x=X)).read("all")
    assert read.class_names == ()
    assert set(read.y.tolist()) == {-1}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": X}, r"holds images; it needs x and y"),
        ({"x": X / 255, "y": Y}, r"float64 of shape \(6, 8, 10, 3\); they must be uint8"),
        ({"x": X.transpose(0, 3, 1, 2), "y": Y}, r"shape \(6, 3, 8, 10\)"),
        ({"x": X, "y": Y[:5]}, r"y has shape \(5,\) for 6 rows"),
    ],
)
def test_arrays_of_another_form_are_refused(tmp_path, arrays, message):
    with pytest.raises(DataError, match=rf"mine\.npz: .*{message}"):
        open_images(npz(tmp_path, **arrays)).read("all")


def test_damaged_and_pickled_files_are_refused(tmp_path):
    path = npz(tmp_path, x=X, y=Y)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match=r"mine\.npz: truncated"):
        NpzImages(path).read("all")
    path = npz(tmp_path, x=X, y=np.array([{}] * 6, dtype=object))
    with pytest.raises(DataError, match=r"mine\.npz: .*plain arrays"):
        NpzImages(path).read("all")


def test_the_form_of_a_folder_is_recognised(tmp_path):
    write_folder(tmp_path / "mine" / "train")
    write_folder(tmp_path / "mine" / "val")
    assert isinstance(open_images(tmp_path / "mine"), ImageFolders)
    write_folder(tmp_path / "mine-c" / "fog" / "1")
    assert isinstance(open_images(tmp_path / "mine-c"), CorruptedFolders)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError, match=r"notes\.txt: images come as"):
        open_images(tmp_path / "notes.txt")


def test_numbers_are_ordered_by_size_and_words_by_the_alphabet():
    assert class_order(["10", "9", "-1"]) == ("-1", "9", "10")
    assert class_order(["b", "10", "9"]) == ("10", "9", "b")


def test_images_without_a_label_and_names_that_are_no_list_are_refused(tmp_path):
    x = np.zeros((4, 3, 3), np.uint8)
    np.savez(tmp_path / "nan.npz", x=x, y=np.array([0, 1, np.nan, 1]))
    with pytest.raises(DataError, match=r"nan\.npz: no label in row 2; label or drop"):
        NpzImages(tmp_path / "nan.npz").read("all")
    np.savez(tmp_path / "names.npz", x=x, y=np.zeros(4, int), class_names=np.array("cat"))
    with pytest.raises(DataError, match=r"class_names has shape \(\); give a list of names"):
        NpzImages(tmp_path / "names.npz").read("all")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b", "a"], "class_names has 'a' twice"),
        ([1j, 2, 3], "class_names is complex128; labels are numbers or text"),
        (["a", "", "c"], "no label in row 1"),
    ],
)
def test_class_names_are_distinct_texts(tmp_path, names, message):
    np.savez(tmp_path / "names.npz", x=X, y=Y, class_names=np.array(names))
    with pytest.raises(DataError, match=message):
        NpzImages(tmp_path / "names.npz").read("all")
