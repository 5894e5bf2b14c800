import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from density_softmax.nn.layers.processes import RandomFeatureProcess, _orthogonal_frequencies

Config = RandomFeatureProcess.Config
SMALL = Config(num_features=40, num_inputs=None, normalize=False, length_scale=1.0, scaled=True)


def points(num_samples: int, num_features: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_samples, num_features, generator=torch.Generator().manual_seed(seed))


def process(config: Config = SMALL, num_features: int = 3) -> RandomFeatureProcess:
    torch.manual_seed(0)
    return config.build(num_features, 2)


@torch.no_grad()
def fitted(
    config: Config = SMALL, num_samples: int = 60
) -> tuple[RandomFeatureProcess, np.ndarray]:
    """A process fitted to points, and their random features in float64."""
    gp = process(config)
    gp.estimate(gp.sums(points(num_samples)))
    return gp, gp.random_features(points(num_samples)).double().numpy()


def test_products_of_features_approximate_the_gaussian_kernel():
    config = Config(
        num_features=8192, num_inputs=None, normalize=False, length_scale=2.0, scaled=True
    )
    z = points(20)
    phi = process(config).random_features(z)
    kernel = torch.exp(-0.5 * torch.cdist(z, z).square() / 2.0**2)
    torch.testing.assert_close(phi @ phi.T, kernel, rtol=0, atol=0.04)


def test_frequencies_are_orthogonal_within_blocks_and_gaussian_one_by_one():
    torch.manual_seed(0)
    rows = _orthogonal_frequencies(4000, 8).view(500, 8, 8)
    products = rows @ rows.mT
    off_diagonal = products - torch.diag_embed(products.diagonal(dim1=1, dim2=2))
    assert off_diagonal.abs().max() < 1e-4
    assert products.diagonal(dim1=1, dim2=2).mean().item() == pytest.approx(8, rel=0.03)
    assert rows.std().item() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize(("num_features", "num_inputs"), [(5, 9), (7, 3), (4, 1)])
def test_any_number_of_frequencies_can_be_drawn(num_features, num_inputs):
    assert _orthogonal_frequencies(num_features, num_inputs).shape == (num_features, num_inputs)


@pytest.mark.parametrize("ridge", [1.0, 0.01])
def test_covariance_is_the_inverse_of_ridge_plus_all_outer_products(ridge):
    gp, phi = fitted(Config(**{**vars(SMALL), "ridge": ridge}))
    expected = np.linalg.inv(ridge * np.eye(40) + phi.T @ phi)
    covariance = (gp.whitening.T @ gp.whitening).numpy()
    np.testing.assert_allclose(covariance, expected, rtol=1e-3, atol=1e-5 * expected.max())
    np.testing.assert_array_equal(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance.astype(np.float64)).min() > 0


@pytest.mark.parametrize("ridge", [1.0, 0.1])
def test_variance_is_that_of_gaussian_process_regression(ridge):
    """k(x, x) − k(x, X) (K + r I)⁻¹ k(X, x), the same in the language of kernels."""
    gp, phi = fitted(Config(**{**vars(SMALL), "ridge": ridge}))
    z = points(15, seed=1)
    _, variance = gp(z)
    psi = gp.random_features(z).double().numpy()
    cross = psi @ phi.T
    solved = np.linalg.solve(phi @ phi.T + ridge * np.eye(len(phi)), cross.T)
    expected = (psi**2).sum(1) - (cross * solved.T).sum(1)
    np.testing.assert_allclose(variance.detach().numpy(), expected, rtol=1e-4)


def test_before_any_data_the_variance_is_that_of_the_prior():
    gp = process(Config(**{**vars(SMALL), "ridge": 0.3}))
    _, variance = gp(points(6))
    torch.testing.assert_close(variance, gp.random_features(points(6)).square().sum(-1))


def test_variance_grows_away_from_the_data():
    gp, _ = fitted(Config(**{**vars(SMALL), "num_features": 512}), num_samples=300)
    directions = nn.functional.normalize(points(200, seed=2))
    means = [gp(radius * directions)[1].mean().item() for radius in (0.5, 2.0, 4.0, 8.0)]
    assert means == sorted(means)
    assert means[0] < 0.1
    assert means[-1] > 0.5


def test_data_in_two_parts_give_the_covariance_of_the_whole():
    whole, _ = fitted()
    parts, z = process(), points(60)
    total = parts.sums(z[:23])["precision"] + parts.sums(z[23:])["precision"]
    with torch.no_grad():
        parts.estimate({"precision": total})
    torch.testing.assert_close(parts.whitening, whole.whitening)


def test_features_follow_the_formula_of_the_settings():
    gp = process(Config(num_features=16, num_inputs=5, normalize=True), num_features=3)
    z = points(4)
    projected = z @ gp.projection.T
    standard = (projected - projected.mean(1, keepdim=True)) / torch.sqrt(
        projected.var(1, keepdim=True, correction=0) + gp.norm.eps
    )
    expected = torch.cos(standard @ gp.frequencies.T + gp.phase)
    torch.testing.assert_close(gp.random_features(z), expected)
    logits, _ = gp(z)
    torch.testing.assert_close(logits, expected @ gp.weights.weight.T)
    torch.testing.assert_close(gp.logits(z), logits)
    assert ((gp.phase >= 0) & (gp.phase < 2 * math.pi)).all()


def test_only_output_weights_and_the_layer_norm_are_learned():
    def names(config: Config) -> set[str]:
        return {name for name, _ in process(config).named_parameters()}

    assert names(Config(num_features=16)) == {"weights.weight"}
    normalized = names(Config(num_features=16, normalize=True))
    assert normalized == {"weights.weight", "norm.weight", "norm.bias"}


@torch.no_grad()
def variances_along_rays(config: Config) -> list[float]:
    """Mean variance at growing multiples of features as wide and as long as those of a WRN."""
    torch.manual_seed(0)
    gp = config.build(640, 10)
    z = 0.3 * (torch.randn(2000, 3) @ torch.randn(3, 640)).relu()  # 9 long, in few directions
    gp.estimate(gp.sums(z[:1000]))
    return [gp(factor * z[1000:])[1].mean().item() for factor in (1.0, 2.0, 4.0, 8.0)]


def test_by_default_the_variance_grows_with_the_distance_from_the_data_up_to_the_priors():
    found = variances_along_rays(Config())
    assert all(later > 2 * earlier for earlier, later in pairwise(found))
    assert found[0] < 1
    assert found[3] > 0.6 * 1024 / 2  # the prior's is the sum of 1024 squares of cosines


def test_behind_a_layer_norm_the_variance_does_not_see_the_length_of_a_feature():
    found = variances_along_rays(Config(normalize=True))
    assert found == pytest.approx([found[0]] * 4, rel=0.01)


@pytest.mark.parametrize(
    "changes", [{"num_features": 0}, {"length_scale": 0.0}, {"ridge": -1.0}, {"num_inputs": 0}]
)
def test_settings_without_meaning_are_refused(changes):
    with pytest.raises(ValueError, match=f"{next(iter(changes))}="):
        Config(**changes)
