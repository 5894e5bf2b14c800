import csv
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest
from comparison import finished, frame

from density_softmax.methods.base import MethodConfig
from density_softmax.recipes import RECIPES
from density_softmax.report import as_csv, as_html, as_latex, as_text
from density_softmax.report.frame import frame_of
from density_softmax.report.names import method_name
from density_softmax.report.paper import paper_penalties, paper_results, paper_shifts, paper_value
from density_softmax.report.tables import Table, build_tables, fold
from density_softmax.types import Row

FIGURES = list(
    csv.DictReader(
        resources.files("density_softmax.report")
        .joinpath("paper.csv")
        .read_text(encoding="utf-8")
        .splitlines()
    )
)


def results(recipe: str, method: str = "deterministic", variant: str = "default") -> Table:
    keys = [("iid", "nll"), ("iid", "accuracy"), ("cost", "params"), ("cost", "latency_ratio:1")]
    keys += [("svhn", "aupr:confidence"), ("svhn", "aupr:epistemic")]
    rows = [Row(recipe, method, variant, 0, *key, 0.5) for key in keys]
    return next(t for t in build_tables(frame(rows), paper_results()) if t.role == "results")


def quoted(table: Table) -> dict[str, list[float | None]]:
    """By note, what stands in the columns of the paper."""
    found = {}
    for number, column in enumerate(table.columns):
        cells = [line.cells[number] for line in table.lines]
        if column.quoted:
            found[column.note] = [None if cell is None else cell.mean for cell in cells]
    return found


def test_every_figure_has_a_method_and_a_recipe_of_ours() -> None:
    assert {figure["method"] for figure in FIGURES} <= set(MethodConfig.members)
    assert {figure["recipe"] for figure in FIGURES} <= set(RECIPES)


def test_all_of_the_papers_tables_are_there() -> None:
    methods = {"cifar10": 15, "cifar100": 15, "imagenet": 9}
    columns = {"cifar10": 11, "cifar100": 10, "imagenet": 8}
    for recipe, num_methods in methods.items():
        lines = paper_results()[recipe]
        assert len(lines) == num_methods
        assert {len(line) for line in lines.values()} == {columns[recipe]}
    assert {len(line) for line in paper_penalties()["cifar10"].values()} == {6}
    assert len(paper_penalties()["cifar10"]) == 7
    assert len(FIGURES) == 15 * 11 + 15 * 10 + 9 * 8 + 7 * 6


# From the text of the paper, which repeats these figures of its tables.
@pytest.mark.parametrize(
    ("recipe", "split", "metric", "value"),
    [
        ("cifar10", "cifar10-c", "cnll", 0.68),
        ("cifar10", "cifar10-c", "caccuracy", 0.792),
        ("cifar100", "cifar100-c", "cnll", 1.96),
        ("cifar100", "cifar100-c", "caccuracy", 0.547),
        ("imagenet", "imagenet-c", "cnll", 2.81),
        ("imagenet", "imagenet-c", "caccuracy", 0.446),
        ("cifar10", "cifar10.1-v6", "nll", 0.26),
        ("cifar10", "cifar10.1-v6", "accuracy", 0.916),
        ("cifar10", "cifar10.1-v6", "ece", 0.016),
        ("cifar10", "cifar10-c", "cece", 0.060),
        ("cifar100", "cifar100-c", "cece", 0.089),
        ("imagenet", "imagenet-c", "cece", 0.042),
        ("cifar100", "cifar10", "aupr:confidence", 0.804),
        ("imagenet", "iid", "accuracy", 0.775),
        ("imagenet", "cost", "params", 25.88e6),
    ],
)
def test_figures_are_those_that_the_papers_text_repeats(
    recipe: str, split: str, metric: str, value: float
) -> None:
    assert paper_value(recipe, "density_softmax", metric, split) == pytest.approx(value)


def test_the_table_of_penalties_ends_where_the_table_of_results_is() -> None:
    ours = paper_results()["cifar10"]["Density-Softmax"]
    for key, value in paper_penalties()["cifar10"]["λ = 0.0001"].items():
        assert ours[key] == pytest.approx(value)


