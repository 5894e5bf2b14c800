"""The paper's first table: what methods declare, and what was measured."""

from collections.abc import Callable
from pathlib import Path

import pytest
from comparison import finished

from density_softmax.report import as_csv, as_latex, as_text
from density_softmax.report.requirements import build_requirement_tables
from density_softmax.report.tables import Table
from density_softmax.runs.run import Run

MakeRun = Callable[..., Path]


def table(path: Path) -> Table:
    (found,) = build_requirement_tables(finished(path))
    return found


def test_it_says_what_the_methods_declare(tmp_path: Path, make: MakeRun) -> None:
    make("deterministic", drawn=False)
    make("mc_dropout", ["method.num_samples=7"], drawn=False)
    make("deep_ensemble", drawn=False)
    make("density_softmax", drawn=False)
    found = table(tmp_path)
    assert found.columns[0].title == "Test-time efficiency"
    marks = {line.name: [cell and cell.mean for cell in line.cells] for line in found.lines}
    assert marks == {  # efficient, without prior, without draws, encoder, passes, networks
        "ERM": [1, 1, 1, 1, 1, 1],
        "MC Dropout (num_samples=7)": [0, 0, 0, 0, 7, 1],
        "Deep Ensemble": [0, 1, 1, 1, 4, 4],
        "Density-Softmax": [1, 1, 1, 1, 1, 1],
    }
    assert "MC Dropout: the rate of dropout" in found.remark


def test_every_rendering_says_yes_and_no(tmp_path: Path, make: MakeRun) -> None:
    make("sngp", drawn=False)
    found = table(tmp_path)
    assert "SNGP,1,yes,,no,,yes,,no,,1.0,,1.0," in as_csv(found)
    assert "SNGP & 1 & yes & no & yes & no & $1$ & $1$" in as_latex(found)
    assert "yes" in as_text(found)


@pytest.mark.parametrize(("num_seeds", "expected"), [(2, None), (3, ["no", "yes"])])
def test_quality_is_measured_against_erm_and_only_with_enough_seeds(
    tmp_path: Path, make_images: MakeRun, num_seeds: int, expected: list[str] | None
) -> None:
    for seed in range(num_seeds):
        make_images("deterministic", seed=seed, error=1.0)
        run = Run.at(make_images("density_softmax", seed=seed, error=1.0))
        better = ("accuracy", "caccuracy")
        run.save_rows(
            row._replace(value=row.value + (0.1 if row.metric in better else 0.0))
            for row in run.rows()
        )
    found = table(tmp_path)
    titles = [column.title for column in found.columns]
    if expected is None:
        assert "Robustness quality" not in titles
        return
    assert titles[:2] == ["Uncertainty quality", "Robustness quality"]
    line = as_csv(found).splitlines()[2].split(",")
    assert line[2:5:2] == expected
