import math

import pytest
import torch
from torch import distributions as td
from torch import nn
from torch.nn import functional as F

from density_softmax.nn.layers.decay import sum_of_squares
from density_softmax.nn.layers.rank_one import GaussianVectors
from density_softmax.nn.layers.variational import AnnealedKL, Flipout
from density_softmax.nn.softmax.averaging import in_chunks, tile
from density_softmax.types import Batch

LAYERS = {
    "dense": (lambda: nn.Linear(3, 4), (3,)),
    "dense, of sequences": (lambda: nn.Linear(3, 2, bias=False), (5, 3)),
    "convolution": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 3, 3)),
    "grouped convolution": (lambda: nn.Conv2d(2, 4, 2, groups=2, dilation=2), (2, 3, 3)),
    "convolution of a torus": (
        lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"),
        (2, 3, 3),
    ),
}


def flipout(kind: str, std: float = 0.3) -> tuple[Flipout, torch.Tensor]:
    """A layer with standard deviations of many sizes, and a batch of two inputs."""
    torch.manual_seed(0)
    make, shape = LAYERS[kind]
    layer = Flipout(make(), std, prior_std=0.1)
    with torch.no_grad():
        layer.raw_std += torch.randn_like(layer.raw_std)
    return layer, torch.randn(2, *shape)


def moments(draws: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.stack(draws).flatten(1)
    return rows.mean(0), torch.cov(rows.T)


def test_divergence_is_that_of_torch():
    torch.manual_seed(0)
    vectors = GaussianVectors(torch.randn(5, 7).double(), 0.3, prior_mean=0.7, prior_std=0.2)
    vectors.raw_std.data += torch.randn(5, 7)
    expected = td.kl_divergence(td.Normal(vectors.mean, vectors.std), td.Normal(0.7, 0.2)).sum()
    torch.testing.assert_close(vectors.kl(), expected)


@pytest.mark.parametrize("kind", LAYERS)
def test_divergence_of_a_layer_is_from_a_prior_with_its_own_mean(kind):
    layer, _ = flipout(kind)
    mean, std = layer.mean.weight, F.softplus(layer.raw_std)
    expected = td.kl_divergence(td.Normal(mean, std), td.Normal(mean, 0.1)).sum()
    torch.testing.assert_close(layer.kl(), expected)
    (gradient,) = torch.autograd.grad(layer.kl(), mean, allow_unused=True)
    assert gradient is None


def test_standard_deviations_start_where_they_are_told():
    layer = Flipout(nn.Linear(3, 4), std=1e-3, prior_std=0.1)
    torch.testing.assert_close(F.softplus(layer.raw_std), torch.full((4, 3), 1e-3))


@pytest.mark.parametrize("kind", ["dense", "convolution"])
@torch.no_grad()
def test_outputs_of_a_sample_have_the_moments_of_sampled_weights(kind):
    layer, x = flipout(kind)
    x, std = x[:1], F.softplus(layer.raw_std)
    weight, draws = layer.mean.weight.clone(), []
    for _ in range(1500):
        layer.mean.weight.copy_(weight + std * torch.randn_like(std))
        draws.append(layer.mean(x))
    layer.mean.weight.copy_(weight)
    mean, covariance = moments(draws)
    our_mean, our_covariance = moments([layer(x) for _ in range(1500)])
    scale = covariance.diag().max().item()
    torch.testing.assert_close(our_mean, mean, rtol=0, atol=0.15 * scale**0.5)
    torch.testing.assert_close(our_covariance, covariance, rtol=0, atol=0.2 * scale)


@torch.no_grad()
def test_variance_of_a_dense_layer_is_exact():
    layer, x = flipout("dense")
    draws = torch.stack([layer(x) for _ in range(2000)])
    expected = x.square() @ F.softplus(layer.raw_std).square().T
    torch.testing.assert_close(draws.var(0), expected, rtol=0.15, atol=0)


@pytest.mark.parametrize("kind", ["dense", "convolution"])
@torch.no_grad()
def test_perturbations_of_equal_inputs_differ_and_are_uncorrelated(kind):
    layer, x = flipout(kind)
    twice = torch.cat([x[:1], x[:1]])
    noise = torch.stack([(layer(twice) - layer.mean(twice)).flatten(1) for _ in range(1000)])
    first, second = noise[:, 0], noise[:, 1]
    assert (first != second).any(1).float().mean() > 0.5
    correlation = (first * second).mean(0) / first.square().mean(0)
    assert correlation.abs().max() < 0.15


@pytest.mark.parametrize("kind", LAYERS)
def test_without_deviation_the_layer_is_as_it_was(kind):
    layer, x = flipout(kind)
    nn.init.constant_(layer.raw_std, -math.inf)
    assert torch.equal(layer(x), layer.mean(x))


def test_gradients_reach_mean_and_deviation():
    layer, x = flipout("convolution")
    layer(x).square().sum().backward()
    assert all((w.grad != 0).all() for w in layer.undecayed())


def batch_of(num_samples: int) -> Batch:
    return Batch(torch.zeros(num_samples, 2), torch.zeros(num_samples, dtype=torch.int64))


def test_divergence_is_annealed_linearly_by_the_samples_seen_from_one_step_on():
    layer, _ = flipout("dense")
    annealed = AnnealedKL(epochs=5, batch_size=8)
    annealed.count().finish({"count": torch.tensor(20)})
    step = annealed.after_step()
    for seen in range(8, 168, 8):  # the step under way is among them
        torch.testing.assert_close(annealed(layer), min(1, seen / 100) * layer.kl() / 20)
        step.finish(step.statistics(batch_of(8)))
    assert annealed.weight() == 1


def test_a_step_of_all_samples_is_one_epoch_of_annealing():
    annealed = AnnealedKL(epochs=4, batch_size=128)
    annealed.count().finish({"count": torch.tensor(20)})
    assert annealed.weight() == 0.25


def test_counts_are_part_of_the_state():
    annealed, other = (AnnealedKL(epochs=2, batch_size=6) for _ in range(2))
    annealed.count().finish(annealed.count().statistics(batch_of(12)))
    annealed.after_step().finish({"count": torch.tensor(6)})
    other.load_state_dict(annealed.state_dict())
    assert (other.num_train, other.num_seen, other.weight()) == (12, 6, 0.5)


def test_training_again_anneals_again():
    annealed = AnnealedKL(epochs=1, batch_size=3)
    annealed.after_step().finish({"count": torch.tensor(6)})
    annealed.count().finish({"count": torch.tensor(12)})
    assert annealed.weight() == 0.25


def test_decay_spares_what_has_a_posterior():
    network = nn.Sequential(Flipout(nn.Conv2d(1, 2, 1), 0.1, 0.1), nn.BatchNorm2d(2))
    expected = sum(w.square().sum() for w in (network[0].mean.bias, *network[1].parameters()))
    torch.testing.assert_close(sum_of_squares(network), expected)


@pytest.mark.parametrize(("chunk", "passes"), [(0, [7]), (1, [1] * 7), (3, [3, 3, 1]), (9, [7])])
def test_chunks_add_up_to_all_samples(chunk, passes):
    seen = []

    def sample(number: int) -> torch.Tensor:
        seen.append(number)
        return torch.full((number, 2), float(len(seen)))

    assert in_chunks(sample, 7, chunk).shape == (7, 2)
    assert seen == passes


def test_copies_of_a_batch_follow_one_another():
    x = torch.randn(2, 3)
    assert torch.equal(tile(x, 3).view(3, 2, 3), x.expand(3, 2, 3))
