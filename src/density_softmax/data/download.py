"""Downloads: resumed where they broke off, checked against digests, unpacked without trust.

A download grows in `<file>.part` and gets its name once its digest is the published one. An
archive is unpacked into a temporary directory beside its destination and moved from there, so
that whatever has its final name is complete. An archive put there by hand is used as if fetched.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import shutil
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from density_softmax import __version__
from density_softmax.errors import DataError

CHUNK = 2**20
TIMEOUT = 30.0

MANIFEST = "generated.json"
"""Describes a set that `data corrupt` wrote; no download goes into the folder that holds it."""

Report = Callable[[str, int, int], None]
"""Progress: called with what is being done, how much of it is done, and how much there is."""


class DownloadError(DataError):
    """A file that could not be fetched or unpacked; the message says what to do instead."""


@dataclass(frozen=True)
class Download:
    """One file to fetch.

    Attributes:
        file: its path under the data root.
        urls: where it is served, the official home first.
        digest: `sha256:…` or `md5:…`, as published.
        size: in bytes.
        provides: paths that exist under the root once it is fetched and, if an archive, unpacked.
        into: the folder under the root that an archive is unpacked into.
    """

    file: str
    urls: tuple[str, ...]
    digest: str
    size: int
    provides: tuple[str, ...]
    into: str = "."

    @property
    def is_archive(self) -> bool:
        """Whether the file is unpacked."""
        return self.file.endswith((".tar", ".tar.gz"))

    def present(self, root: Path) -> bool:
        """Whether everything it provides exists."""
        return all((root / path).exists() for path in self.provides)


def fetch(item: Download, root: Path, report: Report | None = None) -> None:
    """Download a file and, if it is an archive, unpack it; what exists is not fetched again.

    Args:
        item: what to fetch.
        root: the data root.
        report: is told about the progress.
    """
    if item.present(root):
        return
    _check_destination(item, root)
    report = report or (lambda what, done, total: None)
    path = root / item.file
    with explain_full_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _check_existing(item, path, report)
        else:
            _download(item, path, report)
        if item.is_archive:
            unpack(path, root / item.into)
            missing = [name for name in item.provides if not (root / name).exists()]
            if missing:
                raise DownloadError(f"{path}: unpacked, but {missing[0]} was not in it")
            path.unlink()


def _check_destination(item: Download, root: Path) -> None:
    """Refuse to add files to a set that `data corrupt` wrote: its manifest would be wrong."""
    for folder in dict.fromkeys((root / path).parent for path in item.provides):
        if (folder / MANIFEST).exists():
            raise DownloadError(
                f"{folder}: holds a set that was corrupted here (see its {MANIFEST}); "
                "fetch into another --root, or delete it first"
            )


def _check_existing(item: Download, path: Path, report: Report) -> None:
    if (size := path.stat().st_size) != item.size or _digest(path, item, report) != item.digest:
        raise DownloadError(
            f"{path}: not the published file ({size:,} of {item.size:,} bytes, or another "
            f"digest than {item.digest}); delete it and fetch it again"
        )


def _download(item: Download, path: Path, report: Report) -> None:
    """Try the mirrors in order until one gives a file with the right digest."""
    part = path.with_name(f"{path.name}.part")
    problems = []
    for url in item.urls:
        problem = _fill(part, url, item, report)
        if problem is None and _digest(part, item, report) == item.digest:
            part.replace(path)
            return
        if problem is None:
            part.unlink()
            problem = f"its digest was not {item.digest}, so it was deleted"
        problems.append(f"{url}: {problem}")
    kept = f"; {part} is kept and will be continued" if part.exists() else ""
    raise DownloadError(
        f"could not fetch {'; '.join(problems)}{kept}. Try again, or download {item.urls[0]} "
        f"by other means, put it at {path} and run the same command"
    )


def _fill(part: Path, url: str, item: Download, report: Report) -> str | None:
    """Grow `part` to its full size from `url`, or say why that failed."""
    while (before := _size(part)) < item.size:
        problem = "the connection broke off"
        try:
            _stream(part, url, item, report)
        except (OSError, http.client.HTTPException) as error:
            if _is_disk_full(error):
                raise
            reason = str(error) or type(error).__name__
            problem = reason.removeprefix("<urlopen error ").removesuffix(">")
        # A broken connection is reopened as long as the last one brought something.
        if _size(part) <= before:
            return problem
    return None


def _stream(part: Path, url: str, item: Download, report: Report) -> None:
    """Append the rest of the file at `url` to `part`."""
    done = _size(part)
    headers = {"User-Agent": f"density-softmax/{__version__}"}
    if done:
        headers["Range"] = f"bytes={done}-"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        # A server that ignores the range sends the whole file: start over.
        continued = response.status == http.HTTPStatus.PARTIAL_CONTENT
        done = done if continued else 0
        with part.open("ab" if continued else "wb") as file:
            while done < item.size and (chunk := response.read(min(CHUNK, item.size - done))):
                file.write(chunk)
                done += len(chunk)
                report(f"fetching {Path(item.file).name}", done, item.size)


def _digest(path: Path, item: Download, report: Report) -> str:
    algorithm = item.digest.partition(":")[0]
    digest, done = hashlib.new(algorithm, usedforsecurity=False), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            report(f"checking {Path(item.file).name}", done, item.size)
    return f"{algorithm}:{digest.hexdigest()}"


def unpack(archive: Path, into: Path) -> None:
    """Unpack an archive: all of it, or nothing.

    Args:
        archive: a tar file, compressed or not.
        into: the directory to unpack into.
    """
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into, prefix=".unpacking-") as scratch:
        try:
            with tarfile.open(archive) as tar:
                for member in tar:
                    _check_member(archive, member)
                    tar.extract(member, scratch, filter="data")
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise DownloadError(
                f"{archive}: truncated or damaged archive ({error}); delete it and fetch it again"
            ) from None
        for path in Path(scratch).iterdir():
            _move(path, into / path.name)


def _check_member(archive: Path, member: tarfile.TarInfo) -> None:
    """Refuse a member that is not a plain file or directory below the destination."""
    path = PurePosixPath(member.name.replace("\\", "/"))
    plain = member.isfile() or member.isdir()
    if not plain or path.is_absolute() or ".." in path.parts or ":" in member.name:
        raise DownloadError(
            f"{archive}: refused, because its member '{member.name}' is a link, a device or "
            "outside the destination; delete the archive"
        )


def _move(source: Path, destination: Path) -> None:
    """Move a tree to its destination, merging it into directories that exist."""
    if source.is_dir() and destination.is_dir():
        for path in source.iterdir():
            _move(path, destination / path.name)
    else:
        source.replace(destination)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def explain_full_disk(path: Path) -> Iterator[None]:
    """Turn the error of a full disk into one that says what to do.

    Args:
        path: what is being written.
    """
    try:
        yield
    except OSError as error:
        if not _is_disk_full(error):
            raise
        free = shutil.disk_usage(path if path.exists() else path.parent).free
        raise DataError(
            f"{path}: no space left on the disk ({free:,} bytes free); make room and run the same "
            "command to continue"
        ) from None


def _is_disk_full(error: Exception) -> bool:
    """Whether the disk, or the user's quota, is used up."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
