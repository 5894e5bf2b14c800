"""The header of an array is checked before its values are read, and odd archives are one error."""

import contextlib
import io
import resource
import zipfile

import numpy as np
import pytest

from density_softmax.data.readers import NpzImages
from density_softmax.data.tables import read_table
from density_softmax.errors import DataError
from density_softmax.files.arrays import open_npz
from density_softmax.serve.card import Card
from density_softmax.serve.inputs import read_chunks

PLAIN = Card("1", "deterministic", ("a", "b"), (2,))


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def claiming(shape, dtype="<f8", values=b""):
    """The bytes of an array whose header says what it likes."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return file.getvalue() + values


def archive(path, members, **options):
    with zipfile.ZipFile(path, "w", **options) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def encrypted(path):
    archive(path, {"x.npy": npy(np.ones((3, 2)))})
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    path.write_bytes(data)


ODD = {
    "encrypted": (encrypted, "is encrypted"),
    "negative": (lambda path: archive(path, {"x.npy": claiming((-3, 2))}), r"shape \(-3, 2\)"),
    "without its ending": (lambda path: archive(path, {"x": npy(np.ones((3, 2)))}), "it needs x"),
    "more than there is": (
        lambda path: archive(path, {"x.npy": claiming((2**40, 2))}),
        "which are not 0 bytes",
    ),
    "overflowing": (
        lambda path: archive(path, {"x.npy": claiming((2**40, 2**40))}),
        "which are not 0 bytes",
    ),
    "complex": (lambda path: np.savez(path, x=np.ones((3, 2), complex)), "x is complex128"),
    "pickled": (lambda path: np.savez(path, x=np.array([{}, 1])), "plain arrays"),
    "text": (lambda path: path.write_text("hello"), "truncated or not an .npz file"),
    "one array": (lambda path: path.write_bytes(npy(np.ones((3, 2)))), "truncated or not an .npz"),
    "no array": (lambda path: archive(path, {"x.npy": b"hello"}), "not a plain array"),
    "no rows": (lambda path: np.savez(path, x=np.ones((0, 2))), "holds no rows"),
    "empty": (lambda path: archive(path, {}), "holds nothing; it needs x"),
}


@pytest.mark.parametrize("case", ODD)
def test_an_odd_archive_is_one_error(tmp_path, case):
    make, message = ODD[case]
    path = tmp_path / "odd.npz"
    make(path)
    for read in (
        lambda: list(read_chunks(path, PLAIN, batch_size=4)),
        lambda: read_table(path),
    ):
        with pytest.raises(DataError, match=rf"odd\.npz: .*{message}"):
            read()


def test_every_damaged_byte_is_an_error_or_harmless(tmp_path):
    path = tmp_path / "damaged.npz"
    np.savez_compressed(path, x=np.ones((3, 2)))
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        with contextlib.suppress(DataError):  # any other error fails
            list(read_chunks(path, PLAIN, batch_size=4))


def huge(path, name="x", dtype=np.uint8):
    """A small file of two rows, each of 400 MB."""
    values = claiming((2, 400_000_000), np.dtype(dtype).str)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        with file.open(f"{name}.npy", "w", force_zip64=True) as stream:
            stream.write(values)
            block = bytes(2**23)
            for start in range(0, 800_000_000, len(block)):
                stream.write(block[: 800_000_000 - start])
        file.writestr("y.npy", npy(np.arange(2)))


def test_enormous_rows_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "huge.npz"
    huge(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=r"inputs of shape \(400000000,\), but the model reads"):
        list(read_chunks(path, PLAIN, batch_size=4))
    with pytest.raises(DataError, match=r"x is uint8 of shape \(2, 400000000\); they must be"):
        NpzImages(path).read("all")
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert growth < 50_000  # kilobytes; a row has 400,000


def test_arrays_that_nobody_asks_for_are_not_read(tmp_path):
    members = {"x.npy": npy(np.ones((4, 2))), "y.npy": npy(np.arange(4)), "z.npy": b"hello"}
    path = archive(tmp_path / "more.npz", members)
    assert len(read_table(path)["all"].x) == 4
    with open_npz(path) as arrays, pytest.raises(DataError, match="z is not a plain array"):
        arrays.read("z")
