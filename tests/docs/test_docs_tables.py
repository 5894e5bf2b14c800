"""Tables that are written from rows are what their rows say, and the script notices when not."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fenced_blocks import ROOT, name

from density_softmax.runs.rows import write_rows
from density_softmax.types import Row

sys.path.insert(0, str(ROOT / "docs" / "drawing"))
import pictures
import result_tables as tables
import table_layouts as layouts

PAGES = [page for page in tables.pages() if tables.PLACE.search(page.read_text("utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_tables_of_a_page_are_what_their_rows_say(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text == tables.written(text), "run: python docs/drawing/result_tables.py"


@pytest.mark.parametrize("script", ["detection", "trained"])
def test_a_picture_of_rows_was_drawn_from_what_is_kept(script: str) -> None:
    drawn = [pictures.sources(file) for file in pictures.IMAGES.glob(f"{script}*.svg")]
    assert drawn
    for found in drawn:
        assert found == {name: pictures.digest(name) for name in found} != {}, (
            f"run: python docs/drawing/{script}.py"
        )


def test_the_readme_has_such_a_table() -> None:
    assert ROOT / "README.md" in PAGES


def test_every_line_of_a_shown_table_has_rows_or_is_said_to_be_missing() -> None:
    shown = {found[2] for page in PAGES for found in tables.PLACE.finditer(page.read_text("utf-8"))}
    for each in (layouts.TABLES[found] for found in shown):
        text = tables.markdown(each)
        missing = text.partition("Not run yet:")[2]
        assert bool(missing) <= bool(each.grid)
        for line in each.lines:
            found = f"| {line.label} |" in text or line.label.strip("*") in missing
            assert found or layouts.is_itself(each, line)


# How a line of a method begins that only `train` makes, by its name or its registry key.
TRAINED = r"\| \W*(ERM|deterministic|Deep Ensemble|deep_ensemble)\b"


def handwritten(text: str) -> Iterator[str]:
    """The sections with a table of trained methods and their results that nothing generates."""
    section, head = "", ""
    for line in tables.PLACE.sub("", text).splitlines():
        if line.startswith("#"):
            section = line.strip("# ")
        head = (head or line) if line.startswith("|") else ""
        if re.match(TRAINED, line) and re.search(r"\b(NLL|cNLL|ECE|AUROC)\b", head):
            yield section


@pytest.mark.parametrize("page", tables.pages(), ids=name)
def test_no_table_of_trained_methods_is_written_by_hand(page: Path) -> None:
    found = set(handwritten(page.read_text("utf-8")))
    assert not found, "keep their rows under docs/results, and generate them"


def test_a_grid_names_its_commit_and_what_has_not_been_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / "grid.csv", [Row("r", "knn", "default", 0, "iid", "nll", 1.0)])
    (tmp_path / "commits.csv").write_text("rows,commit\ngrid,0123456789\n", encoding="utf-8")
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    lines = [layouts.Line("kNN", "knn"), layouts.Line("GEN", "gen")]
    columns = [layouts.Column("NLL", "iid", "nll", layouts.three)]
    table = layouts.Table("grid", "r", lines, columns, "the command")
    assert tables.markdown(table).splitlines()[-3:] == [
        "| kNN | 1.000 |",
        "",
        "*`the command`, commit 0123456. Not run yet: GEN.*",
    ]


def test_a_difference_is_bold_where_its_interval_excludes_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"difference": -0.2, "difference_low": -0.3, "difference_high": -0.1}
    rows = [Row("r", "knn", "default", 0, "iid", f"{key}:nll", v) for key, v in found.items()]
    write_rows(tmp_path / "one.csv", rows)
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    columns = [layouts.Column("NLL", "iid", "difference:nll", layouts.signed)]
    table = layouts.Table("one", "r", [layouts.Line("kNN", "knn")], columns)
    assert tables.markdown(table).splitlines()[-1] == "| kNN | **−0.200 [−0.300, −0.100]** |"


def test_several_seeds_become_a_mean_and_a_deviation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        Row("r", "knn", "default", seed, "iid", "nll", value) for seed, value in enumerate([1, 3])
    ]
    write_rows(tmp_path / "seeds.csv", rows)
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    columns = [layouts.Column("NLL", "iid", metric, layouts.three) for metric in ("nll", "ece")]
    table = layouts.Table("seeds", "r", [layouts.Line("kNN", "knn")], columns)
    assert tables.markdown(table).splitlines()[-1] == "| kNN | 2.000 ± 1.414 | – |"
