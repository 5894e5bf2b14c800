from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from density_softmax.report.ablations import (
    Penalty,
    penalty_of,
    penalty_variants,
    without_density,
)
from density_softmax.report.feature_maps import embed, write_feature_maps
from density_softmax.report.paper import paper_penalties
from density_softmax.report.penalty_table import build_penalty_tables
from density_softmax.report.runs import find_runs

MakeRun = Callable[..., Path]
NONE = {"penalty": {"kind": "none"}}
HEAD = {"head": {"epochs": 1}}


def weight(value: float) -> dict[str, object]:
    return {"penalty": {"kind": "frobenius", "weight": value}}


def make_penalties(make_images: MakeRun, seed: int = 0, name: str = "pictures") -> None:
    make = lambda variant, config: make_images(  # noqa: E731
        "density_softmax", variant, seed, config, name=name
    )
    make("default", {})
    make("penalty=none", NONE)
    make("penalty.weight=1.0", weight(1.0))
    make("penalty.weight=1.0, head={}", weight(1.0) | HEAD)
    make("penalty=spectral", {"penalty": {"kind": "spectral", "weight": 1.0}})
    make("density=gaussian, penalty=none", NONE)


def test_a_penalty_is_its_weight_and_whether_the_head_was_trained(
    tmp_path: Path, make_images: MakeRun
) -> None:
    make_penalties(make_images)
    make_images("deterministic")
    found = {(run.method, run.variant): penalty_of(run) for run in find_runs([tmp_path]).finished}
    assert found == {
        ("deterministic", "default"): None,
        ("density_softmax", "default"): Penalty(0.001, False),
        ("density_softmax", "penalty=none"): Penalty(0.0, False),
        ("density_softmax", "penalty.weight=1.0"): Penalty(1.0, False),
        ("density_softmax", "penalty.weight=1.0, head={}"): Penalty(1.0, True),
        ("density_softmax", "penalty=spectral"): Penalty(1.0, False),
        ("density_softmax", "density=gaussian, penalty=none"): Penalty(0.0, False),
    }


def test_the_table_of_penalties_has_a_line_for_each_lambda_and_head(
    tmp_path: Path, make_images: MakeRun
) -> None:
    for seed in range(2):
        make_penalties(make_images, seed)
    (table,) = build_penalty_tables(find_runs([tmp_path]).finished)
    names = ["λ = 0, without Eq. 6", "λ = 0.001, without Eq. 6", "λ = 1, without Eq. 6", "λ = 1"]
    assert [line.name for line in table.lines] == names
    assert all(line.num_seeds == 2 for line in table.lines)
    titles = [column.title.partition(" ")[0] for column in table.columns]
    assert titles == ["NLL", "Accuracy", "ECE"] * 2 + ["cNLL", "cAccuracy", "cECE"]
    assert table.name == "pictures-penalty"


def test_runs_that_differ_elsewhere_make_a_table_of_their_own(
    tmp_path: Path, make_images: MakeRun
) -> None:
    for name in ("cifar10", "pictures"):
        make_images("density_softmax", name=name)
        make_images("density_softmax", "penalty=none, energy=true", config=NONE, name=name)
    assert build_penalty_tables(find_runs([tmp_path]).finished) == []
    make_images("density_softmax", "energy=true", name="cifar10")
    (table,) = build_penalty_tables(find_runs([tmp_path]).finished, paper_penalties())
    assert table.title == "cifar10: Density-Softmax (energy=true) by the weight λ of its penalty"
    assert not any(column.quoted for column in table.columns)  # not what the paper ran


