"""Pictures that are drawn from kept rows name them with a digest, so that an old one is noticed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from result_tables import RESULTS

IMAGES = RESULTS.parent / "images"
SOURCE = re.compile(r"([\w-]+\.csv) ([0-9a-f]{16})")


def save(figure: Figure, file: Path, names: Sequence[str]) -> None:
    """Write a picture and print where it is.

    Args:
        figure: the drawing.
        file: an .svg file to write.
        names: of the files in docs/results that it is drawn from.
    """
    source = ", ".join(f"{name} {digest(name)}" for name in names)
    figure.savefig(file, metadata={"Date": None, "Source": source})
    print(file)


def digest(name: str) -> str:
    """64 bits of a file in docs/results.

    Args:
        name: of the file.
    """
    return hashlib.blake2b((RESULTS / name).read_bytes(), digest_size=8).hexdigest()


def sources(picture: Path) -> dict[str, str]:
    """What a picture was drawn from: digests by name of the file, none of other pictures.

    Args:
        picture: an .svg file.
    """
    return dict(SOURCE.findall(picture.read_text("utf-8")))
