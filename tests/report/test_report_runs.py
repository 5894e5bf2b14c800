import shlex
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from density_softmax.config import override
from density_softmax.errors import UserError
from density_softmax.recipes import get_recipe
from density_softmax.report.runs import Run, find_runs, first_seeds

MakeRun = Callable[..., Path]


def run(method: str = "density_softmax", variant: str = "default", seed: int = 0) -> Run:
    return Run(Path("run"), {"name": "toy", "method": {"kind": method}}, variant, seed)


def test_runs_are_found_at_any_depth_and_once(tmp_path: Path, make: MakeRun) -> None:
    runs = {make(seed=seed) for seed in range(3)}
    found = find_runs([tmp_path, *runs, tmp_path / "runs"])
    assert {run.path for run in found.finished} == runs
    assert not found.left_out


def test_runs_are_ordered_by_method_variant_and_seed(tmp_path: Path, make: MakeRun) -> None:
    make(method="density_softmax", variant="scale=max")
    make(method="density_softmax")
    make(method="deterministic", seed=10)
    make(method="deterministic", seed=9)
    labels = [(run.label, run.seed) for run in find_runs([tmp_path]).finished]
    assert labels == [
        ("ERM", 9),
        ("ERM", 10),
        ("Density-Softmax", 0),
        ("Density-Softmax (scale=max)", 0),
    ]


def test_unfinished_runs_are_left_out_with_the_reason(tmp_path: Path, make: MakeRun) -> None:
    make(seed=0)
    unfinished = make(seed=1, finished=False)
    found = find_runs([tmp_path])
    assert [run.seed for run in found.finished] == [0]
    assert [(each.run.path, each.reason) for each in found.left_out] == [
        (unfinished, "unfinished: it has no rows.csv")
    ]


def test_a_second_copy_of_a_run_is_not_counted_as_a_seed(tmp_path: Path, make: MakeRun) -> None:
    first, second = make(seed=0), make(seed=0)
    found = find_runs([tmp_path])
    assert [run.path for run in found.finished] == [first]
    assert found.left_out[0].run.path == second
    assert str(first) in found.left_out[0].reason


def test_a_path_without_runs_is_named(tmp_path: Path, make: MakeRun) -> None:
    make()
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent"):
        with pytest.raises(UserError, match=name):
            find_runs([tmp_path / "runs", tmp_path / name])


def test_a_recipe_that_describes_no_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text('{"seed": 0}')
    with pytest.raises(UserError, match=r"recipe\.json: does not describe a run"):
        find_runs([tmp_path])


def test_the_first_seed_stands_for_each_line(tmp_path: Path, make: MakeRun) -> None:
    for seed in (2, 1):
        make(seed=seed)
        make(method="sngp", seed=seed + 3)
    found = first_seeds(find_runs([tmp_path]).finished)
    assert [(run.method, run.seed) for run in found] == [("deterministic", 1), ("sngp", 4)]


@pytest.mark.parametrize(
    ("variant", "assignments"),
    [
        ("default", []),
        ("scale=max", ["method.scale=max"]),
        ("data.shape=two_ovals", ["data.shape=two_ovals"]),
        (
            "data.shape=two_ovals, encoder.depth=3, scale=max, engine.precision=bf16-mixed",
            [
                "data.shape=two_ovals",
                "encoder.depth=3",
                "method.scale=max",
                "engine.precision=bf16-mixed",
            ],
        ),
        ('layers=["a", "b"], head=null', ['method.layers=["a", "b"]', "method.head=null"]),
    ],
)
def test_the_command_sets_what_the_variant_names(variant: str, assignments: list[str]) -> None:
    words = shlex.split(run(variant=variant, seed=3).command)
    start = "density-softmax train toy --method density_softmax --seed 3"
    assert words == [*start.split(), *(word for a in assignments for word in ("--set", a))]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("toy", []),
        ("toy", ["method.scale=max"]),
        ("toy", ["method.head=null", "data.shape=two_ovals", "encoder.depth=2"]),
        ("toy", ["method.representation.epochs=3", "engine.precision=bf16-mixed"]),
        ("digits", ["method.penalty=none", 'method.head={"epochs": 2}', "method.energy=true"]),
        ("toy", ["data=images", "data.train=svhn", "data_seed=3"]),
        ("toy", ['data={"kind": "table", "train": "rows.csv"}', "encoder=wide_resnet"]),
        ("digits", ["encoder=resffn", "encoder.depth=2"]),
    ],
)
def test_the_command_rebuilds_the_recipe(name: str, changes: list[str]) -> None:
    default = get_recipe(name, "density_softmax")
    recipe = default
    for change in changes:
        recipe = override(recipe, change)
    words = shlex.split(run(variant=recipe.variant(default)).command)
    rebuilt = default
    for flag, word in pairwise(words):
        rebuilt = override(rebuilt, word) if flag == "--set" else rebuilt
    assert rebuilt == recipe


@pytest.mark.parametrize(("own", "expected"), [(None, 3), (0, 0), (7, 7)])
def test_data_come_from_the_seed_of_the_recipe_if_it_has_one(
    own: int | None, expected: int
) -> None:
    assert Run(Path("run"), {"data_seed": own}, "default", seed=3).data_seed == expected
