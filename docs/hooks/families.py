"""`<!-- family: PATH -->` in a page becomes the documentation of all configs of that family."""

from __future__ import annotations

import re
from importlib import import_module

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from density_softmax.config import Family


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the members of each named family in its place."""
    return re.sub(r"<!-- family: (\S+) -->", lambda found: blocks(found[1]), markdown)


def blocks(path: str) -> str:
    """A block for mkdocstrings per member, behind an anchor that types elsewhere link to."""
    module, _, name = path.rpartition(".")
    family: type[Family] = getattr(import_module(module), name)
    anchor = f"[](){{ #{family.__module__}.{name} }}"
    return "\n\n".join([anchor, *(block(kind, each) for kind, each in family.members.items())])


def block(kind: str, config: type[Family]) -> str:
    """One member, headed by its name and kind: the part that the config is inside, or itself."""
    owner, nested, _ = config.__qualname__.partition(".Config")
    options = [f'heading: "{owner}: {kind}"', f'toc_label: "{owner}"']
    options += ["members: [Config]"] if nested else []
    indented = "\n".join(f"      {option}" for option in options)
    return f"::: {config.__module__}.{owner}\n    options:\n{indented}"
