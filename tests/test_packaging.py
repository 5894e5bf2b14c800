"""What is in the repository and in its packages."""

import re
from pathlib import Path

import density_softmax

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "docs", "examples", "src", "tests")
MEGABYTE = 1_000_000


def test_no_file_is_larger_than_a_megabyte():
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.is_file()]
    assert not [file for file in files if file.stat().st_size > MEGABYTE]


def test_the_demo_installs_no_tools_of_developers():
    (recipe,) = re.findall(
        r"^\$\(VENV\)/\.demo:.*\n((?:\t.*\n)+)",
        (ROOT / "Makefile").read_text("utf-8"),
        re.MULTILINE,
    )
    assert "'.[report]'" in recipe
    assert "dev" not in recipe


def test_the_version_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"\n## {density_softmax.__version__}" in changelog
    assert f"\nversion: {density_softmax.__version__}\n" in citation
