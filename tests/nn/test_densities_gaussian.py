"""Gaussians and class mixtures against independent implementations."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.covariance import empirical_covariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.mixture import GaussianMixture
from test_densities import batches, estimate, run
from torch import Tensor
from torch.distributions import MultivariateNormal

from density_softmax.config import ConfigError
from density_softmax.errors import UserError
from density_softmax.nn.densities import (
    ClassAwareDensity,
    GaussianDensity,
    GaussianMixtureDensity,
    TiedMixtureDensity,
)
from density_softmax.nn.densities.gaussian import (
    SHRINKAGES,
    ClosedFormDensity,
    WhitenedDensity,
)
from density_softmax.nn.densities.mixtures import whitening
from density_softmax.types import Batch

EPS = torch.finfo(torch.float32).eps


def clouds(num_samples: int = 300, num_features: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three classes of different size, place and shape."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(6, (num_samples,), generator=generator).clamp_max(3) % 3
    shapes = torch.randn(3, num_features, num_features, generator=generator)
    z = torch.randn(num_samples, num_features, generator=generator)
    z = torch.einsum("nd,nde->ne", z, shapes[y]) + 2 * y[:, None]
    return z * torch.logspace(-1, 1, num_features) + 3, y


Z, Y = clouds()


def fit(density: ClosedFormDensity, z: Tensor = Z, y: Tensor = Y) -> ClosedFormDensity:
    run(density, z, y=y)
    return density


def covariance_of(whitener: Tensor) -> np.ndarray:
    """Of the features, from what whitens them."""
    inverse = torch.linalg.inv(whitener.double())
    return (inverse @ inverse.T).numpy()


def test_gaussian_is_torchs_with_maximum_likelihood_moments() -> None:
    density = fit(GaussianDensity(4))
    normal = MultivariateNormal(Z.mean(0), torch.cov(Z.T, correction=0))
    torch.testing.assert_close(density.log_prob(Z), normal.log_prob(Z), rtol=1e-4, atol=1e-4)


def test_mixture_is_that_of_scipy_with_shares_for_weights() -> None:
    density = fit(GaussianMixtureDensity(4, 3))
    z, y = Z.double().numpy(), Y.numpy()
    joint = [
        np.log(np.mean(y == c))
        + multivariate_normal(z[y == c].mean(0), np.cov(z[y == c].T, ddof=0)).logpdf(z)
        for c in range(3)
    ]
    np.testing.assert_allclose(density.log_prob(Z), logsumexp(joint, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["full", "tied"])
def test_mixture_scores_samples_as_sklearns_does(kind: str) -> None:
    member = {"full": GaussianMixtureDensity, "tied": TiedMixtureDensity}[kind]
    density = fit(member(4, 3))
    z, y = Z.double().numpy(), Y.numpy()
    reference = GaussianMixture(3, covariance_type=kind)
    reference.weights_ = np.bincount(y) / len(y)
    reference.means_ = np.stack([z[y == c].mean(0) for c in range(3)])
    covariances = np.stack([np.cov(z[y == c].T, ddof=0) for c in range(3)])
    if kind == "tied":
        covariances = np.einsum("c,cde->de", reference.weights_, covariances)
    factors = np.linalg.cholesky(covariances)
    reference.precisions_cholesky_ = np.swapaxes(np.linalg.inv(factors), -1, -2)
    test = clouds(seed=1)[0]
    expected = reference.score_samples(test.double().numpy())
    np.testing.assert_allclose(density.log_prob(test), expected, rtol=1e-4, atol=1e-3)


def test_class_covariances_are_the_maximum_likelihood_ones() -> None:
    density = fit(GaussianMixtureDensity(4, 3))
    for c in range(3):
        covariance = covariance_of(density.whitening[c])
        expected = empirical_covariance(Z[c == Y].numpy())
        np.testing.assert_allclose(covariance, expected, rtol=1e-3, atol=1e-4)


def test_tied_covariance_is_that_of_lda() -> None:
    density = fit(TiedMixtureDensity(4, 3))
    reference = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True)
    reference.fit(Z.numpy(), Y.numpy())
    covariance = covariance_of(density.whitening)
    np.testing.assert_allclose(covariance, reference.covariance_, rtol=1e-3, atol=1e-4)


def test_tied_mixture_of_one_class_is_the_gaussian() -> None:
    z, y = Z, torch.zeros_like(Y)
    gaussian, mixture = fit(GaussianDensity(4)), fit(TiedMixtureDensity(4, 1), z, y)
    torch.testing.assert_close(mixture.log_prob(z), gaussian.log_prob(z))


def test_classes_of_one_shape_make_tied_and_free_mixtures_agree() -> None:
    z = torch.cat([Z, Z + 7])
    y = torch.arange(2).repeat_interleave(len(Z))
    free, tied = fit(GaussianMixtureDensity(4, 2), z, y), fit(TiedMixtureDensity(4, 2), z, y)
    torch.testing.assert_close(tied.log_prob(z), free.log_prob(z), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("member", [GaussianMixtureDensity, TiedMixtureDensity])
def test_a_class_without_samples_takes_no_part(member: type) -> None:
    with_gap = fit(member(4, 5), Z, torch.tensor([0, 2, 4])[Y])
    torch.testing.assert_close(with_gap.log_prob(Z), fit(member(4, 3)).log_prob(Z))


@pytest.mark.parametrize("member", [GaussianMixtureDensity, TiedMixtureDensity])
def test_a_class_with_one_sample_is_a_spike(member: type) -> None:
    z = torch.cat([Z, torch.full((1, 4), 50.0)])
    density = fit(member(4, 4), z, torch.cat([Y, torch.tensor([3])]))
    log_prob = density.log_prob(z)
    assert log_prob.isfinite().all()
    assert log_prob[-1] > density.log_prob(z[-1:] + 5)[0]


@pytest.mark.parametrize("num_samples", [2, 5, 9])
@pytest.mark.parametrize("name", ["gaussian", "full", "tied"])
def test_fewer_samples_than_dimensions_are_enough(name: str, num_samples: int) -> None:
    z, y = clouds(num_samples, 12)
    density = {
        "gaussian": GaussianDensity(12),
        "full": GaussianMixtureDensity(12, 3),
        "tied": TiedMixtureDensity(12, 3),
    }[name]
    fit(density, z, y)
    fresh = clouds(50, 12, seed=1)[0]
    assert density.log_prob(torch.cat([z, 1000 * z, fresh])).isfinite().all()
    assert density.log_prob(z).min() > density.log_prob(fresh).max()


def test_a_label_out_of_range_is_named() -> None:
    (stage,) = GaussianMixtureDensity(4, 2).stages()
    with pytest.raises(UserError, match="label 2: the density knows classes 0 to 1"):
        estimate(stage, batches(Z, 64, Y))


def test_covariances_that_do_not_fit_in_memory_are_refused_with_a_remedy() -> None:
    with pytest.raises(UserError, match=r"1000 covariances of 2048 features take 17 GB.*tied"):
        GaussianMixtureDensity.Config().build(2048, 1000)


def spectrum(*eigenvalues: float) -> Tensor:
    """A matrix with these eigenvalues in directions of no coordinate."""
    generator = torch.Generator().manual_seed(3)
    square = torch.randn(len(eigenvalues), len(eigenvalues), generator=generator).double()
    Q = torch.linalg.qr(square).Q
    return Q @ torch.diag(torch.tensor(eigenvalues).double()) @ Q.T


@pytest.mark.parametrize("smallest", [1.0, 1e-3, 1e-6])
def test_a_positive_definite_covariance_gets_no_jitter(smallest: float) -> None:
    covariance = spectrum(2.0, 1.0, smallest)
    W, jitter = whitening(covariance, torch.ones(3).double())
    assert jitter == 0
    torch.testing.assert_close(W @ covariance @ W.T, torch.eye(3).double())


def test_jitter_does_not_depend_on_the_scale_of_features() -> None:
    unit = torch.tensor([1e-6, 1.0, 1e6]).double()
    covariance = torch.outer(unit, unit) * torch.tensor([[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1]])
    W, jitter = whitening(covariance, unit.square())
    assert jitter == 0
    torch.testing.assert_close(W @ covariance @ W.T, torch.eye(3).double())


@pytest.mark.parametrize("smallest", [0.0, 1e-9, -1e-12, -3e-7, -2e-5])
def test_jitter_is_the_smallest_that_works(smallest: float) -> None:
    covariance = spectrum(2.0, 1.0, smallest)
    W, jitter = whitening(covariance, torch.ones(3).double())
    assert smallest + jitter > EPS / 2
    smaller = jitter / 2 if jitter > EPS else 0.0
    assert smallest + smaller <= EPS / 2
    regular = covariance + jitter * torch.eye(3).double()
    torch.testing.assert_close(W @ regular @ W.T, torch.eye(3).double())


def test_constant_features_and_doubled_ones_get_the_first_jitter() -> None:
    z = torch.cat([Z, Z[:, :1], torch.full((len(Z), 1), 4.2)], 1).double()
    covariance = torch.cov(z.T, correction=0)
    variance = covariance.diagonal() * torch.tensor([1, 1, 1, 1, 1, 0])
    assert whitening(covariance, variance)[1] == pytest.approx(EPS)


# Eighths: sums of their products are exact in float64, in whatever order.
eighths = st.lists(st.lists(st.integers(-99, 99), min_size=3, max_size=3), min_size=3, max_size=40)


@pytest.mark.parametrize("name", ["gaussian", "full", "tied"])
@settings(max_examples=30)
@given(rows=eighths, cuts=st.lists(st.integers(0, 40), max_size=6))
def test_the_fit_does_not_depend_on_how_samples_are_split_into_batches(
    name: str, rows: list[list[int]], cuts: list[int]
) -> None:
    z = torch.tensor([[0.0, 0.0, 0.0], *rows, [1.0, 2.0, 3.0]]) / 8
    y = torch.arange(len(z)) % 3 % 2
    edges = [0, *sorted(min(cut, len(z)) for cut in cuts), len(z)]
    parts = [(a, b) for a, b in pairwise(edges) if a < b]
    found = []
    for pieces in ([(0, len(z))], parts):
        density = {
            "gaussian": GaussianDensity(3),
            "full": GaussianMixtureDensity(3, 2),
            "tied": TiedMixtureDensity(3, 2),
        }[name]
        stage, *_ = density.stages()
        estimate(stage, [batches(z[a:b], 99, y[a:b])[0] for a, b in pieces])
        found.append(density.state_dict())
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


@pytest.mark.parametrize("member", [GaussianMixtureDensity, TiedMixtureDensity])
def test_fits_of_different_batches_agree_to_rounding(member: type) -> None:
    found = []
    for size in (300, 64, 7, 1):
        density = member(4, 3)
        for stage in density.stages():
            estimate(stage, batches(Z, size, Y))
        found.append(density.log_prob(Z))
    for log_prob in found[1:]:
        torch.testing.assert_close(log_prob, found[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("offset", [1e2, 1e4, 1e6])
def test_features_far_from_zero_keep_their_covariance(offset: float) -> None:
    z = 4 * Z[:, 2:] + torch.tensor([offset, -offset])
    density = fit(GaussianDensity(2), z)
    expected = np.cov(z.double().numpy().T, ddof=0)
    covariance = covariance_of(density.whitening)
    np.testing.assert_allclose(covariance, expected, rtol=1e-3)


def test_neural_collapse_keeps_the_tied_density_exact() -> None:
    """Classes thousands of deviations apart: squares of distances would cancel in float32."""
    z = 4e-3 * torch.randn(300, 4, generator=torch.Generator().manual_seed(0)) + 10 * Y[:, None]
    density = fit(TiedMixtureDensity(4, 3), z)
    x = z.double()
    means = torch.stack([x[c == Y].mean(0) for c in range(3)])
    covariance = torch.cov((x - means[Y]).T, correction=0)
    own = MultivariateNormal(means[Y], covariance).log_prob(x) + (Y.bincount() / 300).log()[Y]
    torch.testing.assert_close(density.log_prob(z).double(), own, rtol=0, atol=0.02)


def fit_apart(density: WhitenedDensity, train: tuple[Tensor, Tensor], heldout: Tensor) -> None:
    """Σ from training samples, the shrinkage from others."""
    first, second = density.stages()
    estimate(first, batches(train[0], 64, train[1]))
    estimate(second, batches(heldout, 64, torch.zeros(len(heldout), dtype=torch.long)))


def correlated(num_samples: int, seed: int, num_features: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(num_features, num_features, generator=torch.Generator().manual_seed(9))
    return torch.randn(num_samples, num_features, generator=generator) @ mixing + 1


@pytest.mark.parametrize("num_samples", [8, 30, 300])
def test_shrinkage_is_the_one_under_which_held_out_features_are_likeliest(num_samples: int) -> None:
    z, heldout = correlated(num_samples, 0), correlated(500, 1)
    density = GaussianDensity(12)
    fit_apart(density, (z, torch.zeros(num_samples, dtype=torch.long)), heldout)
    covariance, variance = np.cov(z.T.double(), ddof=0), z.double().var(0, correction=0).numpy()

    def held_out_likelihood(s: float) -> float:
        shrunk = (1 - s) * covariance + s * np.diag(variance)
        return multivariate_normal(z.double().mean(0), shrunk).logpdf(heldout.double()).mean()

    best = max((s for s in SHRINKAGES if s > 1e-4), key=held_out_likelihood)
    found = density.log_prob(heldout).double().mean().item()
    assert found == pytest.approx(held_out_likelihood(best), rel=1e-3)


def test_fewer_samples_are_shrunk_more() -> None:
    shrinkages = []
    for num_samples in (6, 20, 100, 5000):
        density = GaussianDensity(12)
        y = torch.zeros(num_samples, dtype=torch.long)
        fit_apart(density, (correlated(num_samples, 0), y), correlated(500, 1))
        shrinkages.append(density.shrinkage.item())
    assert shrinkages == sorted(shrinkages, reverse=True)
    assert shrinkages[-1] < 0.01


def directions_of(z: Tensor) -> np.ndarray:
    return (z.double() / z.double().norm(dim=1, keepdim=True)).numpy()


def class_aware_reference(z: Tensor, y: Tensor, test: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Both experts by scipy, without shrinkage."""
    u, v = directions_of(z), directions_of(test)
    means = np.stack([u[y == c].mean(0) for c in range(3)])
    within = (u - means[y]).T @ (u - means[y]) / (len(u) - 3)
    between = np.cov(means[y].T, ddof=0)
    log_p = np.max([multivariate_normal(m, within).logpdf(v) for m in means], axis=0)
    return log_p, log_p - multivariate_normal(u.mean(0), within + between).logpdf(v)


