"""The built site loads nothing from other hosts, so that it works without a network."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

log = logging.getLogger("mkdocs.hooks.no_other_hosts")

# What a browser fetches by itself; links to click on are not among it.
FETCHED = {
    "*.html": re.compile(
        r"""<(?:script|link|img|iframe|source|video|object)\b[^>]*?"""
        r"""\b(?:src|href|srcset|data)=["']?((?:https?:)?//[^"'\s>]+)"""
    ),
    "*.css": re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)"""),
}


def on_post_build(config: MkDocsConfig) -> None:
    """Warn of everything that would be fetched; a strict build fails on it."""
    for pattern, fetched in FETCHED.items():
        for file in sorted(Path(config.site_dir).rglob(pattern)):
            for address in fetched.findall(file.read_text(encoding="utf-8")):
                log.warning("%s loads %s", file.relative_to(config.site_dir), address)
