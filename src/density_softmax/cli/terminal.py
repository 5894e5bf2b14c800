"""What the command line prints on: names of files, sets and runs are shown as they are."""

from __future__ import annotations

import errno
import os
from typing import Any

from rich.console import Console
from rich.text import Text

# What a user can do about an error of the system.
REMEDIES = {
    errno.ENOSPC: "free some space and continue with --resume",
    errno.EDQUOT: "free some space and continue with --resume",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.EACCES: "check its permissions, or choose another path",
    errno.EPERM: "check its permissions, or choose another path",
    errno.EROFS: "choose a path that can be written to",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a file is where a folder is expected; choose another path",
    errno.EEXIST: "a file is where a folder is expected; choose another path",
    errno.EISDIR: "a folder is where a file is expected; choose another path",
    errno.ENOTEMPTY: "choose another path",
    errno.ELOOP: "a link leads back to itself; choose another path",
}
LONGEST = 150  # letters of a path in a message


class Terminal(Console):
    """A console that finds neither markup nor emoji in what it prints.

    Args:
        options: of rich's console.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """The text, without control characters that would act on the terminal."""
        return super().render_str(plain(text), **options)


def plain(text: str) -> str:
    """The text with its line breaks, and spaces for other signs that cannot be printed.

    Args:
        text: with any names in it.
    """
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)


def file_error(error: OSError) -> str:
    """What is wrong with a file that the system refuses, and the remedy.

    Args:
        error: one whose number is in `REMEDIES`.
    """
    reason = (error.strerror or str(error)).lower()
    text = f"{reason}: {REMEDIES[error.errno or 0]}"
    if error.filename is None:
        return text
    name = os.fsdecode(error.filename)
    shown = name if len(name) <= LONGEST else f"{name[:LONGEST]}..."
    return f"{shown}: {text}"