def test_the_papers_figures_stand_beside_ours_for_its_own_recipe_alone(
    tmp_path: Path, make_images: MakeRun
) -> None:
    make_penalties(make_images, name="cifar10")
    make_penalties(make_images, name="pictures")
    tables = build_penalty_tables(find_runs([tmp_path]).finished, paper_penalties())
    quoted = {table.name: [c for c in table.columns if c.quoted] for table in tables}
    assert [column.note for column in quoted["cifar10-penalty"]] == ["NLL", "Accuracy", "ECE"]
    assert quoted["pictures-penalty"] == []
    cells = {line.name: line.cells[1] for line in tables[0].lines}
    assert {name: cell and cell.mean for name, cell in cells.items()} == {
        "λ = 0, without Eq. 6": None,
        "λ = 0.001, without Eq. 6": None,
        "λ = 1, without Eq. 6": 0.165,
        "λ = 1": 0.162,
    }


def test_one_penalty_alone_makes_no_table(tmp_path: Path, make_images: MakeRun) -> None:
    make_images("density_softmax")
    make_images()
    assert build_penalty_tables(find_runs([tmp_path]).finished) == []


def test_a_pair_differs_in_the_density_alone(tmp_path: Path, make_images: MakeRun) -> None:
    blind = {"scale": {"kind": "temperature"}}
    make_images("density_softmax")
    make_images("density_softmax", "scale=temperature", config=blind)
    make_images("density_softmax", "penalty=none, scale=temperature", config=blind | NONE)
    make_images("constant_temperature")
    (pair,) = without_density(find_runs([tmp_path]).finished).values()
    assert [run.variant for run in pair] == ["default", "scale=temperature"]


def test_the_control_stands_in_for_a_variant_without_density(
    tmp_path: Path, make_images: MakeRun
) -> None:
    make_images("density_softmax")
    assert without_density(find_runs([tmp_path]).finished) == {}
    make_images("constant_temperature")
    (pair,) = without_density(find_runs([tmp_path]).finished).values()
    assert [run.method for run in pair] == ["density_softmax", "constant_temperature"]


def test_maps_need_a_run_without_penalty_and_one_with_it(
    tmp_path: Path, make_images: MakeRun
) -> None:
    make_images("density_softmax", "penalty.weight=1.0", config=weight(1.0))
    make_images("density_softmax")
    assert penalty_variants(find_runs([tmp_path]).finished) == {}
    make_images("density_softmax", "penalty=none", config=NONE)
    (variants,) = penalty_variants(find_runs([tmp_path]).finished).values()
    assert list(variants) == [0.0, 0.001, 1.0]


def test_features_are_mapped_with_and_without_penalty(
    tmp_path: Path, make_images: MakeRun, undrawn: list[Figure]
) -> None:
    make_penalties(make_images)
    pictures = write_feature_maps(find_runs([tmp_path]).finished, tmp_path)
    assert [p.file.name for p in pictures] == ["pictures-density_softmax-features-iid"]
    titles = [axes.get_title(loc="left").partition(",")[0] for axes in undrawn[0].axes]
    assert titles == ["λ = 0", "λ = 0.001", "λ = 1"]
    points = [sum(len(line.get_xdata()) for line in axes.lines) for axes in undrawn[0].axes]
    assert points == [40, 40, 40]


def test_runs_without_features_are_not_mapped(tmp_path: Path, make_images: MakeRun) -> None:
    for variant, config in (("default", {}), ("penalty=none", NONE)):
        (make_images("density_softmax", variant, 0, config) / "features/iid.safetensors").unlink()
    assert write_feature_maps(find_runs([tmp_path]).finished, tmp_path) == []


def test_a_map_keeps_groups_apart_and_is_the_same_every_time() -> None:
    z = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    z[30:] += 20
    first, again = embed(z), embed(z)
    np.testing.assert_array_equal(first, again)
    middle = first[:30].mean(0), first[30:].mean(0)
    near = np.linalg.norm(first[:30] - middle[0], axis=1)
    far = np.linalg.norm(first[:30] - middle[1], axis=1)
    assert (near < far).all()


@pytest.mark.parametrize("num_points", [4, 20])
def test_few_points_can_be_mapped(num_points: int) -> None:
    assert embed(torch.randn(num_points, 3)).shape == (num_points, 2)
