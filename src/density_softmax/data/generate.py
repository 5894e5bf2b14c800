"""Corrupted copies of any image set, written in the published layouts.

Arrays become `<type>.npy` with the severities one after another, and `labels.npy`; image files
become `<type>/<severity>/<class>/<image>.JPEG`. What has its final name is whole: a run that was
stopped goes on with the types (of arrays) or the severities (of files) that are missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from density_softmax.data.catalog import find_images
from density_softmax.data.corrupted import MANIFEST, manifest
from density_softmax.data.corruptions import ALL_CORRUPTIONS, CORRUPTIONS, SEVERITIES, corrupt
from density_softmax.data.folders import ImageFiles
from density_softmax.data.images import Images, Samples
from density_softmax.data.readers import DataError, Report, full_disk_named
from density_softmax.files import write_text

__all__ = ["Corruption", "corrupt_set"]

# Images corrupted at a time, between two reports of progress.
CHUNK = 256
# The quality at which ImageNet-C was saved.
JPEG_QUALITY = 85


@dataclass(frozen=True)
class Corruption:
    """What to make.

    Attributes:
        kinds: types of corruption.
        severities: from 1 to 5.
        seed: of all random numbers.
        image_size: what image files are cut to first.
    """

    kinds: tuple[str, ...] = CORRUPTIONS
    severities: tuple[int, ...] = SEVERITIES
    seed: int = 0
    image_size: int = 224

    def __post_init__(self) -> None:
        """Refuse what cannot be made."""
        for name, chosen, legal in (
            ("type", self.kinds, ALL_CORRUPTIONS),
            ("severity", self.severities, SEVERITIES),
        ):
            for value in chosen:
                if value not in legal:
                    known = ", ".join(map(str, legal))
                    raise DataError(f"unknown {name} '{value}'; there are: {known}")


def corrupt_set(
    text: str, root: Path, out: Path, wanted: Corruption, report: Report | None = None
) -> None:
    """Corrupt the test part of a set, or all of a set without parts, and write it to `out`."""
    report = report or (lambda kind, done, total: None)
    selection = find_images(text, root)
    if len(selection.parts) != 1:
        raise DataError(f"{text} has {len(selection.parts)} parts; choose one of them to corrupt")
    samples = selection.images.read(selection.parts[0]).sized(wanted.image_size, 3)
    if not samples.class_names:
        raise DataError(f"{text}: no labels; a corrupted set is written with them")
    if isinstance(samples, ImageFiles):
        _check_targets(samples)
    with full_disk_named(out):
        _claim(out, text, samples, wanted)
        if isinstance(samples, ImageFiles):
            _write_files(samples, out, wanted, report)
        elif isinstance(samples, Images):
            _write_arrays(samples, out, wanted, report)


def _claim(out: Path, text: str, samples: Samples, wanted: Corruption) -> None:
    """Note in `out` what it will hold, or make sure that it holds just that."""
    note = {
        "set": text,
        "images": len(samples),
        "shape": list(samples.shape),
        "severities": list(wanted.severities),
        "seed": wanted.seed,
    }
    found = manifest(out)
    if found and found != note:
        raise DataError(f"{out}: holds {found}, not {note}; choose another directory, or delete it")
    if not found and out.is_dir() and any(out.iterdir()):
        raise DataError(f"{out}: not empty, and not written by this command; choose another")
    write_text(out / MANIFEST, json.dumps(note))


def _write_arrays(images: Images, out: Path, wanted: Corruption, report: Report) -> None:
    kind_of_label = np.uint8 if len(images.class_names) <= 256 else np.int64
    labels = images.y.repeat(len(wanted.severities)).numpy().astype(kind_of_label)
    _write_npy(out / "labels.npy", labels.shape, labels.dtype, [labels])
    pixels = images.x.permute(0, 2, 3, 1).numpy()
    shape = (len(labels), *pixels.shape[1:])
    for kind in wanted.kinds:
        path = out / f"{kind}.npy"
        if not path.exists():
            _write_npy(path, shape, pixels.dtype, _corrupted(pixels, kind, wanted, report))
        report(kind, shape[0], shape[0])


def _corrupted(
    pixels: NDArray[np.uint8], kind: str, wanted: Corruption, report: Report
) -> Iterator[NDArray[np.uint8]]:
    """All severities of one type, piece by piece."""
    for place, severity in enumerate(wanted.severities):
        for start in range(0, len(pixels), CHUNK):
            report(kind, place * len(pixels) + start, len(wanted.severities) * len(pixels))
            chunk = pixels[start : start + CHUNK]
            indices = range(start, start + len(chunk))
            yield corrupt(chunk, kind, severity, indices=indices, seed=wanted.seed)


def _write_npy(
    path: Path, shape: Sequence[int], dtype: np.dtype[Any], chunks: Iterable[NDArray[Any]]
) -> None:
    """Write an array piece by piece; the file gets its name when it is whole."""
    part = path.with_name(f".{path.name}.part")
    header = {"descr": dtype.str, "fortran_order": False, "shape": tuple(shape)}
    with part.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in chunks:
            file.write(chunk.tobytes())
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _write_files(files: ImageFiles, out: Path, wanted: Corruption, report: Report) -> None:
    total = len(wanted.severities) * len(files)
    for kind in wanted.kinds:
        for place, severity in enumerate(wanted.severities):
            final = out / kind / str(severity)
            part = out / kind / f".{severity}.part"
            if not final.exists():
                for start in range(0, len(files), CHUNK):
                    report(kind, place * len(files) + start, total)
                    indices = range(start, min(start + CHUNK, len(files)))
                    _write_batch(files, indices, part, kind, severity, wanted.seed)
                part.replace(final)
        report(kind, total, total)


def _check_targets(files: ImageFiles) -> None:
    """Refuse images that differ in the ending of their names alone: one would replace the other."""
    sources: dict[Path, Path] = {}
    for index in range(len(files)):
        source, target = files.path(index), _target(files, index)
        if target in sources:
            raise DataError(
                f"{sources[target]} and {source.name} would both become {target}; rename one"
            )
        sources[target] = source


def _target(files: ImageFiles, index: int) -> Path:
    """Where a corrupted image goes, below the folder of its type and severity."""
    return files.path(index).relative_to(files.folder).with_suffix(".JPEG")


def _write_batch(
    files: ImageFiles, indices: range, folder: Path, kind: str, severity: int, seed: int
) -> None:
    pixels = files.decode(indices).permute(0, 2, 3, 1).numpy()
    corrupted = corrupt(np.ascontiguousarray(pixels), kind, severity, indices=indices, seed=seed)
    for index, image in zip(indices, corrupted, strict=True):
        path = folder / _target(files, index)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, quality=JPEG_QUALITY, optimize=True)
