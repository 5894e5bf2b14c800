from collections.abc import Callable
from pathlib import Path

import pytest

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


def test_a_difference_is_that_of_the_rows_over_the_seeds_that_both_have(
    make_images: MakeRun,
) -> None:
    ours = [Run.at(make_images(OURS, seed=seed)) for seed in (0, 1, 2)]
    erm = [Run.at(make_images(ERM, seed=seed, error=1.5)) for seed in (1, 2, 3)]
    found = by_key(difference_rows([*ours, *erm], OURS))
    for key in (("iid", "ece"), ("set-c", "cnll"), ("other", "auroc:epistemic")):
        values = [[by_key(run.rows())[key] for run in runs] for runs in (erm[:2], ours[1:])]
        expected = (sum(values[0]) - sum(values[1])) / 2
        assert found[key[0], f"difference:{key[1]}"] == pytest.approx(expected, rel=1e-5)
        assert found[key[0], f"difference_seeds:{key[1]}"] == 2


def test_the_bootstrap_of_a_mean_has_its_standard_error(make_images: MakeRun) -> None:
    ours, erm = Run.at(make_images(OURS)), Run.at(make_images(ERM, error=1.5))
    found = by_key(difference_rows([ours, erm], OURS))
    losses = [
        -prediction.probs.gather(1, y[:, None]).log().squeeze(1)
        for prediction, y in (run.prediction("iid") for run in (erm, ours))
    ]
    error = (losses[0] - losses[1]).std() / len(losses[0]) ** 0.5
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
