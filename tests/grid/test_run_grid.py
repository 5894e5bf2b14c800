"""A grid of runs: what is finished stays, what fails stops nothing, what was killed continues."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from small_grid import cells_of, results, run_inline, without_costs

from density_softmax.benchmark import evaluate, run
from density_softmax.errors import UserError
from density_softmax.grid.latency import measure_latencies
from density_softmax.grid.plan import Cell
from density_softmax.recipes import prepare
from density_softmax.runs.evaluation import TIMED_TOGETHER
from density_softmax.runs.rows import read_rows
from density_softmax.runs.run import Run, find_runs
from interruption import Killed, steps

BOTH = ["deterministic", "density_softmax"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid that nothing disturbed: two methods, two seeds."""
    out = tmp_path_factory.mktemp("grid")
    assert not run_inline(out, BOTH, 2)[0].failed
    return out


def touched(out: Path) -> dict[Path, tuple[int, bytes]]:
    files = [file for file in out.glob("*/seed*/**/*") if file.is_file()]
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


def latencies(file: Path) -> dict[str, float]:
    return {row.metric: row.value for row in read_rows(file) if "latency" in row.metric}


def test_finished_cells_are_never_run_again(whole: Path) -> None:
    before = touched(whole)
    finished, ran = run_inline(whole, BOTH, 2)
    assert ran == []
    assert {entry.state for entry in finished.entries} == {"done"}
    assert touched(whole) == before


def test_a_cell_is_the_run_that_a_single_command_makes(whole: Path, tmp_path: Path) -> None:
    cell = cells_of(whole, BOTH, 2)[-1]
    rows = run(Run(cell.run.recipe, cell.run.seed, tmp_path / "run"), progress=False)
    assert without_costs(rows) == results(whole)[cell.run.path.relative_to(whole) / "rows.csv"]


def test_more_seeds_and_methods_run_only_what_is_missing(tmp_path: Path) -> None:
    run_inline(tmp_path, ["deterministic"])
    _, ran = run_inline(tmp_path, ["deterministic"], 2)
    assert [name.rpartition("-")[2] for name in ran] == ["seed1"]
    _, ran = run_inline(tmp_path, ["deterministic", "ddu"], 1)
    assert [name.partition("-")[0] for name in ran] == ["ddu", "latency"]


def test_a_grid_that_goes_on_elsewhere_keeps_its_runs_and_can_use_them(tmp_path: Path) -> None:
    run_inline(tmp_path, ["deterministic"])
    _, ran = run_inline(tmp_path, ["deterministic"], 1, "engine.checkpoint_seconds=9.0")
    assert ran == []
    (run,) = map(Run.at, find_runs([tmp_path]))
    assert run.recipe.engine.checkpoint_seconds == 9.0


def test_a_failing_cell_is_reported_and_leaves_the_others(tmp_path: Path) -> None:
    finished, ran = run_inline(
        tmp_path, BOTH, 2, "deterministic.descent.optimizer.lr=1e30", "data.num_points=90"
    )
    assert len(ran) == 5  # four cells and the latencies
    assert [entry.column for entry in finished.failed] == ["seed 0", "seed 1"]
    assert all("lower the learning rate" in entry.error for entry in finished.failed)
    with (tmp_path / "cells.csv").open(encoding="utf-8") as lines:
        states = [(row["state"], row["error"]) for row in csv.DictReader(lines)]
    assert [state for state, _ in states] == ["failed", "done", "failed", "done", "done"]
    assert states[0][1] == finished.failed[0].error
    assert len(results(tmp_path)) == 2
    _, again = run_inline(
        tmp_path, BOTH, 2, "deterministic.descent.optimizer.lr=1e30", "data.num_points=90"
    )
    assert [name.partition("-")[0] for name in again] == ["deterministic", "deterministic"]


# ERM of seed 0 takes 3 steps, one per epoch; Density-Softmax 2 + 2 + 1; then ERM of seed 1.
@pytest.mark.parametrize("limit", [0, 4, 9])
def test_a_grid_killed_at_any_step_ends_with_the_same_rows(
    limit: int, whole: Path, tmp_path: Path
) -> None:
    with steps(limit), pytest.raises(Killed):
        run_inline(tmp_path, BOTH, 2)
    with steps() as taken:
        finished, _ = run_inline(tmp_path, BOTH, 2)
    assert not finished.failed
    assert results(tmp_path) == results(whole)
    assert taken[0] <= 2 * (3 + 5) - limit + 3  # at most the stage under way is repeated


