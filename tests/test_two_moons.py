"""What the toy experiment promises, on three seeds. The README says how others fare."""

import math

import pytest
import torch

from density_softmax.benchmark import run
from density_softmax.recipes import prepare
from density_softmax.runs.run import Run


@pytest.fixture(scope="module", params=[0, 1, 2])
def two_moons(request, tmp_path_factory):
    """Rows of ERM and Density-Softmax, and the trained Density-Softmax."""
    seed, folder = request.param, tmp_path_factory.mktemp("two_moons")
    rows = {}
    for method in ("deterministic", "density_softmax"):
        found = run(Run(prepare("toy", method), seed, folder / method), progress=False)
        rows[method] = {(row.split, row.metric): row.value for row in found}
    return rows["deterministic"], rows["density_softmax"], Run.at(folder / "density_softmax").load()


def test_it_is_accurate_and_nearly_as_likely_as_erm(two_moons):
    erm, ours, _ = two_moons
    assert ours["iid", "accuracy"] >= 0.99
    assert ours["iid", "nll"] <= erm["iid", "nll"] + 0.01


def test_it_does_not_believe_itself_on_the_cluster_where_erm_does(two_moons):
    erm, ours, _ = two_moons
    assert ours["cluster", "confidence"] <= 0.55
    assert erm["cluster", "confidence"] >= 0.95


def test_entropy_and_density_detect_the_cluster(two_moons):
    _, ours, _ = two_moons
    assert ours["cluster", "auroc:entropy"] >= 0.99
    assert ours["cluster", "auroc:epistemic"] >= 0.99


def test_it_is_uniform_far_away_in_every_direction(two_moons):
    angles = torch.linspace(0, 2 * math.pi, 72)
    far = 100 * torch.stack([angles.cos(), angles.sin()], dim=1)
    probs = two_moons[2].predict(far).probs
    assert (probs - 0.5).abs().max() <= 1e-3


def test_features_a_thousand_times_too_large_give_finite_answers(two_moons):
    prediction = two_moons[2].predict(1000 * torch.randn(50, 2))
    assert all(part.isfinite().all() for part in prediction)
