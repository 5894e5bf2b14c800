from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from comparison import finished, setting
from matplotlib.figure import Figure

from density_softmax.report.figures import feature_maps, write_figures
from density_softmax.report.figures.feature_maps import _embed
from density_softmax.report.figures.reliability import _without_density
from density_softmax.report.frame import Penalty, penalties
from density_softmax.report.paper import paper_penalties
from density_softmax.report.tables import build_penalty_tables

MakeRun = Callable[..., Path]
NONE, HEAD = "method.penalty=none", 'method.head={"epochs": 1}'


def weight(value: float) -> str:
    return f"method.penalty.weight={value}"


def make_penalties(make_images: MakeRun, seed: int = 0) -> None:
    for changes in (
        [],
        [NONE],
        [weight(1.0)],
        [weight(1.0), HEAD],
        ["method.penalty=spectral", weight(1.0)],
        ["method.density=realnvp", NONE],
    ):
        make_images("density_softmax", changes, seed)


def test_a_penalty_is_its_weight_and_whether_the_head_was_trained(
    tmp_path: Path, make_images: MakeRun
) -> None:
    make_penalties(make_images)
    make_images("deterministic")
    found = {
        (line.changes, penalty): [run.variant_text for run in runs]
        for line, variants in penalties(finished(tmp_path), heads=True).items()
        for penalty, runs in variants.items()
    }
    assert found == {
        ((), Penalty(0.0, False)): ["penalty=none"],
        ((), Penalty(0.001, False)): ["default"],
        ((), Penalty(1.0, False)): ["penalty.weight=1.0"],
        ((), Penalty(1.0, True)): ['penalty.weight=1.0, head={"epochs": 1}'],
        (("penalty=spectral",), Penalty(1.0, False)): ["penalty=spectral, penalty.weight=1.0"],
        (("density=realnvp",), Penalty(0.0, False)): ["penalty=none, density=realnvp"],
    }


def test_the_table_of_penalties_has_a_line_for_each_lambda_and_head(
    tmp_path: Path, make_images: MakeRun
) -> None:
    for seed in range(2):
        make_penalties(make_images, seed)
    (table,) = build_penalty_tables(finished(tmp_path))
    names = ["λ = 0, without Eq. 6", "λ = 0.001, without Eq. 6", "λ = 1, without Eq. 6", "λ = 1"]
    assert [line.name for line in table.lines] == names
    assert all(line.num_seeds == 2 for line in table.lines)
    titles = [column.title.partition(" ")[0] for column in table.columns]
    assert titles == ["NLL", "Accuracy", "ECE"] * 2 + ["cNLL", "cAccuracy", "cECE"]
    assert table.name == "digits-penalty"


def test_runs_that_differ_elsewhere_make_a_table_of_their_own(
    tmp_path: Path, make_images: MakeRun
) -> None:
    other = "method.energy=true"
    for name in ("cifar10", "digits"):
        make_images("density_softmax", name=name)
    make_images("density_softmax", [NONE, other], name="cifar10")
    assert build_penalty_tables(finished(tmp_path)) == []
    make_images("density_softmax", [other], name="cifar10")
    (table,) = build_penalty_tables(finished(tmp_path), paper_penalties())
    assert table.title == "cifar10: Density-Softmax (energy=true) by the weight λ of its penalty"
    assert not any(column.quoted for column in table.columns)  # not what the paper ran


def test_the_papers_numbers_stand_beside_ours_for_its_own_recipe_alone(
    tmp_path: Path, make_images: MakeRun
) -> None:
    for name in ("cifar10", "digits"):
        for changes in ([], [NONE], [weight(1.0), "method.head=null"], [weight(1.0)]):
            make_images("density_softmax", changes, name=name)
    tables = build_penalty_tables(finished(tmp_path), paper_penalties())
    quoted = {table.name: [c for c in table.columns if c.quoted] for table in tables}
    assert [column.note for column in quoted["cifar10-penalty"]] == ["NLL", "Accuracy", "ECE"]
    assert quoted["digits-penalty"] == []
    cells = {line.name: line.cells[1] for line in tables[0].lines}
    assert {name: cell and cell.mean for name, cell in cells.items()} == {
        "λ = 0": 0.142,
        "λ = 0.0001": 0.137,
        "λ = 1, without Eq. 6": 0.165,
        "λ = 1": 0.162,
    }


def test_one_penalty_alone_makes_no_table(tmp_path: Path, make_images: MakeRun) -> None:
    make_images("density_softmax")
    make_images()
    assert build_penalty_tables(finished(tmp_path)) == []


def test_a_pair_differs_in_the_density_alone(tmp_path: Path, make_images: MakeRun) -> None:
    blind = "method.scale=temperature"
    make_images("density_softmax")
    make_images("density_softmax", [blind])
    make_images("density_softmax", [NONE, blind])
    make_images("constant_temperature")
    (pair,) = _without_density(finished(tmp_path)).values()
    assert [run.variant for run in pair] == [{}, {"method.scale": "temperature"}]


def test_the_control_stands_in_for_a_variant_without_density(
    tmp_path: Path, make_images: MakeRun
) -> None:
    make_images("density_softmax")
    assert _without_density(finished(tmp_path)) == {}
    make_images("constant_temperature")
    (pair,) = _without_density(finished(tmp_path)).values()
    assert [run.kind for run in pair] == ["density_softmax", "constant_temperature"]


def test_maps_need_a_run_without_penalty_and_one_with_it(
    tmp_path: Path, make_images: MakeRun
) -> None:
    make_images("density_softmax", [weight(1.0)])
    make_images("density_softmax")
    make_images("density_softmax", [NONE, "method.energy=false"])
    assert list(feature_maps.draw(setting(tmp_path))) == []
    make_images("density_softmax", [NONE])
    (drawing,) = feature_maps.draw(setting(tmp_path))
    assert len(drawing.figure.axes) == 3


def test_features_are_mapped_with_and_without_penalty(
    tmp_path: Path, make_images: MakeRun, undrawn: list[Figure]
) -> None:
    make_penalties(make_images)
    pictures = write_figures(finished(tmp_path), tmp_path)["Feature maps"]
    assert [p.file.name for p in pictures] == ["digits-density_softmax-features-iid"]
    titles = [axes.get_title(loc="left").partition(",")[0] for axes in undrawn[-1].axes]
    assert titles == ["λ = 0", "λ = 0.001", "λ = 1"]
    points = [sum(len(line.get_xdata()) for line in axes.lines) for axes in undrawn[-1].axes]
    assert points == [40, 40, 40]


def test_runs_without_features_are_not_mapped(tmp_path: Path, make_images: MakeRun) -> None:
    for changes in ([], [NONE]):
        (make_images("density_softmax", changes) / "features/iid.safetensors").unlink()
    assert list(feature_maps.draw(setting(tmp_path))) == []


def test_a_map_keeps_groups_apart_and_is_the_same_every_time() -> None:
    z = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    z[30:] += 20
    first, again = _embed(z), _embed(z)
    np.testing.assert_array_equal(first, again)
    middle = first[:30].mean(0), first[30:].mean(0)
    near = np.linalg.norm(first[:30] - middle[0], axis=1)
    far = np.linalg.norm(first[:30] - middle[1], axis=1)
    assert (near < far).all()


@pytest.mark.parametrize("num_points", [4, 20])
def test_few_points_can_be_mapped(num_points: int) -> None:
    assert _embed(torch.randn(num_points, 3)).shape == (num_points, 2)