def test_class_aware_experts_are_the_nearest_class_and_its_ratio_to_one_gaussian() -> None:
    (z, y), (test, _) = clouds(2000), clouds(200, seed=1)
    density = ClassAwareDensity(4, 3)
    run(density, z, y=y)
    assert density.shrinkage < 1e-2
    expected = class_aware_reference(z, y, test)
    np.testing.assert_allclose(density.log_prob(test), expected[0], rtol=0.02, atol=0.05)
    np.testing.assert_allclose(density.experts(test)[:, 1], expected[1], rtol=0.02, atol=0.05)


def test_class_aware_experts_see_directions_alone() -> None:
    density = ClassAwareDensity(4, 3)
    run(density, Z, y=Y)
    torch.testing.assert_close(density.experts(7 * Z), density.experts(Z), rtol=1e-3, atol=1e-3)
    assert density.experts(torch.zeros(1, 4)).isfinite().all()


@pytest.mark.parametrize(
    ("num_samples", "num_features", "num_classes"),
    [(6, 40, 3), (40, 8, 40), (1500, 16, 1000), (30, 2, 3)],
    ids=["more dimensions than samples", "a sample a class", "1,000 classes", "two dimensions"],
)
def test_class_aware_density_is_fitted_to_few_samples(
    num_samples: int, num_features: int, num_classes: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    means = 3 * torch.randn(num_classes, num_features, generator=generator)
    y = torch.arange(num_samples) % num_classes
    z = means[y] + torch.randn(num_samples, num_features, generator=generator)
    fresh = means[y] + torch.randn(num_samples, num_features, generator=generator)
    density = ClassAwareDensity(num_features, num_classes)
    first, second = density.stages()
    estimate(first, batches(z, 64, y))
    estimate(second, batches(fresh, 64, y))
    experts = density.experts(fresh)
    assert experts.isfinite().all()
    unlike = density.experts(torch.randn(num_samples, num_features, generator=generator))
    assert (experts[:, 1].mean() > unlike[:, 1].mean()).item()


def test_class_aware_experts_ignore_classes_without_samples() -> None:
    with_gap, without = ClassAwareDensity(4, 5), ClassAwareDensity(4, 3)
    run(with_gap, Z, y=torch.tensor([0, 2, 4])[Y])
    run(without, Z, y=Y)
    torch.testing.assert_close(with_gap.experts(Z), without.experts(Z), rtol=1e-3, atol=1e-3)


def test_a_class_aware_density_that_is_shrunk_stays_what_it_is() -> None:
    """Its rows are turned, and the shrinkage of other held-out samples would be along others."""
    generator = torch.Generator().manual_seed(0)
    y, shape = torch.arange(60) % 6, torch.randn(32, 32, generator=generator)
    z, fresh = torch.randn(2, 60, 32, generator=generator) @ shape
    density = ClassAwareDensity(32, 6)
    first, second = density.stages()
    estimate(first, batches(z, 64, y))
    estimate(second, batches(fresh, 64, y))
    expected, chosen = density.experts(z), density.shrinkage.clone()
    estimate(second, batches(3 * fresh[:20].flip(0), 64, y[:20]))
    torch.testing.assert_close(density.experts(z), expected, rtol=0, atol=0)
    estimate(first, batches(z, 64, y))
    estimate(second, batches(fresh, 64, y))
    assert density.shrinkage == chosen
    torch.testing.assert_close(density.experts(z), expected)


@pytest.mark.parametrize("least", [0.0, 0.5, 1.0])
def test_the_least_shrinkage_bounds_what_held_out_data_ask_for(least: float) -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(5000, 4, generator=generator) @ torch.randn(4, 4, generator=generator)
    y = torch.zeros(len(z), dtype=torch.long)
    density = GaussianDensity.Config(least_shrinkage=least).build(4, 2)
    for stage in density.stages():
        stage.finish(stage.statistics(Batch(z, y)))
    found = density.shrinkage.item()
    assert found == least if least else found < 0.01
    covariance = torch.linalg.inv(density.whitening.double().T @ density.whitening.double())
    expected = torch.cov(z.double().T, correction=0)
    shrunk = expected * (1 - found + found * torch.eye(4))
    torch.testing.assert_close(covariance, shrunk, rtol=1e-3, atol=1e-4)
    with pytest.raises(ConfigError, match=r"least_shrinkage=1\.5: choose one from 0 to 1"):
        GaussianDensity.Config(least_shrinkage=1.5)
