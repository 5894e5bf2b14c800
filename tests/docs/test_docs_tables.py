"""Tables that are written from rows are what their rows say, and the script notices when not."""

import sys
from pathlib import Path

import pytest
from fenced_blocks import ROOT, name

from density_softmax.runs.rows import write_rows
from density_softmax.types import Row

sys.path.insert(0, str(ROOT / "docs" / "drawing"))
import result_tables as tables

PAGES = [page for page in tables.pages() if tables.PLACE.search(page.read_text("utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_tables_of_a_page_are_what_their_rows_say(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text == tables.written(text), "run: python docs/drawing/result_tables.py"


def test_the_readme_has_such_a_table() -> None:
    assert ROOT / "README.md" in PAGES


def test_every_line_of_a_shown_table_has_rows() -> None:
    shown = {found[2] for page in PAGES for found in tables.PLACE.finditer(page.read_text("utf-8"))}
    for each in (tables.TABLES[found] for found in shown):
        assert len(tables.markdown(each).splitlines()) == 2 + len(each.lines)


def test_several_seeds_become_a_mean_and_a_deviation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        Row("r", "knn", "default", seed, "iid", "nll", value) for seed, value in enumerate([1, 3])
    ]
    write_rows(tmp_path / "seeds.csv", rows)
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    columns = [tables.Column("NLL", "iid", metric, tables.three) for metric in ("nll", "ece")]
    table = tables.Table("seeds", "r", [tables.Line("kNN", "knn")], columns)
    assert tables.markdown(table).splitlines()[-1] == "| kNN | 2.000 ± 1.414 | – |"
