import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Dirichlet

from density_softmax.nn.softmax import dirichlet

SIZES = (1e-3, 0.3, 1.0, 10.0, 30.0, 1e3)


def parameters(size: float, num_classes: int = 4, num_samples: int = 20) -> Tensor:
    """Parameters in float64 whose classes differ by up to a factor of 20."""
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(num_samples, num_classes, generator=generator, dtype=torch.float64)
    return size * (0.1 + 1.9 * uniform)


def labels(alpha: Tensor) -> Tensor:
    return torch.arange(len(alpha)) % alpha.shape[-1]


@pytest.mark.parametrize("size", SIZES)
def test_entropy_is_that_of_torch_distributions(size: float) -> None:
    alpha = parameters(size)
    torch.testing.assert_close(
        dirichlet.entropy(alpha), Dirichlet(alpha).entropy(), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("size", SIZES)
def test_gradient_of_the_entropy_is_that_of_torch_distributions(size: float) -> None:
    ours, theirs = parameters(size).requires_grad_(), parameters(size).requires_grad_()
    dirichlet.entropy(ours).sum().backward()
    Dirichlet(theirs).entropy().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("size", [1e5, 1e9, 1e13, 1e30])
def test_entropy_of_huge_parameters_is_that_of_a_gaussian_in_float32(size: float) -> None:
    # Cov(p) = (diag(m) − m mᵀ) / (α_0 + 1); without the last class its determinant is Π m_c.
    alpha = parameters(size)
    mean, num_free = alpha / alpha.sum(-1, keepdim=True), alpha.shape[-1] - 1
    log_det = mean.log().sum(-1) - num_free * alpha.sum(-1).log()
    gaussian = 0.5 * (num_free * math.log(2 * math.pi * math.e) + log_det)
    ours = dirichlet.entropy(alpha.float()).double()
    torch.testing.assert_close(ours, gaussian, rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("size", SIZES)
def test_expected_cross_entropy_is_a_derivative_of_the_log_normaliser(size: float) -> None:
    # log p_y is a sufficient statistic: E[log p_y] = ∂ log B(α) / ∂α_y.
    alpha = parameters(size).requires_grad_()
    log_beta = alpha.lgamma().sum() - alpha.sum(-1).lgamma().sum()
    (gradient,) = torch.autograd.grad(log_beta, alpha)
    y = labels(alpha)
    expected = -gradient.gather(1, y[:, None]).squeeze(1)
    torch.testing.assert_close(dirichlet.expected_cross_entropy(alpha, y), expected)


@pytest.mark.parametrize("size", [0.3, 1.0, 10.0])
def test_expected_cross_entropy_is_that_of_samples(size: float) -> None:
    torch.manual_seed(0)
    alpha = parameters(size, num_samples=4)
    p = Dirichlet(alpha).sample((200_000,)).clamp_min(1e-300)
    y = labels(alpha)
    samples = -p.gather(-1, y.expand(len(p), -1)[..., None]).squeeze(-1).log()
    error = samples.std(0) / len(p) ** 0.5
    ours = dirichlet.expected_cross_entropy(alpha, y)
    assert ((ours - samples.mean(0)).abs() < 4 * error).all()


@pytest.mark.parametrize("size", [*SIZES, 1e-9, 1e9])
def test_entropy_of_the_mean_is_that_of_torch_distributions(size: float) -> None:
    alpha = parameters(size)
    mean = torch.distributions.Categorical(probs=alpha).entropy()
    torch.testing.assert_close(dirichlet.entropy_of_mean(alpha), mean)


def test_uniform_dirichlet_has_the_entropy_of_the_simplex() -> None:
    # Its density is (K − 1)! everywhere.
    ours = dirichlet.entropy(torch.ones(1, 5))
    torch.testing.assert_close(ours, torch.tensor([-math.log(24.0)]))


def test_many_observations_of_one_distribution_make_it_a_cross_entropy() -> None:
    probs = torch.tensor([[0.7, 0.2, 0.1]])
    alpha, y = 1 + 1e12 * probs, torch.tensor([1])
    expected = torch.tensor([-math.log(0.2)])
    torch.testing.assert_close(dirichlet.expected_cross_entropy(alpha, y), expected)
    torch.testing.assert_close(dirichlet.nll_of_mean(alpha, y), expected)


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e13, 1e30])
def test_everything_is_finite_with_finite_gradients(size: float) -> None:
    alpha = parameters(size).float().requires_grad_()
    values = (
        dirichlet.bayesian_loss(alpha, labels(alpha), 0.01),
        dirichlet.entropy_of_mean(alpha),
    )
    assert all(value.isfinite().all() for value in values)
    (gradient,) = torch.autograd.grad(sum(value.sum() for value in values), alpha)
    assert gradient.isfinite().all()


def test_bayesian_loss_rewards_entropy_by_its_weight() -> None:
    alpha = parameters(2.0)
    y = labels(alpha)
    plain = dirichlet.bayesian_loss(alpha, y, 0.0)
    assert torch.equal(plain, dirichlet.expected_cross_entropy(alpha, y))
    rewarded = plain - dirichlet.bayesian_loss(alpha, y, 0.25)
    torch.testing.assert_close(rewarded, 0.25 * Dirichlet(alpha).entropy())


def test_pseudo_counts_stay_in_float32_whatever_the_density() -> None:
    log_counts = torch.tensor([-math.inf, -1e9, 0.0, 2.0, 1e9, math.inf])
    expected = torch.tensor([-30.0, -30.0, 0.0, 2.0, 30.0, 30.0]).exp()
    torch.testing.assert_close(dirichlet.pseudo_counts(log_counts), expected)


def test_gradients_pass_the_limits_of_pseudo_counts_straight_through() -> None:
    log_counts = torch.tensor([-1e9, -100.0, 0.0, 2.0, 100.0, 1e9], requires_grad=True)
    counts = dirichlet.pseudo_counts(log_counts)
    (gradient,) = torch.autograd.grad(counts.log().sum(), log_counts)
    torch.testing.assert_close(gradient, torch.ones(6))
    assert dirichlet.pseudo_counts(torch.tensor(math.nan)).isnan()
