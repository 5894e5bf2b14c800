"""Cells of a grid that share a stage: one trains it, the others take it over."""

from pathlib import Path

import pytest
from small_grid import cells_of, results, run_inline, without_costs

from density_softmax.benchmark import run
from density_softmax.engine import start
from density_softmax.errors import BusyError
from density_softmax.grid.plan import Cell
from density_softmax.runs.rows import read_rows
from density_softmax.runs.run import Run
from interruption import Killed, steps

OURS = ["density_softmax"]
FIRST, DENSITY, HEAD = 2, 2, 1  # steps of each stage


def cells(out: Path, ablation: str) -> list[Cell]:
    return cells_of(out, OURS, ablation=ablation)


def origin(cell: Cell) -> str:
    """The run that trained the first stage of a cell; empty if that is itself."""
    return cell.run.checkpoints().finished[0].taken_from


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
    assert taken == FIRST + DENSITY + (1 + len(others)) * HEAD
    assert origin(first) == ""
    assert {origin(cell) for cell in others} == {str(first.run.path)}


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
    rows = run(Run(cell.run.recipe, path=tmp_path / "run"), progress=False)
    file = cell.run.path.relative_to(whole[0]) / "rows.csv"
    assert without_costs(rows) == results(whole[0])[file]


# In the first stage of all, behind it, and in the second cell, which has taken it over.
@pytest.mark.parametrize("limit", [1, FIRST + 1, FIRST + DENSITY + HEAD])
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


def test_a_stage_of_an_earlier_call_is_used(tmp_path: Path) -> None:
    run_inline(tmp_path, OURS)
    with steps() as taken:
        run_inline(tmp_path, OURS, ablation="scales")
    assert taken[0] == 4 * HEAD
    first, *others = cells(tmp_path, "scales")
    assert {origin(cell) for cell in others} == {str(first.run.path)}


def test_a_cell_that_fails_stops_no_other(tmp_path: Path) -> None:
    first, second, *others = cells(tmp_path, "scales")
    first.run.path.mkdir(parents=True)
    (first.run.path / "letter.txt").write_text("mine")
    with steps() as taken:
        finished, _ = run_inline(tmp_path, OURS, ablation="scales")
    assert [entry.name for entry in finished.failed] == [first.name]
    assert taken[0] == FIRST + DENSITY + 4 * HEAD
    assert origin(second) == ""
    assert {origin(cell) for cell in others} == {str(second.run.path)}


def test_a_run_that_need_not_wait_leaves_a_stage_to_the_run_that_trains_it(tmp_path: Path) -> None:
    first, second, *_ = cells(tmp_path, "scales")
    fabric = start(first.run.recipe.engine)
    method = first.run.build(first.run.data.task)
    cache = first.run.stage_cache()
    digest = cache.digest(method, first.run.seed, 0, method.stages()[0])
    with steps() as taken:
        with cache.reserved(fabric, digest), pytest.raises(BusyError, match="another run trains"):
            run(second.run, wait=False, progress=False)
        assert taken[0] == 0
        run(second.run, resume=True, wait=False, progress=False)
    assert taken[0] == FIRST + DENSITY + HEAD


def test_cells_with_another_penalty_share_nothing_and_those_with_another_head_do(
    tmp_path: Path,
) -> None:
    run_inline(tmp_path, OURS, ablation="lambda")
    found = cells(tmp_path, "lambda")
    by_path = {str(cell.run.path): cell.run.recipe.method for cell in found}
    taken = [cell for cell in found if origin(cell)]
    assert len(taken) == 6  # every weight with the head stage and without
    for cell in taken:
        assert by_path[origin(cell)].penalty == cell.run.recipe.method.penalty
        assert by_path[origin(cell)].head != cell.run.recipe.method.head
