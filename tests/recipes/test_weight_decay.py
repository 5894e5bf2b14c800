"""Settings of methods that weight decay must spare in part, published ones and ours."""

import pytest

from density_softmax.config import to_dict
from density_softmax.recipes import RECIPES, get_recipe

KINDS = ("mean_field", "rank1_bnn", "batch_ensemble")


def decay_epochs(descent) -> list[float]:
    stretch = descent.epochs / descent.schedule.nominal_epochs
    return [milestone * stretch for milestone in descent.schedule.milestones]


@pytest.mark.parametrize("recipe", ["cifar10", "cifar100"])
@pytest.mark.parametrize(
    ("kind", "decays", "expected"),
    [
        (
            "mean_field",
            [75, 150, 200],
            {"initial_std": 1e-3, "prior_std": 0.1, "annealing_epochs": 200, "l2": 4e-4},
        ),
        (
            "rank1_bnn",
            [100, 200, 225],
            {
                "num_members": 4,
                "num_samples": 1,
                "positive": 0.5,
                "initial_std": (1e-3 / 0.999) ** 0.5,
                "prior_std": 0.1,
                "annealing_epochs": 200,
                "l2": 1e-4,
            },
        ),
        (
            "batch_ensemble",
            [100, 200, 225],
            {"num_members": 4, "initial_std": 0.5, "fast_gradient": 0.5, "l2": 3e-4},
        ),
    ],
)
def test_cifar_has_the_settings_of_uncertainty_baselines(recipe, kind, decays, expected):
    method = get_recipe(recipe, kind).method
    assert expected.items() <= to_dict(method).items()
    assert method.descent.epochs == 250
    assert decay_epochs(method.descent) == decays
    # Base rate .1 at a batch of 128.
    assert method.descent.optimizer.lr == pytest.approx(0.1 * method.descent.batch_size / 128)


def test_imagenet_has_the_settings_of_uncertainty_baselines():
    rank1, ensemble = (get_recipe("imagenet", kind).method for kind in KINDS[1:])
    assert (rank1.positive, rank1.prior_std, rank1.annealing_epochs) == (0.75, 0.05, 90)
    assert rank1.member_norm
    assert (ensemble.initial_std, ensemble.fast_gradient) == (0.5, 0.25)
    for method in (rank1, ensemble):
        assert (method.l2, method.descent.epochs) == (1e-4, 135)
        assert decay_epochs(method.descent) == [45, 90, 120]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", [*KINDS, "sngp"])
def test_no_weight_decay_takes_hold_of_posteriors_and_factors(recipe, kind):
    assert get_recipe(recipe, kind).method.descent.optimizer.weight_decay == 0


@pytest.mark.parametrize("recipe", ["toy", "digits", "cifar10_small", "cifar100_small"])
@pytest.mark.parametrize("kind", [*KINDS, "sngp"])
def test_our_recipes_train_them_as_long_and_decay_them_as_much_as_erm(recipe, kind):
    method, erm = (get_recipe(recipe, m).method for m in (kind, "deterministic"))
    assert method.descent.epochs == erm.descent.epochs
    assert method.descent.optimizer.lr == erm.descent.optimizer.lr
    assert method.l2 == erm.descent.optimizer.weight_decay / 2
