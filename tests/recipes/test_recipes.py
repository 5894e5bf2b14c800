"""Every recipe is complete, serialisable, and says where it deviates."""

import dataclasses

import numpy as np
import pytest
import torch

from density_softmax import DensitySoftmaxClassifier, benchmark
from density_softmax.config import ConfigError, from_dict, override, to_dict
from density_softmax.methods import kinds_of
from density_softmax.methods.base import MethodConfig
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.recipes import RECIPES, Recipe, get_recipe, prepare, recipe_of
from density_softmax.runs.run import Run

CASES = [(recipe, method) for recipe in RECIPES for method in MethodConfig.members]


@pytest.mark.parametrize(("recipe", "method"), CASES)
def test_a_recipe_survives_the_way_to_a_dictionary_and_back(recipe, method):
    chosen = get_recipe(recipe, method)
    assert chosen.name == recipe
    assert chosen.method.kind == method
    assert from_dict(Recipe, to_dict(chosen)) == chosen


@pytest.mark.parametrize("recipe", RECIPES)
def test_erm_and_density_softmax_train_the_network_alike(recipe):
    erm, ours = (get_recipe(recipe, m).method for m in ("deterministic", "density_softmax"))
    assert erm.descent == ours.representation


@pytest.mark.parametrize("recipe", RECIPES)
def test_post_hoc_methods_follow_the_training_of_erm(recipe):
    erm, ours = (get_recipe(recipe, m).method for m in ("deterministic", "density_softmax"))
    for kind in kinds_of("posthoc"):
        assert get_recipe(recipe, kind).method.descent == erm.descent
    assert get_recipe(recipe, "density_aware_calibration").method.layers == ours.layers


@pytest.mark.parametrize(
    ("changes", "variant"),
    [
        ([], "default"),
        (["method.scale=max"], "scale=max"),
        (["method.scale=range", "method.scale.low=-0.6"], "scale=range, scale.low=-0.6"),
        (["data.shape=two_ovals"], "data.shape=two_ovals"),
        (["engine.devices=2", "engine.threads=2"], "default"),
        (["engine.precision=bf16-mixed"], "engine.precision=bf16-mixed"),
    ],
)
def test_the_variant_is_the_deviation_from_the_recipe(changes, variant):
    recipe = get_recipe("toy")
    for change in changes:
        recipe = override(recipe, change)
    assert Run(recipe).variant_text == variant


def test_where_the_data_are_is_no_variant_and_in_no_name():
    recipe = get_recipe("cifar10_small")
    moved = override(recipe, "data.root=/elsewhere", "data.workers=7")
    assert Run(moved).variant == {}
    assert Run(moved).path == Run(recipe).path
    toy = override(get_recipe("toy"), "data=images", "data.root=/elsewhere")
    assert Run(toy).variant == {"data": "images"}


LEAST = {
    "encoder": {"depth": 0, "width": 1},
    "engine": {
        "devices": 1,
        "num_nodes": 1,
        "threads": 1,
        "predict_batch_size": 1,
        "feature_memory": 0,
        "checkpoint_seconds": 0,
    },
    "method.representation": {"clip_norm": 0},
    "method.representation.optimizer": {"lr": 0, "weight_decay": 0},
}


@pytest.mark.parametrize(
    ("path", "least"),
    [(f"{part}.{name}", least) for part, bounds in LEAST.items() for name, least in bounds.items()],
)
def test_less_than_the_least_is_refused(path, least):
    recipe = override(get_recipe("toy"), f"{path}={least}")
    with pytest.raises(ConfigError, match=f"={least - 1}.*: choose {least} or more"):
        override(recipe, f"{path}={least - 1}")


# Table "hyper-params" of the paper: epochs, batch, rate, λ, density and head epochs, range.
PAPER = {
    "toy": (100, 128, 1e-4, 1e-2, 300, 1, None),
    "cifar10": (200, 64, 0.05, 1e-4, 50, 10, (-0.55, -0.45)),
    "cifar100": (200, 64, 0.05, 1e-5, 50, 10, (-0.4, -0.3)),
    "imagenet": (90, 64, 0.05, 1e-1, 10, 2, (-0.4, -0.3)),
}


