import runpy
import sys

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from density_softmax.errors import UserError
from density_softmax.nn.layers import processes as sparse_process
from density_softmax.nn.layers.processes import JITTER, SparseProcess, _squared_distances

pytest.importorskip("gpytorch")

FEATURES, CLASSES, INDUCING = 4, 3, 6


def process() -> SparseProcess:
    """One whose parameters are all somewhere else than at the beginning."""
    torch.manual_seed(0)
    process = SparseProcess(FEATURES, CLASSES, INDUCING)
    with torch.no_grad():
        for parameter in process.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return process


def features(num_samples: int = 9, seed: int = 1) -> Tensor:
    return torch.randn(num_samples, FEATURES, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("mode", [True, False], ids=["training", "evaluation"])
def test_marginals_are_those_of_gpytorch(mode: bool) -> None:
    ours = process().train(mode)
    with torch.no_grad():
        mean, variance = ours(features())
        theirs = ours.model(features())
        torch.testing.assert_close(mean, theirs.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(variance, theirs.variance, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_gpytorch() -> None:
    ours, theirs = process(), process()
    mean, variance = ours(features())
    (mean.sin().sum() + variance.sqrt().sum() + ours.kl()).backward()
    q = theirs.model(features())
    kl = theirs.model.variational_strategy.kl_divergence().sum()
    (q.mean.sin().sum() + q.variance.sqrt().sum() + kl).backward()
    named = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, named[name].grad, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_marginals_are_those_of_the_textbook() -> None:
    """Hensman et al. 2015 in its unwhitened form, with inverses, in numpy and float64."""
    ours = process().eval()
    mean, root = (value.double().numpy() for value in ours._variational())
    U, z = ours.inducing_points.double().numpy(), features().double().numpy()
    for c in range(CLASSES):
        s = ours.model.covar_module.outputscale[c].item()
        scale, shift = ours.length_scale[c].item(), ours.model.mean_module.constant[c].item()

        def k(a, b, s=s, scale=scale):
            return s * np.exp(-0.5 * ((a[:, None] - b) ** 2).sum(-1) / scale**2)

        Kuu = k(U, U) + JITTER * np.eye(INDUCING)
        L = np.linalg.cholesky(Kuu)
        P = k(z, U) @ np.linalg.inv(Kuu)
        expected = shift + P @ (L @ mean[c])
        covariance = k(z, z) + P @ (L @ root[c] @ root[c].T @ L.T - Kuu) @ P.T
        found = ours(features())
        np.testing.assert_allclose(found.mean[:, c], expected, rtol=1e-4, atol=1e-5)
        variance = covariance.diagonal() + JITTER
        np.testing.assert_allclose(found.variance[:, c], variance, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_kl_is_that_of_normal_distributions() -> None:
    ours = process()
    mean, root = ours._variational()
    prior = MultivariateNormal(torch.zeros(INDUCING), torch.eye(INDUCING))
    q = MultivariateNormal(mean, root @ root.mT)
    torch.testing.assert_close(ours.kl(), kl_divergence(q, prior).sum(), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_far_from_all_inducing_points_the_process_is_its_prior() -> None:
    ours = process().eval()
    mean, variance = ours(1e4 * features())
    torch.testing.assert_close(mean, ours.model.mean_module.constant.expand(9, -1))
    prior = ours.model.covar_module.outputscale + JITTER
    torch.testing.assert_close(variance, prior.expand(9, -1))


@torch.no_grad()
def test_evaluation_begins_with_the_parameters_that_training_left() -> None:
    ours = process().eval()
    ours.train()
    ours.inducing_points.mul_(2)
    expected = ours(features())
    stale = ours.whitening.clone()
    ours.eval()
    assert not torch.equal(ours.whitening, stale)
    for found, value in zip(ours(features()), expected, strict=True):
        assert torch.equal(found, value)


def test_the_process_begins_at_the_means_of_clusters_and_with_their_mean_distance() -> None:
    generator = torch.Generator().manual_seed(0)
    centers = 10 * torch.randn(INDUCING, FEATURES, generator=generator)
    z = (centers[:, None] + 0.1 * torch.randn(INDUCING, 20, FEATURES, generator=generator)).flatten(
        0, 1
    )
    ours = SparseProcess(FEATURES, CLASSES, INDUCING).eval()
    ours.initialize(z)
    means = z.view(INDUCING, 20, FEATURES).mean(1)
    distances = torch.cdist(means, ours.inducing_points)
    assert distances.amin(1).max() < 1e-4
    expected = pdist(z.numpy()).mean()
    np.testing.assert_allclose(ours.length_scale.detach().flatten(), expected, rtol=1e-4)
    trained = SparseProcess(FEATURES, CLASSES, INDUCING)
    trained.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(z).variance, trained(z).variance)  # the buffer is up to date


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_kernels_do_not_saturate_whatever_the_scale_of_the_features(scale: float) -> None:
    ours = SparseProcess(FEATURES, CLASSES, INDUCING)
    z = scale * features(200)
    ours.initialize(z)
    kernel = ours._kernel(_squared_distances(z, z)) / ours.model.covar_module.outputscale[0]
    # exp(−½) at the mean distance: neither all 0 nor all 1.
    assert 0.5 < kernel.mean() < 0.75
    assert kernel.std() > 0.1


@pytest.mark.parametrize(
    ("z", "message"),
    [
        (features(5), "features of 5 training samples, 5 of them distinct"),
        (torch.ones(50, FEATURES), "50 training samples, 1 of them distinct"),
        (features(50) / torch.arange(50.0)[:, None], "and 49 finite: choose fewer"),
    ],
    ids=["few", "constant", "infinite"],
)
def test_features_that_give_too_few_inducing_points_are_named(z: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        SparseProcess(FEATURES, CLASSES, INDUCING).initialize(z)


def test_squared_distances_keep_their_digits_far_from_the_origin() -> None:
    a, b = 1000 + features(7), 1000 + features(8, seed=2)
    expected = (a.double()[:, None] - b.double()).square().sum(-1)
    torch.testing.assert_close(_squared_distances(a, b).double(), expected, rtol=1e-5, atol=1e-5)


def test_a_missing_gpytorch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    with pytest.raises(UserError, match=r"pip install density-softmax\[baselines\]"):
        SparseProcess(FEATURES, CLASSES, INDUCING)


def test_gpytorch_is_imported_only_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    assert "SparseProcess" in runpy.run_path(sparse_process.__file__)
