"""What the command line prints on: names of files, sets and runs are shown as they are."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text


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