@pytest.mark.parametrize("recipe", PAPER)
def test_the_papers_numbers_are_the_papers(recipe):
    method = get_recipe(recipe).method
    assert isinstance(method, DensitySoftmax.Config)
    train = method.representation
    scale = to_dict(method.scale)
    assert PAPER[recipe] == (
        train.epochs,
        train.batch_size,
        train.optimizer.lr,
        method.penalty.weight,
        method.density.descent.epochs,
        method.head.epochs,
        (scale["low"], scale["high"]) if scale["kind"] == "range" else None,
    )
    assert method.density.descent.optimizer.lr == 1e-4


@pytest.mark.parametrize(
    ("few", "many"), [("cifar10", "cifar100"), ("cifar10_small", "cifar100_small")]
)
def test_a_class_moves_duq_as_far_among_a_hundred_as_among_ten(few, many):
    # A step is −rate · (mean over classes + weight · penalty + decay · w).
    ten, hundred = (get_recipe(name, "duq").method for name in (few, many))
    rates = [config.descent.optimizer.lr for config in (ten, hundred)]
    assert rates[1] / 100 == pytest.approx(rates[0] / 10)
    terms = [
        (config.penalty.weight, config.descent.optimizer.weight_decay) for config in (ten, hundred)
    ]
    for of_ten, of_hundred in zip(*terms, strict=True):
        assert rates[1] * of_hundred == pytest.approx(rates[0] * of_ten)


def test_an_unknown_recipe_or_method_is_answered_with_those_there_are():
    with pytest.raises(ConfigError, match="there are: toy, table, digits"):
        get_recipe("tony")
    with pytest.raises(ConfigError, match=r"no method 'x'; there are: deterministic"):
        get_recipe("toy", "x")


def test_digits_run_from_nothing_to_rows_of_every_corruption(tmp_path):
    recipe = get_recipe("digits", "deterministic")
    short = dataclasses.replace(recipe.method.descent, epochs=2)
    recipe = dataclasses.replace(recipe, method=dataclasses.replace(recipe.method, descent=short))
    rows = benchmark.run(Run(recipe, path=tmp_path / "run"), progress=False)
    accuracy = {row.split: row.value for row in rows if row.metric == "accuracy"}
    assert len(accuracy) == 1 + 15 * 5
    means = {row.metric: row.value for row in rows if row.split == "digits-c"}
    corrupted = [value for split, value in accuracy.items() if split != "iid"]
    assert means["caccuracy"] == pytest.approx(sum(corrupted) / len(corrupted))


def test_the_table_and_the_classifier_have_the_same_settings():
    recipe = get_recipe("table")
    classifier = DensitySoftmaxClassifier()
    assert isinstance(recipe.method, DensitySoftmax.Config)
    assert classifier._config(4, np.array([10, 10])) == recipe.method
    assert (classifier.depth, classifier.width) == (recipe.encoder.depth, recipe.encoder.width)
    assert classifier.validation_fraction == recipe.data.heldout


@pytest.mark.parametrize("method", MethodConfig.members)
def test_every_method_trains_on_a_table(method, tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"{c + x},{c - y},{'ab'[c]}" for c in (0, 1) for x, y in rng.normal(0, 0.1, (40, 2))]
    file = tmp_path / "rows.csv"
    file.write_text("\n".join(["width,height,kind", *lines]))
    name, changes = recipe_of(str(file), ["encoder.width=8"])
    run = Run(prepare(name, method, changes), path=tmp_path / "run")
    benchmark.run(run, evaluated=False, progress=False)
    test = run.data.splits[0].source
    (batch,) = test.read([range(len(test))], torch.device("cpu"))
    assert (run.load().predict(batch.x).probs.argmax(1) == batch.y).float().mean() >= 0.9
