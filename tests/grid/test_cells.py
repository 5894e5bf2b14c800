"""What a grid consists of, and which of it is finished."""

from pathlib import Path

import pytest
import torch
from small_grid import cells_of

from density_softmax.config import ConfigError, override, to_dict
from density_softmax.errors import UserError
from density_softmax.grid.plan import choose_methods, plan
from density_softmax.methods.base import MethodConfig
from density_softmax.nn.densities import DensityConfig
from density_softmax.nn.softmax.scale import ScaleConfig
from density_softmax.recipes import RECIPES, prepare
from density_softmax.recipes.ablations import ABLATIONS, find_variants
from density_softmax.runs.run import Run

OUT = Path("out")
CASES = [(recipe, ablation) for recipe in RECIPES for ablation in ABLATIONS]


def test_a_grid_is_methods_times_seeds() -> None:
    cells = plan("toy", ["ddu", "duq"], 3, OUT)
    found = [(cell.run.seed, cell.run.recipe.method.kind) for cell in cells]
    assert found == [(seed, method) for seed in range(3) for method in ("ddu", "duq")]
    assert [cell.run.path for cell in cells[:2]] == [OUT / "ddu" / "seed0", OUT / "duq" / "seed0"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_all_methods_of_a_recipe_are_those_of_the_papers_tables(recipe: str) -> None:
    rivals = choose_methods(recipe, "posthoc")
    assert len(rivals) == 19
    assert set(choose_methods(recipe, "all")) == set(MethodConfig.members) - set(rivals)
    assert choose_methods(recipe, "posthoc, ddu, knn") == [*rivals, "ddu"]


def test_the_command_of_a_cell_makes_its_recipe() -> None:
    for cell in cells_of(OUT, ["deterministic", "deep_ensemble"], 2, "data.heldout=0.3"):
        words = list(cell.command())
        changes = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        assert words[:4] == ["train", "toy", "--method", cell.run.recipe.method.kind]
        assert prepare("toy", words[3], changes) == cell.run.recipe
        assert words[words.index("--seed") + 1] == str(cell.run.seed)
        assert "--resume" in words


def test_a_change_with_the_name_of_a_method_is_for_that_method_alone() -> None:
    changes = ("deterministic.descent.epochs=7", "data.heldout=0.3")
    erm, ddu = plan("toy", ["deterministic", "ddu"], 1, OUT, changes=changes)
    assert erm.run.recipe.method.descent.epochs == 7
    assert ddu.run.recipe.method == prepare("toy", "ddu").method
    assert erm.run.recipe.data.heldout == ddu.run.recipe.data.heldout == 0.3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("duq.descent.epochs=1", "'duq' is not in the grid; add it to --methods"),
        ("method.representation.epochs=1", r"--set deterministic.NAME=value"),
        ("data.colour=red", "unknown name 'colour'"),
    ],
)
def test_a_change_that_fits_nothing_is_refused(change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan("toy", ["density_softmax", "deterministic"], 1, OUT, changes=[change])


@pytest.mark.parametrize(("names", "message"), [("", "names none"), ("ddu,x", "no method 'x'")])
def test_methods_that_are_not_there_are_refused(names: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose_methods("toy", names)


def test_members_come_before_their_ensemble() -> None:
    cells = cells_of(OUT, ["deep_ensemble"], 2)
    assert [(cell.run.seed, cell.member) for cell in cells] == [
        (seed, member) for seed in range(2) for member in (0, 1, None)
    ]
    assert len({cell.name for cell in cells}) == 6
    assert len({cell.run.line for cell in cells}) == 1


def test_a_directory_of_another_run_is_not_a_finished_cell(tmp_path: Path) -> None:
    (cell,) = cells_of(tmp_path, ["deterministic"])
    (other,) = cells_of(tmp_path / "b", ["deterministic"], 1, "engine.precision=bf16-mixed")
    assert not cell.is_finished()
    cell.run.path.mkdir(parents=True)
    (cell.run.path / "environment.json").write_text("{}")
    Run(other.run.recipe, path=cell.run.path).claim(resume=False)
    (cell.run.path / "rows.csv").write_text("rows")
    assert not cell.is_finished()


def test_where_a_cell_was_computed_makes_no_difference(tmp_path: Path) -> None:
    (cell,) = cells_of(tmp_path, ["deterministic"])
    (moved,) = cells_of(tmp_path, ["deterministic"], 1, "engine.threads=7")
    moved.run.claim(resume=False)
    (cell.run.path / "rows.csv").write_text("rows")
    assert cell.is_finished()


def test_where_the_data_were_makes_no_difference_but_which_they_were_does(tmp_path: Path) -> None:
    (cell,) = plan("cifar10_small", ["deterministic"], 1, tmp_path)
    moved = [override(cell.run.recipe, c) for c in ("data.root=/elsewhere", "data.train=svhn")]
    for recipe, expected in zip(moved, (True, False), strict=True):
        path = tmp_path / str(expected)
        Run(recipe, path=path).claim(resume=False)
        assert Run(cell.run.recipe, path=path).exists() is expected


def test_a_finished_run_looks_for_its_data_where_they_are_now(tmp_path: Path) -> None:
    here, there = (
        plan("cifar10_small", ["deterministic"], 1, tmp_path, changes=[f"data.root={root}"])[0]
        for root in ("here", "there")
    )
    here.run.claim(resume=False)
    there.run.claim(resume=True)
    assert Run.at(here.run.path).recipe.data.root == "there"
    before = (here.run.path / "recipe.json").stat().st_mtime_ns
    there.run.claim(resume=True)
    assert (here.run.path / "recipe.json").stat().st_mtime_ns == before


def test_long_variants_have_short_directories_of_their_own() -> None:
    paths = set()
    for last in range(3):
        layers = ", ".join(f'"blocks.{i}.linear"' for i in (*range(8), last))
        changes = [f"density_softmax.layers=[{layers}]"]
        (cell,) = plan("toy", ["density_softmax"], 1, OUT, changes=changes)
        paths.add(cell.run.path)
        assert len(cell.run.line.encode()) < 200
    assert len(paths) == 3


@pytest.mark.parametrize(("recipe", "ablation"), CASES)
def test_every_variant_of_an_ablation_is_a_cell_of_its_own(recipe: str, ablation: str) -> None:
    cells = plan(recipe, ["deterministic", "density_softmax"], 1, OUT, ablation=ablation)
    erm, default, *variants = [cell.run.variant_text for cell in cells]
    assert erm == default == "default"  # what it is compared to, and the recipe as it is
    assert len(variants) >= {"forms": 1}.get(ablation, 4)
    assert len({cell.run.path for cell in cells}) == len(cells)
    assert "default" not in variants


def test_a_variant_of_another_kind_is_without_the_entries_of_the_replaced_one() -> None:
    changes = ("density_softmax.penalty.weight=0.5", "density_softmax.density.descent.epochs=2")
    cells = plan("toy", ["density_softmax"], 1, OUT, changes=changes, ablation="components")
    penalties = [to_dict(cell.run.recipe)["method"]["penalty"] for cell in cells]
    assert {penalty.get("weight") for penalty in penalties} == {0.5, None}
    assert {cell.run.recipe.method.density.descent.epochs for cell in cells} == {2}
    for cell in cells:
        assert prepare("toy", "density_softmax", cell.changes) == cell.run.recipe


def test_ablations_cover_all_kinds_and_both_states_of_each_part() -> None:
    for recipe in RECIPES:
        base = prepare(recipe, "density_softmax")
        found = {
            name: [
                to_dict(prepare(recipe, "density_softmax", variant).method)
                for variant in find_variants(name, base)
            ]
            for name in ABLATIONS
        }
        assert {m["scale"]["kind"] for m in found["scales"]} == set(ScaleConfig.members)
        assert {m["density"]["kind"] for m in found["densities"]} == set(DensityConfig.members)
        grid = {(m["penalty"].get("weight", 0.0), m["head"] is not None) for m in found["lambda"]}
        weights = {0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0}
        assert grid >= {(weight, head) for weight in weights for head in (True, False)}
        parts = {
            (m["penalty"]["kind"] != "none", m["scale"]["kind"] in ("constant", "temperature"))
            for m in found["components"]
        }
        assert parts == {(a, b) for a in (True, False) for b in (True, False)}


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_papers_form_is_that_of_its_recipe(recipe: str) -> None:
    paper = to_dict(prepare("cifar10", "density_softmax").method)
    base = prepare(recipe, "density_softmax")
    _, *forms = (prepare(recipe, "density_softmax", v) for v in find_variants("forms", base))
    for form, scale in zip(forms, ("range", "range", "max"), strict=True):
        found = to_dict(form.method)
        same = ("layers", "last", "classes", "energy")
        assert [found[key] for key in same] == [paper[key] for key in same]
        assert (found["density"]["kind"], found["density"]["standardize"]) == ("realnvp", False)
        assert found["scale"]["kind"] == scale
        assert found["head"] is not None
    by_density, alike = (to_dict(form.method)["scale"] for form in forms[:2])
    assert alike == by_density | {"averaged": True}


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_layers_of_an_ablation_are_layers_of_the_encoder(recipe: str) -> None:
    base = prepare(recipe, "density_softmax")
    shape = (2,) if recipe in ("toy", "table") else (3, 32, 32)
    with torch.device("meta"):
        encoder = base.encoder.build(shape)
    read = {
        layer
        for variant in find_variants("layers", base)
        for layer in prepare(recipe, "density_softmax", variant).method.layers
    }
    assert read
    assert read <= set(encoder.layer_names)


def test_an_unknown_ablation_is_answered_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="there are: lambda, components, scales"):
        plan("toy", ["density_softmax"], 1, OUT, ablation="x")
