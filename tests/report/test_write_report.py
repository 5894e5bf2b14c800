import csv
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from density_softmax.errors import UserError
from density_softmax.report import run_summary, write_report
from density_softmax.runs.rows import read_rows
from density_softmax.types import Row

MakeRun = Callable[..., Path]
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Checks that tags close in order, and gathers links, headings and words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_is_well_formed_and_complete(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    for section in ("Results", "Surfaces", "Seeds", "Training curves", "How it was run"):
        assert section in page.words
    for method in ("ERM", "Density-Softmax", 'Density-Softmax (layers=["<b>&amp;"])'):
        assert method in page.words
    assert "density-softmax train toy --method deterministic --seed 2" in page.words
    assert '"shape": "two_moons"' in page.words
    assert "lightning-fabric" in page.words


def test_the_page_needs_nothing_else(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "_embed")
        assert (attributes.get("src") or "data:").startswith("data:")
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"https?://|@import|url\(", text)
    anchors = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    links = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert links == {f"#{anchor}" for anchor in anchors}


def test_figures_have_words_for_those_who_cannot_see_them(report: Path) -> None:
    images = [a for tag, a in Page(report.read_text(encoding="utf-8")).tags if tag == "img"]
    assert len(images) == 3 + 1 + 1
    assert all(image["alt"] for image in images)


def test_tables_can_be_sorted_from_the_keyboard(report: Path) -> None:
    tags = Page(report.read_text(encoding="utf-8")).tags
    heads = [n for n, (tag, a) in enumerate(tags) if tag == "th" and a.get("scope") == "col"]
    assert heads
    for head in heads:
        assert tags[head][1]["aria-sort"] == "none"
        assert tags[head + 1][0] == "button"


def test_what_is_left_out_is_said(report: Path) -> None:
    page = Page(report.read_text(encoding="utf-8"))
    assert "(SNGP, seed 0): unfinished" in page.words
    assert "unfinished" in (report.parent / "tables" / "results.txt").read_text(encoding="utf-8")


def test_every_row_is_in_rows_csv(tmp_path: Path, make: MakeRun) -> None:
    runs = [make(seed=seed, drawn=False) for seed in range(3)]
    write_report(runs, tmp_path / "out")
    expected = [row for run in runs for row in read_rows(run / "rows.csv")]
    assert read_rows(tmp_path / "out" / "rows.csv") == expected


def test_every_figure_of_a_single_seed_is_in_a_table(tmp_path: Path, make: MakeRun) -> None:
    run = make(drawn=False)
    page = write_report([run], tmp_path / "out")
    cells = {
        cell
        for file in (page.parent / "tables").glob("*.csv")
        for line in csv.reader(file.read_text(encoding="utf-8").splitlines())
        for cell in line
    }
    assert {repr(row.value) for row in read_rows(run / "rows.csv")} <= cells


def test_each_table_is_written_as_csv_latex_and_text(report: Path) -> None:
    folder = report.parent / "tables"
    stems = {file.stem for file in folder.glob("*.csv")}
    assert stems == {
        f"toy-{name}" for name in ("results", "iid", "ood-cluster", "cost", "training", "methods")
    }
    assert {file.stem for file in folder.glob("*.tex")} == stems
    assert {file.stem for file in folder.glob("*.txt")} == stems | {"results"}


def test_each_figure_is_written_for_print_and_screen(report: Path) -> None:
    names = [f"two_moons-{name}" for name in ("variance", "entropy", "margin")]
    names += ["toy-curves", "toy-seeds"]
    expected = {f"{name}.{ending}" for name in names for ending in ("svg", "pdf", "png")}
    assert {file.name for file in (report.parent / "figures").iterdir()} == expected


def test_small_files_of_runs_make_the_same_tables(
    tmp_path: Path, make_images: MakeRun, undrawn: list[Figure]
) -> None:
    for kind in ("deterministic", "density_softmax"):
        make_images(kind)
    copied = tmp_path / "copied"
    copytree(tmp_path / "runs", copied, ignore=ignore_patterns("*.safetensors"))
    whole, small = (
        write_report([runs], tmp_path / "out" / runs.name).parent
        for runs in (tmp_path / "runs", copied)
    )
    tables = [file.relative_to(whole) for file in (whole / "tables").iterdir()]
    for table in [*tables, Path("rows.csv")]:
        assert (small / table).read_bytes() == (whole / table).read_bytes()


def test_unfinished_runs_alone_make_a_page_that_says_so(tmp_path: Path, make: MakeRun) -> None:
    make(finished=False)
    page = Page(write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8"))
    assert "No finished run" in page.words
    assert "unfinished" in page.words


def test_no_run_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=str(tmp_path)):
        write_report([tmp_path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_report_does_not_replace_the_files_of_a_run(tmp_path: Path, make: MakeRun) -> None:
    run = make()
    before = (run / "rows.csv").read_bytes()
    with pytest.raises(UserError, match="choose another --out"):
        write_report([run], run)
    assert (run / "rows.csv").read_bytes() == before


def test_a_report_can_be_written_again(tmp_path: Path, make: MakeRun) -> None:
    run = make(drawn=False)
    first = write_report([run], tmp_path / "out").read_bytes()
    assert write_report([run], tmp_path / "out").read_bytes() == first


def test_a_run_summary_loads_nothing_that_only_reports_need() -> None:
    code = "import sys; from density_softmax.report import run_summary; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert not {"pandas", "matplotlib", "jinja2"} & loaded


@pytest.mark.parametrize("command", [["report", "runs"], ["demo", "--out", "out"]])
def test_without_pandas_the_extra_is_named_before_anything_is_done(
    tmp_path: Path, command: list[str]
) -> None:
    code = "import sys; sys.modules['pandas'] = None; from density_softmax.cli import main; main()"
    words = [sys.executable, "-c", code, *command]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    message = "density-softmax: reports need pandas: pip install 'density-softmax[report]'\n"
    assert (done.returncode, done.stderr) == (2, message)
    assert not list(tmp_path.iterdir())


def test_a_run_summary_shows_every_figure_but_those_of_single_shifts() -> None:
    rows = [
        Row("r", "m", "default", 0, "iid", "nll", 0.25),
        Row("r", "m", "default", 0, "set-c/fog/3", "nll", 0.75),
        Row("r", "m", "default", 0, "set-c", "cnll", 0.5),
        Row("r", "m", "default", 0, "[bold]two\nlines", "confidence", 0.5),
    ]
    console = Console(width=80)
    with console.capture() as capture:
        console.print(run_summary(rows))
    assert "0.25" in capture.get()
    assert "cnll" in capture.get()
    assert "[bold]two lines" in capture.get()
    assert "0.75" not in capture.get()
