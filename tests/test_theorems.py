"""The theorems of the Density-Softmax paper as properties, one test each, in float64.

What holds of them, and under which conditions, is what the tests say. Section numbers are those of
the paper's appendix "Proofs".
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax import metrics
from density_softmax.engine import EngineConfig, fit
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.densities import DensityConfig, GaussianDensity, GaussianMixtureDensity
from density_softmax.nn.densities.flows import RadialFlow, change_of_variables
from density_softmax.nn.softmax.head import entropy_of_logits
from density_softmax.types import Batch

NUM_CLASSES, NUM_FEATURES = 3, 4
CENTERS = 4 * torch.eye(NUM_CLASSES, NUM_FEATURES)
GAUSSIANS: dict[str, DensityConfig] = {
    "one Gaussian": GaussianDensity.Config(),
    "a Gaussian per class": GaussianMixtureDensity.Config(),
    "a Gaussian per class, tied": GaussianMixtureDensity.Config(tied=True),
}


def features(num_samples: int, seed: int) -> Batch:
    """Three classes of correlated features."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(num_samples) % NUM_CLASSES
    noise = torch.randn(num_samples, NUM_FEATURES, generator=generator)
    mixing = torch.eye(NUM_FEATURES) + 0.4 * torch.ones(NUM_FEATURES, NUM_FEATURES).triu(1)
    return Batch(CENTERS[y] + noise @ mixing, y)


@cache
def fitted(kind: str) -> DensitySoftmax:
    """Density-Softmax on these features, with a linear head and the default scale."""
    torch.manual_seed(0)
    config = DensitySoftmax.Config(
        representation=None, head=None, density=GAUSSIANS[kind], energy=False
    )
    train, heldout = features(3000, 0), features(1000, 1)
    method = DensitySoftmax(nn.Identity(), NUM_CLASSES, config, train.x)
    nn.init.zeros_(method.head.linear.bias)
    method.head.linear.weight.data = CENTERS.clone()
    engine = EngineConfig(accelerator="cpu")
    fit(method, tuple(train), tuple(heldout), engine=engine, progress=False)
    return method.double()


