"""Names of sets, runs and variants are data: whatever they hold, a report shows it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from comparison import setting
from matplotlib.figure import Figure
from matplotlib.text import Text

from conftest import claim, prediction
from density_softmax.report import write_report
from density_softmax.report.style import add_legend, lined_figure, paper_style
from density_softmax.runs.evaluation import detection_metrics, label_metrics, mean_over_shifts
from density_softmax.runs.run import Run

NAMES = [
    "a$b$c",
    r"x\$y{^",
    "[bold]x[/]",
    "<script>alert(1)<script>",
    "two\nlines\u2028three",
    "%_&#~",
    "_hidden",
    "猫🙂",
    "\u202eright to left",
    "",
    "x" * 300,
    "ä" * 200,
    "\x1b[31mred",
    "\udcff",
    ":smile:",
]


def make_named(root: Path, name: str, method: str = "density_softmax") -> Run:
    """A run on an OOD set of that name, on a corrupted and on a shifted one."""
    run, row = claim(root, "digits", method, (), 0)
    splits = ["iid", f"{name}.1", f"{name}-c/fog/1", f"{name}-c/fog/2"]
    found, inside = {}, None
    for number, split in enumerate([*splits, name, "train"]):
        predicted, labels = prediction(40, 1 + number / 2, number)
        run.save_prediction(split, predicted, labels)
        inside = inside or predicted
        if split in splits:
            found[split] = label_metrics(predicted, labels)
        elif split == name:
            found[split] = detection_metrics(inside, predicted)
    found |= mean_over_shifts(found)
    run.save_rows([row(s, m, v) for s, values in found.items() for m, v in values.items()])
    return run


def texts_of(figure: Figure) -> list[str]:
    return [artist.get_text() for artist in figure.findobj(Text)]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_report_shows_sets_of_any_name(tmp_path: Path, undrawn: list[Figure], name: str) -> None:
    make_named(tmp_path / "runs", name)
    page = write_report([tmp_path / "runs"], tmp_path / "out")
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert not re.search("[\x1b\u202e\u2028]", text)
    assert len(undrawn) >= 7
    for figure in undrawn:
        figure.canvas.draw()  # type: ignore[attr-defined]
    for file in (page.parent / "tables").glob("*.tex"):
        lines = file.read_text(encoding="utf-8").split("\n")
        assert {line[:1] for line in lines[: lines.index(r"\toprule") - 1]} == {"%"}, file


def test_sets_whose_names_differ_by_what_file_names_fold_have_files_of_their_own(
    tmp_path: Path, undrawn: list[Figure]
) -> None:
    run, row = claim(tmp_path / "runs", "digits", "deterministic", (), 0)
    names = ("a b", "a-b", "A-B", "a$b")
    run.save_rows([row(name, "auroc:entropy", n / 10) for n, name in enumerate(names)])
    page = write_report([tmp_path / "runs"], tmp_path / "out")
    tables = (page.parent / "tables").glob("*ood*.csv")
    shown = {file.read_text(encoding="utf-8").splitlines()[1] for file in tables}
    assert shown == {f"ERM,1,{n / 10}," for n in range(len(names))}


def test_figures_draw_names_and_no_formulas() -> None:
    with paper_style():
        figure, _ = lined_figure(["a$b$", "猫", "x_1"], [r"\frac{$1$"], 1)
        figure.canvas.draw()  # type: ignore[attr-defined]
    shown = [text.replace(r"\$", "$") for text in texts_of(figure)]
    for expected in ("a$b$", "[U+732B]", "x_1", r"\frac{$1$"):
        assert expected in shown


def test_legends_stay_inside_their_figure() -> None:
    with paper_style():
        figure, (axes,) = lined_figure(["a"], ["b"], 1)
        handles = [axes.plot([0, 1], [0, 1], label="abcdefghij" * 30)[0] for _ in range(3)]
        add_legend(figure, handles, 3)
        figure.canvas.draw()  # type: ignore[attr-defined]
        box = figure.legends[0].get_window_extent()
    assert box.width <= 1.15 * figure.bbox.width


def test_a_run_directory_may_have_any_name(
    tmp_path: Path, undrawn: list[Figure], make: Callable[..., Path]
) -> None:
    odd = tmp_path / "runs" / "[red]\x1b[2J<b>\n"
    make(finished=False).rename(odd)
    text = write_report([tmp_path / "runs"], tmp_path / "out").read_text(encoding="utf-8")
    assert "[red] [2J&lt;b&gt;" in text
    results = (tmp_path / "out" / "tables" / "results.txt").read_text(encoding="utf-8")
    assert results.count("\n") == 1
    assert "\x1b" not in results


def test_a_setting_reads_the_predictions_of_a_set_with_a_long_name(tmp_path: Path) -> None:
    run = make_named(tmp_path / "runs", "ä" * 200)
    assert run.has_prediction("ä" * 200)
    assert setting(tmp_path / "runs").predicted("ä" * 200)[0].path == run.path
