"""A number and its deviation stay on one line: the spaces around ± do not break."""

from __future__ import annotations

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

NUMBER = re.compile(r"(?<=\d) (±|→) (?=[\d.])")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the spaces."""
    return NUMBER.sub("\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", html)
