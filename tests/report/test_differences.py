from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import pytest
import torch

from density_softmax.errors import UserError
from density_softmax.report import figures, write_report
from density_softmax.report.differences import build_difference_tables, difference_rows
from density_softmax.report.frame import settings_of
from density_softmax.runs.rows import read_rows
from density_softmax.runs.run import Run
from density_softmax.types import Row

MakeRun = Callable[..., Path]
OURS, ERM = "density_softmax", "deterministic"


def by_key(rows: list[Row]) -> dict[tuple[str, str], float]:
    return {(row.split, row.metric): row.value for row in rows}


def losses(run: Run) -> torch.Tensor:
    """The NLL of every test sample."""
    prediction, y = run.prediction("iid")
    return -prediction.probs.gather(1, y[:, None]).log().squeeze(1)


def test_a_difference_is_that_of_the_rows_of_two_runs_with_the_same_seed(
    make_images: MakeRun,
) -> None:
    ours = [Run.at(make_images(OURS, seed=seed)) for seed in (0, 1, 2)]
    erm = [Run.at(make_images(ERM, seed=seed, error=1.5)) for seed in (1, 2, 3)]
    rows = difference_rows([*ours, *erm], OURS)
    assert {row.seed for row in rows} == {1, 2}
    for mine, its in zip(erm[:2], ours[1:], strict=True):
        found = by_key([row for row in rows if row.seed == mine.seed])
        for split, metric in (("iid", "ece"), ("set-c", "cnll"), ("other", "auroc:epistemic")):
            values = [by_key(run.rows())[split, metric] for run in (mine, its)]
            assert found[split, f"difference:{metric}"] == pytest.approx(values[0] - values[1])


def test_the_error_of_several_seeds_is_no_less_than_that_of_their_mean(
    make_images: MakeRun,
) -> None:
    ours, erm = (
        [Run.at(make_images(kind, seed=seed, error=error)) for seed in (0, 1, 2)]
        for kind, error in ((OURS, 1.0), (ERM, 1.5))
    )
    rows = difference_rows([*ours, *erm], OURS)
    (table,) = build_difference_tables(settings_of([*ours, *erm]), rows, OURS)
    pairs = zip(erm, ours, strict=True)
    mean = torch.stack([losses(mine) - losses(its) for mine, its in pairs]).mean(0)
    cell = table.lines[0].cells[[column.key for column in table.columns].index(("iid", "nll"))]
    assert table.lines[0].num_seeds == 3
    assert cell is not None
    assert cell.std is not None
    assert cell.mean == pytest.approx(float(mean.mean()), rel=1e-4, abs=1e-7)
    assert cell.std >= 0.9 * float(mean.std()) / len(mean) ** 0.5  # resamples have an error, too


def test_the_bootstrap_of_a_mean_has_its_standard_error(make_images: MakeRun) -> None:
    ours, erm = Run.at(make_images(OURS)), Run.at(make_images(ERM, error=1.5))
    found = by_key(difference_rows([ours, erm], OURS))
    differences = losses(erm) - losses(ours)
    error = differences.std() / len(differences) ** 0.5
    assert found["iid", "difference_std:nll"] == pytest.approx(float(error), rel=0.1)
    low, high = (found["iid", f"difference_{end}:nll"] for end in ("low", "high"))
    assert high - low == pytest.approx(3.92 * float(error), rel=0.15)


def test_what_is_equal_differs_by_nothing_and_is_not_bold(make_images: MakeRun) -> None:
    runs = [Run.at(make_images(kind)) for kind in (OURS, ERM)]
    (table,) = build_difference_tables(settings_of(runs), difference_rows(runs, OURS), OURS)
    assert [line.name for line in table.lines] == ["ERM"]
    for cell in table.lines[0].cells:
        assert cell is not None
        assert (cell.mean, cell.std, cell.best) == (0, 0, False)


def test_a_difference_beyond_what_resampling_explains_is_bold(make_images: MakeRun) -> None:
    runs = [Run.at(make_images(OURS)), Run.at(make_images(ERM, error=3))]
    (table,) = build_difference_tables(settings_of(runs), difference_rows(runs, OURS), OURS)
    cells = zip(table.columns, table.lines[0].cells, strict=True)
    bold = {column.key for column, cell in cells if cell is not None and cell.best}
    assert ("set-c", "cnll") in bold


def test_runs_of_each_precision_have_a_table_of_their_own(make_images: MakeRun) -> None:
    half = ["engine.precision=bf16-mixed"]
    runs = [Run.at(make_images(kind, changes)) for changes in ([], half) for kind in (OURS, ERM)]
    tables = build_difference_tables(settings_of(runs), difference_rows(runs, OURS), OURS)
    assert {table.title: [line.name for line in table.lines] for table in tables} == {
        "digits: differences from Density-Softmax": ["ERM"],
        "digits (precision=bf16-mixed): differences from Density-Softmax": ["ERM"],
    }


def test_a_method_alone_has_no_table_of_differences(make_images: MakeRun) -> None:
    runs = [Run.at(make_images(OURS))]
    rows = difference_rows(runs, OURS)
    assert (rows, build_difference_tables(settings_of(runs), rows, OURS)) == ([], [])


def test_a_method_without_a_run_is_refused(make_images: MakeRun) -> None:
    with pytest.raises(UserError, match=r"digits: no run of 'sngp' .*deterministic"):
        difference_rows([Run.at(make_images(ERM))], "sngp")


def test_runs_without_their_predictions_are_refused(make_images: MakeRun) -> None:
    runs = [Run.at(make_images(kind)) for kind in (OURS, ERM)]
    rmtree(runs[1].path / "predictions")
    with pytest.raises(UserError, match=r"has no predictions.*omit --against"):
        difference_rows(runs, OURS)


def test_a_report_has_the_differences_as_rows_and_as_a_table(
    make_images: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(figures, "write_figures", lambda *args, **options: {})
    runs = [make_images(OURS), make_images(ERM, error=1.5)]
    write_report(runs, tmp_path / "report", against=OURS)
    rows = read_rows(tmp_path / "report" / "rows.csv")
    assert {row.method for row in rows if row.metric.startswith("difference")} == {ERM}
    text = (tmp_path / "report" / "tables" / "results.txt").read_text(encoding="utf-8")
    assert "digits: differences from Density-Softmax" in text
