import math

import pytest
import torch
from limit_cases import (
    EVERY_EPOCH,
    NUM_CLASSES,
    TWO_EPOCHS,
    inputs,
    labels,
    pair,
    points,
    small,
)
from torch import nn
from torch.distributions import Categorical, LowRankMultivariateNormal

import density_softmax as ds
from density_softmax.config import ConfigError
from density_softmax.methods.heteroscedastic import Heteroscedastic
from density_softmax.nn.backbones.resnet import ResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.types import Batch


@torch.no_grad()
def without_covariance(method: Heteroscedastic) -> None:
    """V = 0 and softplus(·) = 0."""
    for layer in (method.head.factors, method.head.scale):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    method.head.scale.bias.fill_(-1e4)


@pytest.mark.parametrize(
    ("kind", "temperature"), [("ResFFN", 1.0), ("ResFFN", 1.3), ("WideResNet", 1.0)]
)
def test_no_covariance_gives_erm_at_the_temperature(kind, temperature):
    config = Heteroscedastic.Config(temperature=temperature, min_scale=0.0, num_samples=10)
    erm, method, x = pair(kind, config)
    without_covariance(method)
    erm.head.load_state_dict(method.head.mean.state_dict())
    erm.head.temperature.fill_(temperature)
    ours, theirs = method.predict(x), erm.predict(x)
    torch.testing.assert_close(ours.probs, theirs.probs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.aleatoric, theirs.aleatoric, rtol=1e-5, atol=1e-6)
    assert ours.epistemic.max() < 1e-5


def test_prediction_is_the_mean_softmax_of_the_low_rank_normal():
    num_samples = 40_000
    method = small(Heteroscedastic.Config(num_samples=num_samples))
    mean, factors, scale = method.head(method.features(inputs()))
    torch.manual_seed(1)
    normal = LowRankMultivariateNormal(mean, factors, scale.square())
    members = (normal.sample((num_samples,)) / 1.3).softmax(-1)
    probs, aleatoric, epistemic = method.predict(inputs(), seed=0)
    # Two Monte Carlo estimates of the same mean.
    error = members.std(0) * (2 / num_samples) ** 0.5
    assert ((probs - members.mean(0)).abs() < 5 * error).all()
    entropies = Categorical(members).entropy()
    error = entropies.std(0) * (2 / num_samples) ** 0.5
    assert ((aleatoric - entropies.mean(0)).abs() < 5 * error).all()
    torch.testing.assert_close(
        epistemic, Categorical(probs).entropy() - aleatoric, rtol=1e-3, atol=1e-5
    )


def test_covariance_of_the_logits_is_v_v_transposed_plus_the_squares_of_d_over_t_squared():
    method = small(Heteroscedastic.Config(num_factors=2))
    mean, factors, scale = method.head(method.features(inputs()))
    u = method.logits(inputs())
    expected = (factors @ factors.mT + torch.diag_embed(scale.square())) / 1.3**2
    found = LowRankMultivariateNormal(u.mean, u.factors, u.scale.square())
    torch.testing.assert_close(found.covariance_matrix, expected)
    torch.testing.assert_close(found.mean, mean / 1.3)
    torch.manual_seed(0)
    samples = u.sample(u.noise(100_000))
    error = 5 * (2 / 100_000) ** 0.5 * found.variance.max()
    for row, covariance in enumerate(expected):
        assert (torch.cov(samples[:, row].T) - covariance).abs().max() < error


def test_loss_is_minus_the_log_of_the_mean_probability():
    method = small(Heteroscedastic.Config(num_samples=50, chunk=0))
    torch.manual_seed(3)
    loss = method.stages()[0].loss(Batch(inputs(), labels()))
    torch.manual_seed(3)
    u = method.logits(inputs())
    probs = u.sample(u.noise(50)).double().softmax(-1).mean(0)
    expected = -probs.gather(1, labels()[:, None]).log().mean()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)


def outcome(chunk: int) -> tuple[list[torch.Tensor], torch.Tensor, list[torch.Tensor]]:
    """Prediction, loss and gradients with the draws of one seed."""
    method = small(Heteroscedastic.Config(num_samples=50, chunk=chunk))
    prediction = list(method.predict(inputs(), seed=0))
    torch.manual_seed(3)
    loss = method.stages()[0].loss(Batch(inputs(), labels()))
    loss.backward()
    return prediction, loss, [w.grad for w in method.parameters()]


