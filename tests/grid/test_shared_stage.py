"""Cells of a grid that share their first stage: one trains it, the others take it over."""

from pathlib import Path

import pytest
from small_grid import cells_of, results, run_inline, without_costs

from density_softmax.benchmark import run
from density_softmax.grid.plan import Cell, find_donors
from density_softmax.handover import record_of
from density_softmax.runs.rows import read_rows
from density_softmax.runs.run import RunDirectory
from interruption import Killed, steps

OURS = ["density_softmax"]
FIRST, REST = 2, 3  # steps of the representation; of density and head


def cells(out: Path, ablation: str) -> list[Cell]:
    return cells_of(out, OURS, ablation=ablation)


def origin(cell: Cell) -> str:
    """The run that trained the first stage of a cell; empty if that is itself."""
    return record_of(RunDirectory(cell.path)).finished[0].taken_from


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """An ablation that nothing disturbed, and how many steps it took."""
    out = tmp_path_factory.mktemp("grid")
    with steps() as taken:
        finished, _ = run_inline(out, OURS, ablation="scales")
    assert not finished.failed
    return out, taken[0]


def test_an_ablation_trains_the_representation_once(whole: tuple[Path, int]) -> None:
    out, taken = whole
    first, *others = cells(out, "scales")
    assert len(others) == 4
    assert taken == FIRST + (1 + len(others)) * REST
    assert origin(first) == ""
    assert {origin(cell) for cell in others} == {str(first.path)}


def test_every_cell_has_the_cost_of_an_honest_training(whole: tuple[Path, int]) -> None:
    seconds = set()
    for file in whole[0].glob("*/seed0/rows.csv"):
        costs = {row.metric: row.value for row in read_rows(file)}
        seconds.add((costs["train_seconds:representation"], costs["peak_memory:representation"]))
    assert len(seconds) == 1


def test_a_cell_that_took_over_is_the_run_that_a_single_command_makes(
    whole: tuple[Path, int], tmp_path: Path
) -> None:
    cell = cells(whole[0], "scales")[-1]
    rows = run(cell.recipe, tmp_path / "run", progress=False)
    assert without_costs(rows) == results(whole[0])[cell.path.relative_to(whole[0]) / "rows.csv"]


# In the first stage of all, behind it, and in the second cell, which has taken it over.
@pytest.mark.parametrize("limit", [1, FIRST + 1, FIRST + REST + 1])
def test_an_ablation_killed_at_any_step_ends_with_the_same_rows(
    limit: int, whole: tuple[Path, int], tmp_path: Path
) -> None:
    with steps(limit), pytest.raises(Killed):
        run_inline(tmp_path, OURS, ablation="scales")
    with steps() as taken:
        finished, _ = run_inline(tmp_path, OURS, ablation="scales")
    assert not finished.failed
    assert results(tmp_path) == results(whole[0])
    assert taken[0] <= whole[1] - limit + 2  # at most the stage under way is repeated


def test_a_donor_of_an_earlier_call_is_used(tmp_path: Path) -> None:
    run_inline(tmp_path, OURS)
    with steps() as taken:
        run_inline(tmp_path, OURS, ablation="scales")
    assert taken[0] == 4 * REST
    first, *others = cells(tmp_path, "scales")
    assert {origin(cell) for cell in others} == {str(first.path)}
    assert find_donors([first, *others]) == {cell.name: [] for cell in (first, *others)}


def test_a_donor_that_fails_stops_no_other(tmp_path: Path) -> None:
    first, second, *others = cells(tmp_path, "scales")
    first.path.mkdir(parents=True)
    (first.path / "letter.txt").write_text("mine")
    with steps() as taken:
        finished, _ = run_inline(tmp_path, OURS, ablation="scales")
    assert [entry.name for entry in finished.failed] == [first.name]
    assert taken[0] == FIRST + 4 * REST
    assert origin(second) == ""
    assert {origin(cell) for cell in others} == {str(second.path)}


def test_cells_with_another_penalty_or_seed_share_nothing(tmp_path: Path) -> None:
    found = cells_of(tmp_path, [*OURS, "deterministic", "deep_ensemble"], 2, ablation="lambda")
    donors = find_donors(found)
    by_name = {cell.name: cell for cell in found}
    assert len(donors) == len(found)
    for name, possible in donors.items():
        cell = by_name[name]
        for donor in possible:
            assert donor.seed == cell.seed
            assert donor.recipe.method.penalty == cell.recipe.method.penalty
            assert donor.recipe.method.head != cell.recipe.method.head
    assert sum(map(len, donors.values())) == 2 * 6  # every weight with and without the head
