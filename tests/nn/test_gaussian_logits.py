"""Gaussian logits against torch's low-rank normal distribution."""

import pytest
import torch
from torch.distributions import LowRankMultivariateNormal

from density_softmax.nn.softmax.head import GaussianHead, GaussianLogits, Noise

BATCH, CLASSES, FACTORS = 3, 4, 2


@pytest.fixture
def logits() -> GaussianLogits:
    torch.manual_seed(0)
    scale = torch.rand(BATCH, CLASSES) + 0.1
    return GaussianLogits(
        torch.randn(BATCH, CLASSES), torch.randn(BATCH, CLASSES, FACTORS), 2 * scale
    )


def reference(u: GaussianLogits) -> LowRankMultivariateNormal:
    return LowRankMultivariateNormal(u.mean, u.factors, u.scale.square())


def test_samples_have_the_mean_and_the_covariance_of_the_low_rank_normal(logits):
    num_draws = 200_000
    samples = logits.sample(logits.noise(num_draws))
    expected = reference(logits)
    # Five standard errors of a mean and of a covariance of Gaussians.
    variance = expected.variance
    error = 5 * (variance / num_draws).sqrt()
    assert ((samples.mean(0) - expected.mean).abs() < error).all()
    for b in range(BATCH):
        found = torch.cov(samples[:, b].T)
        wanted = expected.covariance_matrix[b]
        error = (variance[b][:, None] * variance[b] + wanted.square()).div(num_draws).sqrt()
        assert ((found - wanted).abs() < 5 * error).all()


def test_covariance_in_closed_form_is_v_v_transposed_plus_the_squares_of_d(logits):
    # u is linear in the noise: its Jacobian A gives the covariance A Aᵀ without sampling.
    def u(noise: torch.Tensor) -> torch.Tensor:
        common, own = noise.split([FACTORS, CLASSES])
        return logits.sample(Noise(common[None], own[None]))[0]

    jacobian = torch.autograd.functional.jacobian(u, torch.randn(FACTORS + CLASSES))
    covariance = jacobian @ jacobian.mT
    direct = logits.factors @ logits.factors.mT + torch.diag_embed(logits.scale.square())
    torch.testing.assert_close(covariance, direct)
    torch.testing.assert_close(covariance, reference(logits).covariance_matrix)


def test_the_draws_are_shared_by_all_samples_of_a_batch(logits):
    u = GaussianLogits(*(part[:1].expand_as(part) for part in logits))
    samples = u.sample(u.noise(5))
    assert torch.equal(samples[:, 0], samples[:, 1])
    assert not torch.equal(samples[0], samples[1])


def test_samples_do_not_depend_on_how_the_draws_are_split(logits):
    noise = logits.noise(10)
    parts = noise.split(4)
    assert [len(part.own) for part in parts] == [4, 4, 2]
    together = torch.cat([logits.sample(part) for part in parts])
    torch.testing.assert_close(together, logits.sample(noise))


def test_no_covariance_gives_the_mean_in_every_draw(logits):
    certain = GaussianLogits(
        logits.mean, torch.zeros_like(logits.factors), torch.zeros_like(logits.scale)
    )
    samples = certain.sample(certain.noise(5))
    assert torch.equal(samples, logits.mean.expand(5, -1, -1))


def test_scale_is_a_softplus_above_its_minimum():
    head = GaussianHead(2, CLASSES, FACTORS, min_scale=1e-3)
    z = torch.tensor([[0.0, 0.0], [-1e4, 1e4], [1e4, -1e4]])
    scale = head(z).scale
    torch.testing.assert_close(scale[0], torch.full((CLASSES,), 2.0).log() + 1e-3)
    assert (scale >= 1e-3).all()
    assert scale.isfinite().all()


def test_sampling_stays_in_full_precision_under_autocast(logits):
    noise = logits.noise(7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        samples = logits.sample(noise)
    assert torch.equal(samples, logits.sample(noise))
