"""Tables that are written from rows are what their rows say, and the script notices when not."""

import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fenced_blocks import ROOT, name

from density_softmax.runs.rows import read_rows, write_rows
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


@pytest.mark.parametrize("script", ["detection", "severities", "trained"])
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


def test_every_table_has_rows_of_a_known_commit() -> None:
    assert {table.rows for table in layouts.TABLES.values()} == set(tables.commits())


@pytest.fixture
def markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The lines of a table of `nll` and other metrics below its head, from rows of commit 01234."""
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    (tmp_path / "commits.csv").write_text("rows,commit\ngrid,01234\n", encoding="utf-8")

    def markdown(rows: Sequence[Row], table: layouts.Table) -> list[str]:
        write_rows(tmp_path / "grid.csv", rows)
        tables.kept.cache_clear()
        return tables.markdown(table).splitlines()[2:]

    return markdown


KNN, NLL = layouts.Line("kNN", "knn"), layouts.Column("NLL", "iid", "nll", layouts.three)


def row(value: float, method: str = "knn", **changes: Any) -> Row:
    return Row("r", method, "default", 0, "iid", "nll", value)._replace(**changes)


def table(*columns: layouts.Column, lines: Sequence[layouts.Line] = (KNN,), **more: Any) -> Any:
    return layouts.Table("grid", "r", lines, columns, "the command", **more)


def test_a_table_names_its_command_its_commit_and_what_has_not_been_run(
    markdown: Callable[..., list[str]],
) -> None:
    assert markdown([row(1.0)], table(NLL, lines=[KNN, layouts.Line("GEN", "gen")])) == [
        "| kNN | 1.000 |",
        "",
        "*`the command`, commit 01234. Not run yet: GEN.*",
    ]


def test_a_difference_is_bold_where_its_interval_excludes_0(
    markdown: Callable[..., list[str]],
) -> None:
    found = {"difference": -0.2, "difference_low": -0.3, "difference_high": -0.1}
    rows = [row(value, metric=f"{key}:nll") for key, value in found.items()]
    column = NLL._replace(metric="difference:nll", form=layouts.signed)
    assert markdown(rows, table(column))[0] == "| kNN | **−0.200 [−0.300, −0.100]** |"


def test_several_seeds_become_a_mean_and_a_deviation(markdown: Callable[..., list[str]]) -> None:
    rows = [row(value, seed=seed) for seed, value in enumerate([1.0, 3.0])]
    columns = [NLL, NLL._replace(metric="ece")]
    assert markdown(rows, table(*columns))[0] == "| kNN | 2 | 2.000 ± 1.414 | – |"


def test_several_splits_become_a_mean_or_a_median(markdown: Callable[..., list[str]]) -> None:
    values = {"set/a/1": 1.0, "set/b/1": 2.0, "set/c/1": 6.0, "set/a/2": 100.0}
    rows = [row(value, split=split) for split, value in values.items()]
    columns = [NLL._replace(split=""), NLL._replace(split="", over=statistics.median)]
    found = markdown(rows, table(*columns, lines=[KNN._replace(split="set/*/1")]))
    assert found[0] == "| kNN | 3.000 | 2.000 |"


def test_a_table_has_the_rows_of_its_setting_alone(markdown: Callable[..., list[str]]) -> None:
    variants = {"default": 1.0, "a=1": 2.0, "b=2, a=1": 3.0, "b=2": 4.0}
    rows = [row(value, variant=text) for text, value in variants.items()]
    lines = [KNN, layouts.Line("changed", "knn", "b=*")]
    found = markdown(rows, table(NLL, lines=lines, setting="a=1"))
    assert found[:2] == ["| kNN | 2.000 |", "| changed | 3.000 |"]


def test_rows_of_the_same_commit_are_added_to_and_those_of_another_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    lines = [KNN, layouts.Line("GEN", "gen")]
    monkeypatch.setitem(layouts.TABLES, "grid", table(NLL, lines=lines))
    (tmp_path / "commits.csv").write_text("rows,commit\n", encoding="utf-8")

    def keep(commit: str, *rows: Row) -> list[Row]:
        write_rows(tmp_path / "rows.csv", rows)
        tables.keep("grid", tmp_path / "rows.csv", commit)
        return read_rows(tmp_path / "grid.csv")

    first, other, second = row(1.0), row(2.0, "gen"), row(4.0, seed=1)
    assert keep("a", first, other) == [first, other]
    changed = first._replace(value=3.0)
    assert keep("a", changed, second) == [other, changed, second]
    assert keep("b", other) == [other]


@pytest.mark.parametrize(
    ("values", "marked"),
    [
        ((0.1, 0.1, 0.1), True),
        ((0.1, 0.12, 0.11), True),
        ((0.1, 0.4, -0.1), False),
        ((0.1, 0.12), False),
    ],
)
def test_a_difference_is_marked_where_a_test_over_three_seeds_or_more_excludes_0(
    values: tuple[float, ...], marked: bool, markdown: Callable[..., list[str]]
) -> None:
    rows = [
        row(value, metric=f"difference{bound}:nll", seed=seed)
        for seed, value in enumerate(values)
        for bound in ("", "_low", "_high")
    ]
    column = NLL._replace(metric="difference:nll", form=layouts.signed)
    assert markdown(rows, table(column))[0].endswith("† |") == marked


def test_the_interval_of_several_seeds_is_the_mean_of_theirs(
    markdown: Callable[..., list[str]],
) -> None:
    bounds = {
        "difference": (-0.2, -0.1),
        "difference_low": (-0.3, -0.3),
        "difference_high": (0, 0.2),
    }
    rows = [
        row(value, metric=f"{key}:nll", seed=seed)
        for key, values in bounds.items()
        for seed, value in enumerate(values)
    ]
    column = NLL._replace(metric="difference:nll", form=layouts.signed)
    assert markdown(rows, table(column))[0] == "| kNN | 2 | −0.150 [−0.300, +0.100] |"