def directions(num: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(num, NUM_FEATURES, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("kind", [*GAUSSIANS, "a radial flow"])
def test_lemma_the_density_vanishes_far_away_along_every_direction(kind: str) -> None:
    """For Gaussians, their mixtures and radial flows. A RealNVP gives no such guarantee."""
    if kind == "a radial flow":
        torch.manual_seed(0)
        flow = RadialFlow(NUM_FEATURES, 8).double()

        def log_prob(z: Tensor) -> Tensor:
            return change_of_variables(*flow(z))
    else:
        log_prob = fitted(kind).density.log_prob
    with torch.no_grad():
        found = torch.stack([log_prob(r * directions(200)) for r in (1e2, 1e3, 1e4, 1e6)])
    assert (found.diff(dim=0) < 0).all()
    assert (found[-1] < -1e6).all()


@pytest.mark.parametrize("kind", GAUSSIANS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_theorem_1_far_away_the_prediction_is_uniform_although_the_logits_grow(
    kind: str, seed: int
) -> None:
    """The logits of a linear head grow with the distance r; the factor of the default tail falls
    as exp(−c √r), which is faster.
    """
    method, d = fitted(kind), directions(8, seed)
    deviations = []
    for r in (1e4, 1e5, 1e6):
        with torch.no_grad():
            logits, _ = method.logits_and_log_prob(r * d)
        assert (logits.abs().amax(1) > 1e-3 * r / method.head.temperature).all()
        probs = method.predict_features(r * d).probs
        deviations.append((probs - 1 / NUM_CLASSES).abs().amax(1))
    assert all((later <= earlier).all() for earlier, later in pairwise(deviations))
    assert (deviations[-1] < 1e-9).all()


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_theorem_1_typical_inputs_keep_the_prediction_of_the_softmax(kind: str) -> None:
    """Exactly, for all but the share of in-domain data that the scale's quantile names."""
    method, z = fitted(kind), features(2000, 2).x.double()
    with torch.no_grad():
        logits, log_prob = method.logits_and_log_prob(z)
        typical = log_prob >= method.scale.threshold
        probs = method.predict_features(z).probs
    assert typical.double().mean().item() == pytest.approx(0.95, abs=0.02)
    assert torch.equal(probs[typical], logits[typical].softmax(-1))


def simplex(num_classes: int) -> st.SearchStrategy[Tensor]:
    logits = arrays("float64", num_classes, elements=st.floats(-20, 20))
    return logits.map(lambda values: torch.from_numpy(values).softmax(-1))


def losses(probs: Tensor, score: str) -> Tensor:
    """The loss of a prediction for every label."""
    loss = {"nll": metrics.nll, "brier": metrics.brier}[score]
    values = [loss(probs[None], torch.tensor([y])) for y in range(len(probs))]
    return torch.tensor(values, dtype=torch.float64)


def worst_loss(probs: Tensor, score: str) -> float:
    """The largest expected loss under any distribution of labels: that of a certain label."""
    return losses(probs, score).max().item()


@pytest.mark.parametrize("score", ["nll", "brier"])
@settings(max_examples=60, deadline=None)
@given(data=st.data(), num_classes=st.integers(2, 8))
def test_theorem_2_the_uniform_prediction_minimises_the_worst_case_of_a_proper_score(
    score: str, data: st.DataObject, num_classes: int
) -> None:
    """Where nothing is known about the label, as far from all data. In-domain it says nothing."""
    uniform = torch.full((num_classes,), 1 / num_classes, dtype=torch.float64)
    p, truth = data.draw(simplex(num_classes)), data.draw(simplex(num_classes))
    best = {"nll": math.log(num_classes), "brier": 1 - 1 / num_classes}[score]
    assert worst_loss(uniform, score) == pytest.approx(best)
    assert worst_loss(p, score) >= best - 1e-12
    if (p - uniform).abs().max() > 1e-3:
        assert worst_loss(p, score) > best
    # An expected loss is a mean over labels: no distribution is worse than the worst label.
    assert float(truth @ losses(p, score)) <= worst_loss(p, score) + 1e-9


def test_theorem_2_density_softmax_attains_the_minimax_risk_far_away() -> None:
    probs = fitted("one Gaussian").predict_features(1e6 * directions(20)).probs
    for row in probs:
        assert worst_loss(row, "nll") == pytest.approx(math.log(NUM_CLASSES), abs=1e-8)


@settings(max_examples=60, deadline=None)
@given(logits=arrays("float64", 5, elements=st.floats(-30, 30)), data=st.data())
def test_theorem_3_entropy_falls_as_the_factor_rises(logits: object, data: st.DataObject) -> None:
    """dH/da = −a Var(b) for the factor a and logits b, whose variance is under softmax(a b)."""
    small, large = sorted(data.draw(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1))))
    b = torch.as_tensor(logits)
    before, after = (entropy_of_logits(factor * b[None]).item() for factor in (small, large))
    assert after <= before + 1e-9
    if b.max() - b.min() > 1 and large - small > 0.1:
        assert after < before


def mean_distances(z: Tensor, sample: Tensor) -> Tensor:
    """E‖z − Z‖ of every row of z, over a sample of Z."""
    return torch.cdist(z, sample).mean(1)


def symmetric_sample(center: Tensor, root: Tensor) -> Tensor:
    """A sample of N(center, root rootᵀ) that is its own mirror image, as the distribution is."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2000, len(center), generator=generator, dtype=torch.float64) @ root.T
    return torch.cat([center + noise, center - noise])


def gaussian(center: Tensor, root: Tensor) -> GaussianDensity:
    density = GaussianDensity(len(center)).double()
    density.center.copy_(center)
    density.whitening.copy_(torch.linalg.inv(root))
    return density


def test_theorem_3_an_isotropic_gaussian_is_aware_of_the_expected_distance() -> None:
    """Both −log p and E‖z − Z‖ are functions of ‖z − μ‖, in every direction, and rise with it."""
    center, root = torch.arange(4.0).double(), 1.5 * torch.eye(4).double()
    radii = torch.linspace(0.5, 20, 25).double()
    d = F.normalize(torch.randn(25, 4, generator=torch.Generator().manual_seed(1)).double())
    z = center + radii[:, None] * d
    distance = mean_distances(z, symmetric_sample(center, root))
    assert (distance.diff() > 0).all()
    assert ((-gaussian(center, root).log_prob(z)).diff() > 0).all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_theorem_3_any_gaussian_is_aware_of_it_along_rays_and_in_its_own_norm(seed: int) -> None:
    """Along a ray from the mean −log p and E‖z − Z‖ rise together. Across directions they do so in
    the norm ‖Wz‖ that whitens Z; in the plain one a step along a narrow direction is a surprise and
    no distance.
    """
    generator = torch.Generator().manual_seed(seed)
    root = torch.eye(4).double() + 0.7 * torch.randn(4, 4, generator=generator).double().tril(-1)
    root = root * torch.tensor([3.0, 1.0, 0.5, 0.1]).double()[:, None]
    center = torch.randn(4, generator=generator).double()
    density, Z = gaussian(center, root), symmetric_sample(center, root)
    ray = torch.linspace(0.1, 30, 20).double()[:, None] * directions(1, seed)
    for rising in (-density.log_prob(center + ray), mean_distances(center + ray, Z)):
        assert (rising.diff() > 0).all()
    radii = torch.linspace(0.5, 20, 15).double()[:, None]
    z = center + (radii * directions(15, seed)) @ root.T  # of growing whitened length
    W = torch.linalg.inv(root)
    for rising in (-density.log_prob(z), mean_distances(z @ W.T, Z @ W.T)):
        assert (rising.diff() > 0).all()


def test_theorem_3_a_mixture_is_aware_of_it_beyond_its_classes_and_not_between_them() -> None:
    """E‖z − Z‖ is smallest in the middle of all data, where a mixture of classes has seen nothing:
    there its −log p is the better measure of what is not known.
    """
    method = fitted("a Gaussian per class, tied")
    train = features(3000, 0)
    Z, middle = train.x.double(), train.x.double().mean(0)
    centers = torch.stack([Z[train.y == c].mean(0) for c in range(NUM_CLASSES)])
    log_prob = method.density.log_prob
    with torch.no_grad():
        # Beyond: further out than the projection of any class on the ray, in whitened terms.
        for d in directions(50):
            ray = middle + torch.linspace(25, 200, 20).double()[:, None] * d
            assert (-log_prob(ray)).diff().min() > 0
            assert mean_distances(ray, Z).diff().min() > 0
        between = torch.cat([middle[None], centers])
        distance, epistemic = mean_distances(between, Z), -log_prob(between)
    assert (distance[0] < distance[1:]).all()
    assert (epistemic[0] > epistemic[1:]).all()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**31), sharpness=st.floats(1, 30))
def test_proposition_a_factor_lowers_the_ece_of_overconfident_predictions(
    seed: int, sharpness: float
) -> None:
    """As long as every bin of the scaled predictions stays overconfident. Then their ECE is their
    mean confidence minus the accuracy, which is no more than that of the softmax, and no ECE is
    less than the gap of the means. The classes predicted stay the same.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(300, 4, generator=generator).double()
    factor = torch.rand(300, 1, generator=generator).double()
    softmax, ours = logits.softmax(-1), (factor * logits).softmax(-1)
    assert torch.equal(softmax.argmax(-1), ours.argmax(-1))
    y = labels_of_overconfident_bins(ours)
    assert metrics.ece(ours, y) <= metrics.ece(softmax, y) + 1e-12


def labels_of_overconfident_bins(probs: Tensor, num_bins: int = 15) -> Tensor:
    """Labels with which no bin is right more often than its mean confidence."""
    confidence, predicted = probs.max(-1)
    bins = (confidence * num_bins).ceil().clamp(1, num_bins)
    y = (predicted + 1) % probs.shape[1]
    for number in bins.unique():
        rows = (bins == number).nonzero().squeeze(1)
        right = rows[: math.floor(confidence[rows].sum())]
        y[right] = predicted[right]
    return y


def test_proposition_overconfidence_of_the_softmax_alone_does_not_suffice() -> None:
    """The paper's premise includes a calibrated softmax, acc = conf, which any factor spoils."""
    logits = torch.tensor([[math.log(3.0), 0.0]], dtype=torch.float64).expand(100, 2)
    y = torch.arange(100) // 75  # right in 75 of 100 cases, as predicted
    assert metrics.ece(logits.softmax(-1), y) == pytest.approx(0, abs=1e-12)
    assert metrics.ece((0.5 * logits).softmax(-1), y) > 0.1
