import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from comparison import finished, setting

from density_softmax.config import override
from density_softmax.errors import UserError
from density_softmax.recipes import get_recipe
from density_softmax.report.frame import line_of, settings_of
from density_softmax.report.selection import sort_runs
from density_softmax.runs.run import FORMAT, Run, find_runs

MakeRun = Callable[..., Path]


def run(path: Path, name: str = "toy", changes: Sequence[str] = (), seed: int = 0) -> Run:
    Run(override(get_recipe(name), *changes), seed, path).claim(resume=False)
    return Run.at(path)


def test_runs_are_found_at_any_depth_and_once(tmp_path: Path, make: MakeRun) -> None:
    runs = {make(seed=seed) for seed in range(3)}
    found = sort_runs(find_runs([tmp_path, *runs, tmp_path / "runs"]))
    assert {run.path for run in found.finished} == runs
    assert not found.left_out


def test_runs_are_ordered_by_method_variant_and_seed(tmp_path: Path, make: MakeRun) -> None:
    make(method="density_softmax", changes=["method.scale=max"])
    make(method="density_softmax")
    make(method="deterministic", seed=10)
    make(method="deterministic", seed=9)
    labels = [(line_of(run).label, run.seed) for run in finished(tmp_path)]
    assert labels == [
        ("ERM", 9),
        ("ERM", 10),
        ("Density-Softmax", 0),
        ("Density-Softmax (scale=max)", 0),
    ]


def test_unfinished_runs_are_left_out_with_the_reason(tmp_path: Path, make: MakeRun) -> None:
    make(seed=0)
    unfinished = make(seed=1, finished=False)
    found = sort_runs(find_runs([tmp_path]))
    assert [run.seed for run in found.finished] == [0]
    assert [(each.path, each.reason) for each in found.left_out] == [
        (unfinished, "unfinished: it has no rows.csv")
    ]


def test_a_second_copy_of_a_run_is_not_counted_as_a_seed(tmp_path: Path, make: MakeRun) -> None:
    first, second = make(seed=0), make(seed=0)
    found = sort_runs(find_runs([tmp_path]))
    assert [run.path for run in found.finished] == [first]
    assert found.left_out[0].path == second
    assert str(first) in found.left_out[0].reason


def test_a_path_without_runs_is_named(tmp_path: Path, make: MakeRun) -> None:
    make()
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent"):
        with pytest.raises(UserError, match=name):
            find_runs([tmp_path / "runs", tmp_path / name])


def test_what_cannot_be_read_is_left_out_with_the_reason(tmp_path: Path, make: MakeRun) -> None:
    good, broken = make(seed=0), make(seed=1)
    (broken / "rows.csv").write_text("not,a,header\n")
    for name, content in (("older", {"format": FORMAT - 1}), ("torn", {"format": FORMAT})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.json").write_text(json.dumps(content))
    found = sort_runs(find_runs([tmp_path]))
    assert [run.path for run in found.finished] == [good]
    reasons = {each.path.name: each.reason for each in found.left_out}
    assert "another version" in reasons["older"]
    assert "recipe.json: does not describe a run" in reasons["torn"]
    assert "rows.csv: its header" in reasons[broken.name]


def test_the_first_seed_stands_for_each_line(tmp_path: Path, make: MakeRun) -> None:
    for seed in (2, 1):
        make(seed=seed)
        make(method="sngp", seed=seed + 3)
    found = setting(tmp_path).first_seeds()
    assert [(run.kind, run.seed) for run in found] == [("deterministic", 1), ("sngp", 4)]


def test_runs_are_compared_with_those_on_the_same_data_in_the_same_precision(
    tmp_path: Path, make: MakeRun
) -> None:
    half = "engine.precision=bf16-mixed"
    for changes in ([], ["data_seed=3"], ["data.shape=two_ovals"], [half]):
        make("deterministic", changes)
        make("density_softmax", [*changes, "method.scale=max"])
    found = {each.name: each.labels for each in settings_of(finished(tmp_path))}
    ours = "Density-Softmax (scale=max"
    assert found == {
        "toy": ["ERM", "ERM (data_seed=3)", f"{ours})", f"{ours}, data_seed=3)"],
        "toy (shape=two_ovals)": ["ERM", f"{ours})"],
        "toy (precision=bf16-mixed)": ["ERM", f"{ours})"],
    }


def test_what_a_paper_reports_is_of_the_data_of_its_recipe_in_any_precision(
    tmp_path: Path, make: MakeRun
) -> None:
    for changes in ([], ["data.shape=two_ovals"], ["engine.precision=bf16-mixed"]):
        make("deterministic", changes)
    assert [each.recipe for each in settings_of(finished(tmp_path))] == ["toy", "", "toy"]


@pytest.mark.parametrize(
    ("changes", "variant", "text"),
    [
        ([], {}, "default"),
        (["method.scale=max"], {"method.scale": "max"}, "scale=max"),
        (
            ["method.scale=max", "data.shape=two_ovals", "encoder.depth=3"],
            {"data.shape": "two_ovals", "encoder.depth": 3, "method.scale": "max"},
            "data.shape=two_ovals, encoder.depth=3, scale=max",
        ),
        (
            ['method.layers=["a, b=1", "c"]', "method.energy=true"],
            {"method.layers": ["a, b=1", "c"], "method.energy": True},
            'layers=["a, b=1", "c"], energy=true',
        ),
    ],
)
def test_a_variant_is_data_and_printed_as_text(
    tmp_path: Path, changes: list[str], variant: dict[str, Any], text: str
) -> None:
    made = run(tmp_path, changes=changes, seed=3)
    assert made.variant == variant
    assert made.variant_text == text
    start = ["density-softmax", "train", "toy", "--method", "density_softmax", "--seed", "3"]
    assert made.command()[: len(start)] == start
    assert made.command()[len(start) :: 2] == ["--set"] * len(variant)


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
def test_the_command_rebuilds_the_recipe(tmp_path: Path, name: str, changes: list[str]) -> None:
    made = run(tmp_path, name, changes)
    words = [word for flag, word in pairwise(made.command()) if flag == "--set"]
    assert override(get_recipe(name), *words) == made.recipe


@pytest.mark.parametrize(("own", "expected"), [("null", 3), ("0", 0), ("7", 7)])
def test_data_come_from_the_seed_of_the_recipe_if_it_has_one(
    tmp_path: Path, own: str, expected: int
) -> None:
    assert run(tmp_path, changes=[f"data_seed={own}"], seed=3).data_seed == expected
