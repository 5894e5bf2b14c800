import numpy as np
import pytest
from layouts import write_cifar10
from typer.testing import CliRunner

from density_softmax.cli import data as command
from density_softmax.data import CATALOG, DataError, catalog
from density_softmax.data.download import Download


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("DENSITY_SOFTMAX_DATA", str(tmp_path))
    monkeypatch.setattr(command.console, "width", 200)

    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(command.app, arguments)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.output

    return invoke


def test_list_shows_every_set_and_whether_it_is_here(run, tmp_path):
    write_cifar10(tmp_path)
    lines = run("list").splitlines()
    for name, entry in CATALOG.items():
        (line,) = [line for line in lines if line.strip().startswith(f"{name} ")]
        assert entry.licence in line
        assert entry.home in line
        here = name in ("digits", "digits-c", "cifar10")
        assert (" yes " if here else " no ") in line
    assert "170.1 MB" in next(line for line in lines if line.strip().startswith("cifar10 "))


def test_fetch_brings_every_file_of_a_set(run, tmp_path, monkeypatch):
    content = (tmp_path / "elsewhere.bin").write_bytes(b"abc")
    url = (tmp_path / "elsewhere.bin").as_uri()
    digest = "md5:900150983cd24fb0d6963f7d28e17f72"
    item = Download("set/abc.bin", (url,), digest, content, ("set/abc.bin",))
    entry = catalog.Entry(CATALOG["svhn"].open, "1", "here", "none", downloads=(item,))
    monkeypatch.setitem(CATALOG, "abc", entry)
    assert "abc: ready" in run("fetch", "abc")
    assert (tmp_path / "set" / "abc.bin").read_bytes() == b"abc"


def test_fetch_explains_what_it_cannot_do(run, tmp_path):
    with pytest.raises(DataError, match=r"unknown data set 'cifar'; did you mean .* there are:"):
        run("fetch", "cifar")
    with pytest.raises(DataError, match=r"imagenet cannot be fetched: .*image-net\.org"):
        run("fetch", "imagenet")
    assert "digits: ready" in run("fetch", "digits")


def test_corrupt_writes_a_set_that_can_be_read(run, tmp_path):
    out = tmp_path / "digits-fog"
    run("corrupt", "digits", "--out", str(out), "--type", "fog", "--severity", "3")
    assert np.load(out / "fog.npy").shape == (450, 8, 8, 1)
    assert len(np.load(out / "labels.npy")) == 450
