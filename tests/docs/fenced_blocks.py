"""What the documentation shows: its pages, their fenced blocks and the commands in them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    text: str
    line: int


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start()) + 2)
        for found in FENCE.finditer(text)
    ]


def commands(page: Path, program: str) -> Iterator[str]:
    """What begins with `program` in blocks for a shell and in code spans, one line each."""
    shown = [block.text for block in blocks(page) if block.language in ("", "bash")]
    whole = [re.sub(r"\s*\\\n\s*", " ", text) for text in shown]  # lines that go on are one
    lines = [line for text in whole for line in text.splitlines()]
    spans = re.findall(r"`([^`]+)`", FENCE.sub("", page.read_text(encoding="utf-8")))
    for line in [*lines, *(" ".join(span.split()) for span in spans)]:
        line = re.split(r" #|\s{3,}", line.strip())[0].removeprefix(".venv/bin/")
        if line.split()[:1] == [program]:
            yield line
