import errno

import numpy as np
import pytest
from layouts import write_folder
from PIL import Image

from density_softmax.data import DataError, ImageData, find_images
from density_softmax.data import corrupted as module
from density_softmax.data.corrupted import Corruption, write_corrupted
from density_softmax.data.corruptions import corrupt

X = np.random.default_rng(0).integers(256, size=(7, 16, 16, 3), dtype=np.uint8)
Y = np.arange(7) % 3


def corrupt_set(text, root, out, corruption, *report):
    write_corrupted(find_images(text, root).read_one("corrupt"), text, out, corruption, *report)


@pytest.fixture
def mine(tmp_path):
    np.savez(tmp_path / "mine.npz", x=X, y=Y)
    return tmp_path


def test_arrays_have_the_published_layout(mine, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 3)
    corrupt_set("mine.npz", mine, mine / "mine-c", Corruption(kinds=("fog", "saturate"), seed=4))
    fog, labels = (np.load(mine / "mine-c" / f"{name}.npy") for name in ("fog", "labels"))
    assert fog.shape == (35, 16, 16, 3)
    assert fog.dtype == labels.dtype == np.uint8
    np.testing.assert_array_equal(labels, np.tile(Y, 5))
    for severity in range(1, 6):
        rows = fog[(severity - 1) * 7 : severity * 7]
        np.testing.assert_array_equal(rows, corrupt(X, "fog", severity, seed=4))


def test_what_is_written_can_be_read_as_a_shift(mine):
    wanted = Corruption(kinds=("fog",), severities=(2, 5))
    corrupt_set("mine.npz", mine, mine / "mine-c", wanted)
    config = ImageData("mine.npz", shifts=("mine-c",), heldout=0.5, root=str(mine))
    splits = config.load(0).splits[1:]
    assert [split.name for split in splits] == ["mine-c/fog/2", "mine-c/fog/5"]
    np.testing.assert_array_equal(splits[1].source.x.permute(0, 2, 3, 1), corrupt(X, "fog", 5))
    assert splits[1].source.y.tolist() == Y.tolist()


def test_a_stopped_run_goes_on_with_what_is_missing(mine, monkeypatch):
    def stop_at_snow(kind, done, total):
        if kind == "snow" and done:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "CHUNK", 3)
    wanted, out = Corruption(kinds=("contrast", "snow")), mine / "mine-c"
    with pytest.raises(KeyboardInterrupt):
        corrupt_set("mine.npz", mine, out, wanted, stop_at_snow)
    assert (out / "contrast.npy").exists()
    assert not (out / "snow.npy").exists()
    made = []
    monkeypatch.setattr(module, "corrupt", lambda *args, **kw: made.append(args[1]) or args[0])
    corrupt_set("mine.npz", mine, out, wanted)
    assert set(made) == {"snow"}
    assert (out / "snow.npy").exists()


def test_progress_is_reported_by_type(mine):
    reports = []
    wanted = Corruption(kinds=("contrast",))
    corrupt_set("mine.npz", mine, mine / "c", wanted, lambda *report: reports.append(report))
    assert reports[0] == ("contrast", 0, 35)
    assert reports[-1] == ("contrast", 35, 35)


def test_another_set_is_never_mixed_in(mine):
    corrupt_set("mine.npz", mine, mine / "c", Corruption(kinds=("contrast",)))
    with pytest.raises(DataError, match=r"c: holds .*'seed': 0.*choose another directory"):
        corrupt_set("mine.npz", mine, mine / "c", Corruption(kinds=("fog",), seed=1))
    (mine / "full").mkdir()
    (mine / "full" / "fog.npy").write_bytes(b"")
    with pytest.raises(DataError, match="full: not empty"):
        corrupt_set("mine.npz", mine, mine / "full", Corruption())


def test_files_have_the_layout_of_imagenet_c(tmp_path):
    write_folder(tmp_path / "pets", num_images=2)
    wanted = Corruption(kinds=("contrast", "pixelate"), severities=(1, 4), image_size=64)
    corrupt_set("pets", tmp_path, tmp_path / "pets-c", wanted)
    with Image.open(tmp_path / "pets-c" / "pixelate" / "4" / "dog" / "1.JPEG") as image:
        assert (image.format, image.size, image.mode) == ("JPEG", (64, 64), "RGB")
    selection = find_images("pets-c", tmp_path)
    assert selection.subsets == ("contrast/1", "contrast/4", "pixelate/1", "pixelate/4")
    config = ImageData("pets", shifts=("pets-c",), image_size=64, heldout=0.4, root=str(tmp_path))
    assert [len(split.source) for split in config.load(0).splits[1:]] == [4] * 4


def test_files_that_would_become_one_are_named_and_nothing_is_written(tmp_path):
    write_folder(tmp_path / "pets", num_images=2)
    (tmp_path / "pets" / "cat" / "1.png").with_suffix(".jpg").write_bytes(b"")
    with pytest.raises(DataError, match=r"1\.jpg and 1\.png would both become cat/1\.JPEG"):
        corrupt_set("pets", tmp_path, tmp_path / "c", Corruption(kinds=("contrast",)))
    assert not (tmp_path / "c").exists()


def test_half_written_severities_of_files_are_made_again(tmp_path):
    write_folder(tmp_path / "pets", num_images=2)
    wanted = Corruption(kinds=("contrast",), severities=(1, 2), image_size=32)

    def stop_at_second(kind, done, total):
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        corrupt_set("pets", tmp_path, tmp_path / "c", wanted, stop_at_second)
    assert [path.name for path in (tmp_path / "c" / "contrast").iterdir()] == ["1"]
    corrupt_set("pets", tmp_path, tmp_path / "c", wanted)
    assert (tmp_path / "c" / "contrast" / "2" / "cat" / "0.JPEG").exists()


def test_a_full_disk_is_one_line_and_nothing_half_written_counts(mine, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "corrupt", full)
    with pytest.raises(DataError, match=r"no space left on the disk") as caught:
        corrupt_set("mine.npz", mine, mine / "c", Corruption(kinds=("fog",)))
    assert "\n" not in str(caught.value)
    assert not (mine / "c" / "fog.npy").exists()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"kinds": ("mist",)}, "unknown type 'mist'; there are: .*fog"),
        ({"severities": (6,)}, "unknown severity '6'; there are: 1, 2, 3, 4, 5"),
    ],
)
def test_unknown_choices_are_listed_with_the_known_ones(wanted, message):
    with pytest.raises(DataError, match=message):
        Corruption(**wanted)


def test_sets_that_cannot_be_corrupted_are_refused(tmp_path):
    np.savez(tmp_path / "bare.npz", x=X)
    with pytest.raises(DataError, match=r"bare\.npz: no labels"):
        corrupt_set("bare.npz", tmp_path, tmp_path / "c", Corruption())
    with pytest.raises(DataError, match="digits-c has 75 subsets: corrupt one"):
        corrupt_set("digits-c", tmp_path, tmp_path / "c", Corruption())
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "generated.json").write_text("[")
    with pytest.raises(DataError, match=r"generated\.json: not a manifest"):
        corrupt_set("digits", tmp_path, tmp_path / "d", Corruption())


def test_a_set_of_other_pixels_is_not_continued(mine, monkeypatch):
    corrupt_set("mine.npz", mine, mine / "c", Corruption(kinds=("fog",)))
    monkeypatch.setattr(module, "PIXELS", module.PIXELS + 1)
    with pytest.raises(DataError, match="choose another directory, or delete it"):
        corrupt_set("mine.npz", mine, mine / "c", Corruption(kinds=("frost",)))