@pytest.mark.parametrize("chunk", [1, 7, 25, 100])
def test_chunks_change_neither_prediction_nor_loss_nor_gradient(chunk):
    torch.testing.assert_close(outcome(chunk), outcome(0), rtol=1e-5, atol=1e-6)


def test_no_more_than_a_chunk_of_logits_is_kept_for_the_way_back():
    method = small(Heteroscedastic.Config(num_samples=100, chunk=10))
    kept = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        method.stages()[0].loss(Batch(inputs(), labels()))
    assert max(kept) < 100 * len(inputs())


def test_a_row_is_predicted_alike_in_any_batch_because_batches_share_their_draws():
    method = small(Heteroscedastic.Config(num_samples=20))
    whole = method.predict(inputs(), seed=0)
    alone = method.predict(inputs()[2:3], seed=0)
    for ours, theirs in zip(alone, whole, strict=True):
        torch.testing.assert_close(ours[0], theirs[2])


def test_a_seed_repeats_the_prediction_and_no_seed_does_not():
    method = small(Heteroscedastic.Config(num_samples=5))
    first, again, other = (method.predict(inputs(), seed=seed).probs for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(method.predict(inputs()).probs, method.predict(inputs()).probs)


def test_loss_is_finite_where_all_samples_are_wrong_beyond_float32():
    method = small(Heteroscedastic.Config(num_samples=10))
    without_covariance(method)
    x = 1e4 * inputs()
    wrong = method.logits(x).mean.argmin(1)
    loss = method.stages()[0].loss(Batch(x, wrong))
    assert loss > -math.log(torch.finfo(torch.float32).tiny)
    loss.backward()
    assert all(w.grad.isfinite().all() for w in method.parameters())


# The paper's counts are Keras': they include the moving statistics of batch norm. Its count on
# ImageNet is that of 15 factors: (2048 + 1) · 1000 · (15 + 1) more than ERM.
@pytest.mark.parametrize(
    ("encoder", "num_classes", "num_factors", "count", "millions"),
    [
        (WideResNet.Config(), 10, 6, 36_524_064, 36.54),
        (WideResNet.Config(), 100, 6, 36_985_584, 37.00),
        (ResNet.Config(), 1000, 15, 58_341_032, 58.39),
    ],
)
def test_parameters_are_as_many_as_published(encoder, num_classes, num_factors, count, millions):
    config = Heteroscedastic.Config(num_factors=num_factors)
    with torch.device("meta"):
        method = Heteroscedastic(encoder.build((3, 32, 32)), num_classes, config)
    assert sum(w.numel() for w in method.parameters()) == count
    moving = sum(b.numel() for name, b in method.named_buffers() if "running" in name)
    assert round((count + moving) / 1e6, 2) == millions


def test_training_changes_every_parameter_and_the_state_holds_all_of_it():
    config = Heteroscedastic.Config(num_samples=20, descent=TWO_EPOCHS)
    method = small(config)
    before = {name: w.clone() for name, w in method.named_parameters()}
    ds.fit(method, points(40), points(20), engine=EVERY_EPOCH, progress=False)
    assert all((w != before[name]).any() for name, w in method.named_parameters())
    other = small(config, seed=1)
    other.load_state_dict(method.state_dict())
    seeded = (m.predict(inputs(), seed=0).probs for m in (method, other))
    assert torch.equal(*seeded)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_factors": 0},
        {"num_samples": 0},
        {"temperature": 0.0},
        {"min_scale": -1.0},
        {"chunk": -1},
    ],
)
def test_settings_that_mean_nothing_are_refused(settings):
    ((name, value),) = settings.items()
    with pytest.raises(ConfigError, match=f"{name}={value}: choose"):
        Heteroscedastic.Config(**settings)


def test_shape_of_the_covariance_is_one_per_row():
    method = small(Heteroscedastic.Config(num_factors=2))
    u = method.logits(inputs())
    assert u.factors.shape == (6, NUM_CLASSES, 2)
    assert not torch.equal(u.factors[0], u.factors[1])
    assert not torch.equal(u.scale[0], u.scale[1])