def test_units_are_ours() -> None:
    erm = paper_results()["cifar10"]["ERM"]
    assert erm["iid", "accuracy"] == pytest.approx(0.96)
    assert erm["cost", "params"] == pytest.approx(36.5e6)
    assert erm["cost", "latency_ratio:1"] == 1
    dropout = paper_results()["cifar10"][method_name("mc_dropout")]
    assert dropout["cost", "latency_ratio:1"] == pytest.approx(4319.01 / 518.12)
    for lines in paper_results().values():
        for line in lines.values():
            assert all(0 < line[key] < 1 for key in line if key[1].endswith(("accuracy", "ece")))


def test_the_paper_stands_beside_its_own_recipes() -> None:
    assert quoted(results("cifar100")) == {
        "NLL": [0.875],
        "Accuracy": [pytest.approx(0.798)],
        "AUPR, svhn, by confidence": [0.882],
        "Parameters": [36.55e6],
        "Latency, batch 1, ERM = 1": [1.0],
    }
    assert "ICML 2024" in results("cifar100").remark


@pytest.mark.parametrize(
    ("recipe", "variant"), [("cifar10_small", "default"), ("cifar100", "descent.epochs=3")]
)
def test_the_paper_does_not_stand_beside_anything_else(recipe: str, variant: str) -> None:
    table = results(recipe, variant=variant)
    assert quoted(table) == {}
    assert "ICML 2024" not in table.remark


def test_the_paper_does_not_stand_beside_other_data(
    tmp_path: Path, make_images: Callable[..., Path]
) -> None:
    for changes, expected in (([], {"NLL", "Accuracy", "ECE"}), (["data.augment=false"], set())):
        run = make_images(changes=changes, name="cifar10")
        rows = frame_of(finished(run))
        table = next(t for t in build_tables(rows, paper_results()) if t.role == "results")
        assert expected <= set(quoted(table))
        assert bool(expected) == bool(quoted(table))


def test_the_papers_means_stand_beside_means_over_the_same_shifts_alone() -> None:
    keys = [(split, "nll") for split in sorted(paper_shifts("cifar10-c"))]
    keys += [("cifar10-c", "cnll")]
    rows = [Row("cifar10", "deterministic", "default", 0, *key, 0.5) for key in keys]
    same, more = rows, [*rows, rows[0]._replace(split="cifar10-c/saturate/1")]
    for found, expected in ((same, {"cNLL, cifar10-c": [1.05]}), (more, {})):
        table = next(t for t in build_tables(frame(found), paper_results()) if t.role == "results")
        assert quoted(table) == expected


def test_a_control_that_the_paper_has_not_is_shown_without_its_figures() -> None:
    rows = [
        Row("cifar10", method, "default", 0, "iid", "nll", 0.5)
        for method in ("deterministic", "temperature_scaling")
    ]
    table = next(t for t in build_tables(frame(rows), paper_results()) if t.role == "results")
    assert [line.name for line in table.lines] == ["ERM", "ERM + temperature scaling"]
    assert quoted(table) == {"NLL": [0.159, None]}


def test_what_is_quoted_is_never_bold_and_can_be_told_from_ours() -> None:
    table = results("cifar10")
    assert not any(cell and cell.best for cell in table.lines[0].cells)
    assert "paper NLL" in as_csv(table).splitlines()[0]
    assert '<td class="quoted" data-value="0.159">' in as_html(table)
    assert "paper" in as_text(table)
    assert "& paper" in as_latex(table)


@pytest.mark.parametrize("most_columns", [2, 3, 8, 100])
def test_a_folded_table_is_whole_and_keeps_the_paper_beside_ours(most_columns: int) -> None:
    table = results("cifar100")
    parts = fold(table, most_columns)
    assert tuple(column for part in parts for column in part.columns) == table.columns
    assert tuple(cell for p in parts for cell in p.lines[0].cells) == table.lines[0].cells
    for part in parts:
        assert len(part.columns) <= most_columns
        assert not part.columns[0].quoted
