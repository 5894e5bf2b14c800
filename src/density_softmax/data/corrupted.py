"""Corrupted copies of test sets: read where they are published, or written here.

Published layouts (Hendrycks & Dietterich 2019): arrays as `<type>.npy` with the severities one
after another and `labels.npy`, or files as `<type>/<severity>/<class>/<image>`. What we write has
the same layout, and a manifest `generated.json`. Whatever has its final name is complete: a run
that was stopped continues with the types (of arrays) or the severities (of files) that are missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from density_softmax.data.corruptions import (
    ALL_CORRUPTIONS,
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    PIXELS,
    SEVERITIES,
    corrupt,
)
from density_softmax.data.download import MANIFEST, Report, explain_full_disk
from density_softmax.data.folders import ImageFiles, scan
from density_softmax.data.images import Images, ImageSet, LabelledImages, check_labels, numerals
from density_softmax.errors import DataError, choices
from density_softmax.files import replacing, write_text
from density_softmax.files.arrays import load_npy

REMEDY = "write it again with `density-softmax data corrupt`"
# Images corrupted at a time, between two reports of progress.
CHUNK = 256
# The quality at which ImageNet-C was saved.
JPEG_QUALITY = 85


class CorruptedSet(ImageSet):
    """Subsets called `<type>/<severity>`; the bare name of the set means its main types.

    Attributes:
        kinds: the main types.
        extra_kinds: types that are read only when they are named.
    """

    kinds: tuple[str, ...]
    extra_kinds: tuple[str, ...]

    @property
    def severities(self) -> tuple[int, ...]:
        """The available severities, in the order of the rows."""
        return SEVERITIES

    @property
    def subsets(self) -> tuple[str, ...]:
        """Every type at every severity."""
        kinds = self.kinds + self.extra_kinds
        return tuple(f"{kind}/{severity}" for kind in kinds for severity in self.severities)

    @property
    def default_subsets(self) -> tuple[str, ...]:
        """The main types at every severity."""
        return self.subsets[: len(self.kinds) * len(self.severities)]


@final
@dataclass(frozen=True)
class CorruptedArrays(CorruptedSet):
    """`<type>.npy` with severities × images rows, and `labels.npy`; memory-mapped.

    Attributes:
        directory: where the files are.
        kinds: the main types.
        extra_kinds: types that are read only when they are named.
        class_names: the name of each label; None takes plain numbers.
        num_images: images per severity; None takes it from `labels.npy`.
        remedy: what to do about a missing or bad file.
    """

    directory: Path
    kinds: tuple[str, ...] = CORRUPTIONS
    extra_kinds: tuple[str, ...] = EXTRA_CORRUPTIONS
    class_names: tuple[str, ...] | None = None
    num_images: int | None = None
    remedy: str = REMEDY

    @property
    def severities(self) -> tuple[int, ...]:
        """All five, unless the manifest says otherwise."""
        return tuple(_manifest(self.directory).get("severities", SEVERITIES))

    def read(self, subset: str) -> Images:
        """Return the images of one type and severity."""
        kind, severity = subset.split("/")
        severities = self.severities
        path, labels_path = self.directory / f"{kind}.npy", self.directory / "labels.npy"
        x, labels = (load_npy(file, self.remedy) for file in (path, labels_path))
        self._check(path, x, len(labels), len(severities))
        step = len(x) // len(severities)
        start = severities.index(int(severity)) * step
        names = self.class_names or numerals(int(labels.max()) + 1)
        y = check_labels(torch.tensor(labels[start : start + step]), len(names), labels_path)
        return Images(torch.from_numpy(x[start : start + step]).permute(0, 3, 1, 2), y, names)

    def _check(self, path: Path, x: NDArray[Any], num_labels: int, num_severities: int) -> None:
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[3] not in (1, 3):
            raise DataError(
                f"{path}: {x.dtype} of shape {x.shape}, where there should be bytes of shape "
                f"(rows, height, width, channels); {self.remedy}"
            )
        num_images = self.num_images or num_labels // num_severities
        rows = num_severities * num_images
        if not len(x) == num_labels == rows > 0:
            raise DataError(
                f"{path}: {len(x)} images and {num_labels} labels, where {num_severities} "
                f"severities of {num_images} images make {rows}; {self.remedy}"
            )


@final
@dataclass(frozen=True)
class CorruptedFolders(CorruptedSet):
    """`<type>/<severity>/<class>/<image>`, decoded when they are read."""

    directory: Path
    kinds: tuple[str, ...] = CORRUPTIONS
    extra_kinds: tuple[str, ...] = EXTRA_CORRUPTIONS
    remedy: str = REMEDY

    @property
    def severities(self) -> tuple[int, ...]:
        """All five, unless the manifest says otherwise."""
        return tuple(_manifest(self.directory).get("severities", SEVERITIES))

    def read(self, subset: str) -> ImageFiles:
        """Return the images of one type and severity."""
        return scan(self.directory / subset, self.remedy)


@final
@dataclass(frozen=True)
class CorruptedOnRead(CorruptedSet):
    """The test images of a small set, corrupted in memory when they are read."""

    clean: ImageSet
    kinds: tuple[str, ...] = CORRUPTIONS
    extra_kinds: tuple[str, ...] = EXTRA_CORRUPTIONS

    def read(self, subset: str) -> Images:
        """Return the images of one type and severity."""
        return _corrupted(self.clean, *subset.split("/"))


@cache
def _corrupted(clean: ImageSet, kind: str, severity: str) -> Images:
    """Cached, because all runs of a process read the same small sets."""
    images = clean.read("test")
    assert isinstance(images, Images)
    corrupted = corrupt(images.x.permute(0, 2, 3, 1).numpy(), kind, int(severity))
    x = torch.from_numpy(corrupted).permute(0, 3, 1, 2)
    return Images(x, images.y, images.class_names)


def _manifest(directory: Path) -> dict[str, Any]:
    """Read the manifest of a set that was written here; empty for other sets."""
    path = directory / MANIFEST
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: not a manifest ({error}); write the set again") from None


@dataclass(frozen=True)
class Corruption:
    """Which corrupted copies to write.

    Attributes:
        kinds: types of corruption.
        severities: from 1 to 5.
        seed: of all random numbers.
        image_size: what image files are resized and cropped to first.
    """

    kinds: tuple[str, ...] = CORRUPTIONS
    severities: tuple[int, ...] = SEVERITIES
    seed: int = 0
    image_size: int = 224

    def __post_init__(self) -> None:
        """Refuse unknown types and severities."""
        for name, chosen, legal in (
            ("type", self.kinds, ALL_CORRUPTIONS),
            ("severity", self.severities, SEVERITIES),
        ):
            for value in chosen:
                if value not in legal:
                    known = choices(value, map(str, legal))
                    raise DataError(f"unknown {name} '{value}'; {known}")


def write_corrupted(
    images: LabelledImages,
    name: str,
    out: Path,
    corruption: Corruption,
    report: Report = lambda kind, done, total: None,
) -> None:
    """Write corrupted copies of labelled images, in the published layouts.

    Args:
        images: in memory, which become arrays, or files, which become files.
        name: of the set, noted in the manifest.
        out: the directory to write to; empty, or of a run with the same arguments to continue.
        corruption: which copies.
        report: is told about the progress of each type.
    """
    images = images.resized(corruption.image_size, 3)
    if not images.class_names:
        raise DataError(f"{name}: no labels; a corrupted set is written with labels")
    if isinstance(images, ImageFiles):
        _check_targets(images)
    with explain_full_disk(out):
        _write_manifest(out, name, images, corruption)
        if isinstance(images, ImageFiles):
            _write_files(images, out, corruption, report)
        elif isinstance(images, Images):
            _write_arrays(images, out, corruption, report)


def _write_manifest(out: Path, name: str, images: LabelledImages, corruption: Corruption) -> None:
    """Note in `out` what it will hold, or check that it holds just that."""
    wanted = {
        "set": name,
        "images": len(images),
        "shape": list(images.shape),
        "severities": list(corruption.severities),
        "seed": corruption.seed,
        "pixels": PIXELS,
    }
    found = _manifest(out)
    if found and found != wanted:
        raise DataError(
            f"{out}: holds {found}, not {wanted}; choose another directory, or delete it"
        )
    if not found and out.is_dir() and any(out.iterdir()):
        raise DataError(
            f"{out}: not empty, and not written by this command; choose another directory"
        )
    write_text(out / MANIFEST, json.dumps(wanted))


def _write_arrays(images: Images, out: Path, corruption: Corruption, report: Report) -> None:
    label_type = np.uint8 if len(images.class_names) <= 256 else np.int64
    labels = images.y.repeat(len(corruption.severities)).numpy().astype(label_type)
    with replacing(out / "labels.npy") as part, part.open("wb") as file:
        np.save(file, labels)
    pixels = images.x.permute(0, 2, 3, 1).numpy()
    shape = (len(labels), *pixels.shape[1:])
    header = {"descr": pixels.dtype.str, "fortran_order": False, "shape": shape}
    for kind in corruption.kinds:
        path = out / f"{kind}.npy"
        if not path.exists():
            with replacing(path) as part, part.open("wb") as file:
                np.lib.format.write_array_header_1_0(file, header)
                for chunk in _chunks(pixels, kind, corruption, report):
                    file.write(chunk.tobytes())
        report(kind, shape[0], shape[0])


def _chunks(
    pixels: NDArray[np.uint8], kind: str, corruption: Corruption, report: Report
) -> Iterator[NDArray[np.uint8]]:
    """Yield all severities of one type, chunk by chunk."""
    total = len(corruption.severities) * len(pixels)
    for number, severity in enumerate(corruption.severities):
        for start in range(0, len(pixels), CHUNK):
            report(kind, number * len(pixels) + start, total)
            chunk = pixels[start : start + CHUNK]
            indices = range(start, start + len(chunk))
            yield corrupt(chunk, kind, severity, indices=indices, seed=corruption.seed)


def _write_files(files: ImageFiles, out: Path, corruption: Corruption, report: Report) -> None:
    total = len(corruption.severities) * len(files)
    for kind in corruption.kinds:
        for number, severity in enumerate(corruption.severities):
            final = out / kind / str(severity)
            part = out / kind / f".{severity}.part"
            if not final.exists():
                for start in range(0, len(files), CHUNK):
                    report(kind, number * len(files) + start, total)
                    indices = range(start, min(start + CHUNK, len(files)))
                    _write_batch(files, indices, part, kind, severity, corruption.seed)
                part.replace(final)
        report(kind, total, total)


def _check_targets(files: ImageFiles) -> None:
    """Refuse images whose names differ in their suffix alone: one would overwrite the other."""
    sources: dict[Path, Path] = {}
    for index in range(len(files)):
        source, target = files.path(index), _target(files, index)
        if target in sources:
            raise DataError(
                f"{sources[target]} and {source.name} would both become {target}; rename one"
            )
        sources[target] = source


def _target(files: ImageFiles, index: int) -> Path:
    """Return the path of a corrupted image inside the folder of its type and severity."""
    return files.path(index).relative_to(files.folder).with_suffix(".JPEG")


def _write_batch(
    files: ImageFiles, indices: range, folder: Path, kind: str, severity: int, seed: int
) -> None:
    from PIL import Image

    pixels = files.decode(indices).permute(0, 2, 3, 1).numpy()
    corrupted = corrupt(np.ascontiguousarray(pixels), kind, severity, indices=indices, seed=seed)
    for index, image in zip(indices, corrupted, strict=True):
        path = folder / _target(files, index)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, quality=JPEG_QUALITY, optimize=True)