def test_a_directory_whose_run_was_killed_while_it_was_claimed_can_be_used(tmp_path: Path) -> None:
    (cell,) = cells_of(tmp_path, ["deterministic"])
    cell.run.path.mkdir(parents=True)
    (cell.run.path / "environment.json").write_text("{}")
    (cell.run.path / ".recipe.json.17.part").write_text('{"reci')
    finished, _ = run_inline(tmp_path, ["deterministic"])
    assert not finished.failed


def test_latencies_are_those_of_all_methods_in_turn(whole: Path) -> None:
    first, second = (sorted(whole.glob(f"*/seed{seed}")) for seed in (0, 1))
    for place in first:
        environment = json.loads((place / "environment.json").read_text())
        assert len(environment[TIMED_TOGETHER]) == 2
        assert environment["latency batch sizes"] == [1, 32]
        assert environment["latency threads"] >= 1
        assert environment["latency device"]
    ours, erm = (latencies(place / "rows.csv") for place in first)
    assert ours.keys() == {f"latency_{kind}:{n}" for kind in ("ratio", "spread") for n in (1, 32)}
    assert ours["latency_ratio:1"] > 1
    assert {erm["latency_ratio:1"], erm["latency_ratio:32"]} == {1.0}
    # One measurement stands for all seeds: another way of measuring would blur it.
    assert not any(latencies(place / "rows.csv") for place in second)


@pytest.mark.parametrize(
    "again",
    [
        lambda cell: evaluate(cell.run, progress=False),
        lambda cell: run(cell.run, resume=True, progress=False),
    ],
    ids=["evaluate", "resume"],
)
def test_evaluating_again_leaves_latencies_as_they_are(
    again: Callable[[Cell], object], whole: Path
) -> None:
    for cell in cells_of(whole, BOTH, 2):
        kept = [cell.run.path / "rows.csv", cell.run.path / "environment.json"]
        before = latencies(kept[0]), kept[1].read_text()
        again(cell)
        assert (latencies(kept[0]), kept[1].read_text()) == before


def test_every_stage_has_its_seconds_and_its_memory(whole: Path) -> None:
    for file in whole.glob("*/seed*/rows.csv"):
        costs = {row.metric: row.value for row in read_rows(file) if row.split == "cost"}
        timed = {name.partition(":")[2] for name in costs if name.startswith("train_seconds:")}
        sized = {name.partition(":")[2] for name in costs if name.startswith("peak_memory:")}
        assert timed == sized != set()
        assert all(50 < costs[f"peak_memory:{stage}"] < 1e5 for stage in sized)


def test_runs_on_other_data_are_not_timed_together(whole: Path, tmp_path: Path) -> None:
    run_inline(tmp_path, ["deterministic"], 1, "data.shape=two_ovals")
    found = find_runs([*whole.glob("*/seed0"), *tmp_path.glob("*/seed0")])
    with pytest.raises(UserError, match="has other data"):
        measure_latencies([Run.at(folder) for folder in found])


def test_runs_whose_data_are_elsewhere_are_not_runs_on_other_data(tmp_path: Path) -> None:
    for root, method in (("here", "deterministic"), ("there", "sngp")):
        recipe = prepare("digits", method, [f"data.root={root}"])
        Run(recipe, path=tmp_path / root).claim(resume=False)
    with pytest.raises(UserError, match="is not finished"):  # all else would do
        measure_latencies([Run.at(folder) for folder in find_runs([tmp_path])])


def test_two_seeds_of_a_method_are_not_timed_together(whole: Path) -> None:
    before, runs = touched(whole), sorted(whole.glob("deterministic*/seed*"))
    with pytest.raises(UserError, match=rf"{runs[1]}: is a run of .* so is {runs[0]}; give one"):
        measure_latencies([Run.at(path) for path in runs])
    assert touched(whole) == before


def test_the_members_of_an_ensemble_are_cells_before_it(tmp_path: Path) -> None:
    at_once, in_cells = tmp_path / "at_once", tmp_path / "in_cells"
    *_, cell = cells_of(at_once, ["deep_ensemble"])
    run(cell.run, progress=False)
    _, ran = run_inline(in_cells, ["deep_ensemble"])
    assert [name.rpartition("-")[2] for name in ran] == ["member0", "member1", "seed0", "latency"]
    assert results(at_once) == results(in_cells)
    assert not list(in_cells.rglob("members/*/rows.csv"))  # nobody asked for them one by one
    _, again = run_inline(at_once, ["deep_ensemble"])
    assert again == ["latency"]
