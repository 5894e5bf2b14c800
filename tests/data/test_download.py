"""Downloads against a server of our own: broken, resumed, wrong, hostile."""

import errno
import hashlib
import io
import tarfile
import threading
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from density_softmax.data import CATALOG, DataError
from density_softmax.data.download import Download, DownloadError, fetch, unpack

PAYLOAD = bytes(range(256)) * 400


@dataclass
class Script:
    """What the server does, and what it was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    knows_ranges: bool = True
    break_after: int | None = None
    ranges: list[str | None] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    script: Script

    def do_GET(self) -> None:
        asked = self.headers["Range"]
        self.script.ranges.append(asked)
        body = self.script.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        start = int(asked[6:-1]) if asked and self.script.knows_ranges else 0
        if start >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        end = len(body) if self.script.break_after is None else start + self.script.break_after
        self.wfile.write(body[start:end])

    def log_message(self, *args) -> None:
        pass


@pytest.fixture
def server():
    script = Script()
    handler = type("Scripted", (Handler,), {"script": script})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        script.home = f"http://127.0.0.1:{httpd.server_port}"
        yield script
        httpd.shutdown()
        thread.join()


def plain(server: Script, content: bytes = PAYLOAD, **changes) -> Download:
    """A file that the server has under /data.bin."""
    server.files["/data.bin"] = content
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    file = "set/data.bin"
    item = Download(file, (f"{server.home}/data.bin",), digest, len(content), provides=(file,))
    return replace(item, **changes)


def part_of(root: Path) -> Path:
    return root / "set" / "data.bin.part"


def put_part(root: Path, content: bytes) -> None:
    part_of(root).parent.mkdir()
    part_of(root).write_bytes(content)


def test_a_file_is_fetched_once_with_progress(tmp_path, server):
    reports = []
    item = plain(server)
    fetch(item, tmp_path, lambda *report: reports.append(report))
    assert (tmp_path / "set" / "data.bin").read_bytes() == PAYLOAD
    assert reports[-1] == ("checking data.bin", len(PAYLOAD), len(PAYLOAD))
    fetch(item, tmp_path)
    assert len(server.ranges) == 1


def test_a_set_that_was_made_here_is_not_filled_up(tmp_path, server):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "generated.json").write_text("{}")
    with pytest.raises(DownloadError, match=r"set: holds a set that was corrupted here.*delete it"):
        fetch(plain(server), tmp_path)
    assert server.ranges == []


def test_a_download_is_continued_where_it_broke_off(tmp_path, server):
    put_part(tmp_path, PAYLOAD[:1000])
    fetch(plain(server), tmp_path)
    assert server.ranges == ["bytes=1000-"]
    assert (tmp_path / "set" / "data.bin").read_bytes() == PAYLOAD
    assert not part_of(tmp_path).exists()


def test_a_server_without_ranges_is_read_from_the_start(tmp_path, server):
    server.knows_ranges = False
    put_part(tmp_path, b"x" * 1000)
    fetch(plain(server), tmp_path)
    assert (tmp_path / "set" / "data.bin").read_bytes() == PAYLOAD


def test_a_connection_that_keeps_breaking_is_taken_up_again(tmp_path, server):
    server.break_after = 40_000
    fetch(plain(server), tmp_path)
    assert server.ranges == [None, "bytes=40000-", "bytes=80000-"]


def test_what_arrived_is_kept_when_the_server_gives_up(tmp_path, server):
    put_part(tmp_path, PAYLOAD[:1000])
    server.break_after = 0
    with pytest.raises(DownloadError, match=r"broke off.*data\.bin\.part is kept") as caught:
        fetch(plain(server), tmp_path)
    assert "\n" not in str(caught.value)
    assert part_of(tmp_path).read_bytes() == PAYLOAD[:1000]


def test_a_wrong_digest_deletes_and_reports(tmp_path, server):
    item = plain(server, digest="md5:" + "0" * 32)
    with pytest.raises(DownloadError, match=r"its digest was not md5:0000.*deleted"):
        fetch(item, tmp_path)
    assert list((tmp_path / "set").iterdir()) == []


def test_md5_is_checked_too(tmp_path, server):
    fetch(plain(server, digest=f"md5:{hashlib.md5(PAYLOAD).hexdigest()}"), tmp_path)
    assert (tmp_path / "set" / "data.bin").exists()


def test_a_shorter_file_at_the_server_is_an_error_and_not_a_loop(tmp_path, server):
    with pytest.raises(DownloadError, match=r"416"):
        fetch(plain(server, size=len(PAYLOAD) + 1), tmp_path)


def test_mirrors_are_tried_in_order(tmp_path, server):
    server.files["/wrong"] = b"y" * len(PAYLOAD)
    urls = tuple(f"{server.home}/{name}" for name in ("absent", "wrong", "data.bin"))
    fetch(plain(server, urls=urls), tmp_path)
    assert (tmp_path / "set" / "data.bin").read_bytes() == PAYLOAD


def test_without_a_network_the_error_says_what_to_put_where(tmp_path, server):
    url = "http://127.0.0.1:9/data.bin"
    with pytest.raises(DownloadError) as caught:
        fetch(plain(server, urls=(url,)), tmp_path)
    message = str(caught.value)
    assert f"download {url}" in message
    assert f"put it at {tmp_path / 'set' / 'data.bin'}" in message
    assert "\n" not in message


def test_a_full_disk_keeps_what_arrived(tmp_path, server, monkeypatch):
    put_part(tmp_path, PAYLOAD[:1000])

    def full(path, *args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    item = plain(server)
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(DataError, match=r"no space left on the disk.*to continue"):
        fetch(item, tmp_path)
    monkeypatch.undo()
    assert part_of(tmp_path).read_bytes() == PAYLOAD[:1000]


def tar_of(members: dict[str, bytes | tarfile.TarInfo], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def archive(server: Script, content: bytes, **changes) -> Download:
    return plain(server, content, file="set.tar.gz", provides=("set/a.bin",), **changes)


def test_an_archive_is_unpacked_and_removed(tmp_path, server):
    fetch(archive(server, tar_of({"set/a.bin": b"a", "set/b.bin": b"b"})), tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.bin", "b.bin", "set"]


def test_an_archive_put_in_place_by_hand_is_used(tmp_path, server):
    content = tar_of({"set/a.bin": b"a"})
    (tmp_path / "set.tar.gz").write_bytes(content)
    fetch(archive(server, content, urls=("http://127.0.0.1:9/x",)), tmp_path)
    assert (tmp_path / "set" / "a.bin").read_bytes() == b"a"


def test_another_file_put_in_place_is_refused_and_kept(tmp_path, server):
    content = tar_of({"set/a.bin": b"a"})
    (tmp_path / "set.tar.gz").write_bytes(content[:-10])
    with pytest.raises(DownloadError, match=r"set\.tar\.gz: not the published file"):
        fetch(archive(server, content), tmp_path)
    assert (tmp_path / "set.tar.gz").exists()


def test_an_archive_fills_up_what_is_there(tmp_path, server):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine").write_text("mine")
    fetch(archive(server, tar_of({"set/a.bin": b"a"})), tmp_path)
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ["a.bin", "mine"]


def test_an_archive_without_the_promised_file_is_an_error(tmp_path, server):
    with pytest.raises(DownloadError, match=r"set/a\.bin was not in it"):
        fetch(archive(server, tar_of({"set/b.bin": b"b"})), tmp_path)


def special(name: str, kind: bytes, target: str = "") -> dict[str, tarfile.TarInfo]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return {name: info}


@pytest.mark.parametrize(
    "hostile",
    [
        {"../escape": b"x"},
        {"set/../../escape": b"x"},
        {"/tmp/escape": b"x"},
        {"..\\escape": b"x"},
        special("link", tarfile.SYMTYPE, "/etc/passwd"),
        special("link", tarfile.SYMTYPE, "set/a.bin"),
        special("link", tarfile.LNKTYPE, "../escape"),
        special("device", tarfile.CHRTYPE),
        special("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda members: next(iter(members)),
)
def test_nothing_of_a_hostile_archive_is_unpacked(tmp_path, hostile):
    path = tmp_path / "evil.tar.gz"
    path.write_bytes(tar_of({"set/a.bin": b"a", **hostile}))
    with pytest.raises(DownloadError, match=r"evil\.tar\.gz: refused"):
        unpack(path, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    assert not (tmp_path / "escape").exists()


def test_a_truncated_archive_leaves_nothing(tmp_path):
    path = tmp_path / "short.tar.gz"
    path.write_bytes(tar_of({"set/a.bin": hashlib.sha256(PAYLOAD).digest() * 999}))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DownloadError, match="truncated or damaged archive"):
        unpack(path, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("name", [name for name in CATALOG if CATALOG[name].downloads])
def test_every_download_of_the_catalog_is_complete(name):
    for item in CATALOG[name].downloads:
        algorithm, _, digest = item.digest.partition(":")
        assert len(digest) == {"md5": 32, "sha256": 64}[algorithm]
        assert item.urls
        assert all(url.startswith("http") for url in item.urls)
        assert item.provides
        assert item.size > 0
