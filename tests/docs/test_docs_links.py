"""Links between the pages of the documentation lead somewhere."""

import re

import pytest
from fenced_blocks import FENCE, PAGES, ROOT, name
from markdown.extensions.toc import slugify

LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:benchmarks|docs|examples|src|tests)/[\w./-]*)`")


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {slugify(heading.replace("`", ""), "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name)
def test_relative_links_lead_to_files_and_their_headings(page):
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue  # other hosts are not asked
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_are_named_are_there(page):
    for path in PATH.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), path
