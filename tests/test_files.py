import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn

from density_softmax.errors import DataError, UserError
from density_softmax.files import (
    StorageError,
    images,
    load_tensors,
    replacing,
    save_tensors,
    write_text,
)
from density_softmax.files.images import IMAGE_FORMATS, decode, image_size, read_image


def assert_round_trip(path: Path, tensors: dict[str, Tensor]) -> None:
    save_tensors(path, tensors, {"a": "b"})
    loaded, metadata = load_tensors(path)
    assert metadata == {"a": "b"}
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8],
    ids=str,
)
def test_numbers_of_every_type_survive(tmp_path: Path, dtype: torch.dtype) -> None:
    assert_round_trip(tmp_path / "t", {"x": torch.arange(6).view(2, 3).to(dtype)})


def test_bools_scalars_and_empty_tensors_survive(tmp_path: Path) -> None:
    tensors = {
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "empty too": torch.zeros(0),
        "special": torch.tensor([float("inf"), -0.0]),
    }
    assert_round_trip(tmp_path / "t", tensors)


def test_no_tensors_survive(tmp_path: Path) -> None:
    assert_round_trip(tmp_path / "t", {})


def test_tied_weights_are_written_under_every_name(tmp_path: Path) -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    assert_round_trip(tmp_path / "t", nn.ModuleList([first, second]).state_dict())


def test_overlapping_views_survive(tmp_path: Path) -> None:
    memory = torch.arange(10.0)
    tensors = {"all": memory, "head": memory[:6], "tail": memory[4:], "odd": memory[1::2]}
    assert_round_trip(tmp_path / "t", tensors)


def test_gradients_are_left_behind(tmp_path: Path) -> None:
    save_tensors(tmp_path / "t", {"w": nn.Parameter(torch.ones(2))}, {})
    assert not load_tensors(tmp_path / "t")[0]["w"].requires_grad


def test_folders_on_the_way_are_created(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b" / "c.txt", "ü\n")
    assert (tmp_path / "a" / "b" / "c.txt").read_text(encoding="utf-8") == "ü\n"


def test_files_are_as_readable_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    save_tensors(tmp_path / "tensors", {"x": torch.ones(1)}, {})
    modes = {(tmp_path / name).stat().st_mode for name in ("plain", "tensors")}
    assert len(modes) == 1


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nowhere\.safetensors: no such file"):
        load_tensors(tmp_path / "nowhere.safetensors")


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("storage") / "whole"
    save_tensors(path, {"x": torch.arange(5.0), "y": torch.ones(2, 2)}, {"a": "b"})
    return path.read_bytes()


def test_file_truncated_anywhere_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cut.safetensors"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(StorageError, match=r"cut\.safetensors: truncated .*delete it"):
            load_tensors(path)


@given(garbage=st.binary(max_size=200))
def test_garbage_is_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, garbage: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.safetensors"
    path.write_bytes(garbage)
    with pytest.raises(StorageError, match=r"garbage\.safetensors: .*not a safetensors file"):
        load_tensors(path)


def test_pickles_are_refused(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(2)}, tmp_path / "model.pt")
    with pytest.raises(StorageError, match=r"model\.pt"):
        load_tensors(tmp_path / "model.pt")


def write_new_text(path: Path) -> None:
    write_text(path, "new")


def write_new_tensors(path: Path) -> None:
    save_tensors(path, {"x": torch.ones(2)}, {})


@pytest.mark.parametrize("write", [write_new_text, write_new_tensors])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_interrupted_writing_keeps_the_old_file_and_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Path], None],
    error: BaseException,
) -> None:
    def fail(descriptor: int) -> None:
        raise error

    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((KeyboardInterrupt, StorageError)):
        write(path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_unwritable_tensors_keep_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> bytes:
        raise RuntimeError("cannot be serialised")

    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(safetensors.torch, "save", fail)
    with pytest.raises(RuntimeError, match="cannot be serialised"):
        write_new_tensors(path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_full_disk_is_reported_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match=r"file: cannot be written .*No space left.*free some"):
        write_new_tensors(tmp_path / "file")


def test_file_in_the_place_of_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(StorageError, match=r"file: cannot be written"):
        write_text(tmp_path / "taken" / "file", "x")


KILLED = """
import os, signal, sys
from pathlib import Path
from density_softmax.files import replacing
with replacing(Path(sys.argv[1])) as part:
    part.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_was_writing_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "out[1].csv"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    (tmp_path / ".film.part").write_text("of another program")
    assert len(list(tmp_path.iterdir())) == 2
    write_text(tmp_path / "other", "whole")
    assert {entry.name for entry in tmp_path.iterdir()} == {"other", ".film.part"}


def test_what_another_is_writing_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as part:
        part.write_text("first")
        write_text(path, "second")
        assert path.read_text() == "second"
        assert part.read_text() == "first"
    assert path.read_text() == "first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_storage_errors_are_the_users_to_cure() -> None:
    assert issubclass(StorageError, UserError)


def test_only_regular_files_are_read_as_images(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    for name in ("pipe.png", "folder.png"):
        with pytest.raises(DataError, match=rf"{name}: not a regular file; replace or delete it"):
            read_image(tmp_path / name, channels=3)


def test_only_raster_formats_are_read_whatever_a_file_is_called(tmp_path: Path) -> None:
    image = Image.new("RGB", (4, 4), "red")
    image.save(tmp_path / "script.png", format="EPS")
    with pytest.raises(DataError, match=r"script\.png: cannot be decoded"):
        read_image(tmp_path / "script.png", channels=3)
    for name in IMAGE_FORMATS:
        image.save(tmp_path / f"{name}.png", format=name)
        assert read_image(tmp_path / f"{name}.png", channels=3).size == (4, 4)


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("L", (50, 40)).save(tmp_path / "large.png")
    monkeypatch.setattr(images, "MAX_PIXELS", 1999)
    monkeypatch.setattr(images, "_converted", lambda *_: pytest.fail("decoded"))
    for read in (lambda path: decode(path, 3, 8, 8), lambda path: read_image(path, 3), image_size):
        with pytest.raises(
            DataError, match=r"large\.png: .*50×40 pixels, more than 1,999: save it"
        ):
            read(tmp_path / "large.png")


@pytest.mark.parametrize("mode", ["RGBA", "P", "L", "RGB"])
def test_images_in_memory_at_a_time_are_bounded_by_their_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    sizes = [(30, 30), (20, 20), (60, 60), (10, 10)] * 5
    paths = [tmp_path / f"{n}.png" for n in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        Image.new(mode, size).save(path)
    lock, held, most = threading.Lock(), [0], [0]
    convert = images._converted

    def converted(image: Image.Image, channels: int) -> Image.Image:
        pixels = image.width * image.height
        with lock:
            held[0] += pixels
            most[0] = max(most[0], held[0])
            assert held[0] <= 1300 or held[0] == pixels
        time.sleep(0.002)
        with lock:
            held[0] -= pixels
        return convert(image, channels)

    monkeypatch.setattr(images, "_converted", converted)
    monkeypatch.setattr(images, "_DECODING", images._Budget(1300))
    with ThreadPoolExecutor(8) as pool:
        shapes = [x.shape for x in pool.map(lambda path: decode(path, 3, 8, 8), paths)]
    assert shapes == [(3, 8, 8)] * len(sizes)
    assert most[0] == 3600
