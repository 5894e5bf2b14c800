import math

import pytest
import torch
from torch import Tensor, nn

from density_softmax import EngineConfig, fit
from density_softmax.config import ConfigError
from density_softmax.data import ArraySource
from density_softmax.methods.posterior_network import PosteriorNetwork
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.densities.flows import RadialFlow
from density_softmax.nn.softmax import dirichlet
from density_softmax.training import Adam, Descent
from density_softmax.types import Batch

NUM_CLASSES = 3
CPU = EngineConfig(accelerator="cpu", threads=1)


def network(seed: int = 0, **changes) -> PosteriorNetwork:
    """A network whose flows differ from class to class."""
    torch.manual_seed(seed)
    settings = {
        "latent": 4,
        "layers": 3,
        "descent": Descent(epochs=2, batch_size=16, optimizer=Adam(lr=1e-2)),
    } | changes
    method = PosteriorNetwork(ResFFN(2, 2, 6), NUM_CLASSES, PosteriorNetwork.Config(**settings))
    for parameter in method.flows.parameters():
        nn.init.normal_(parameter)
    method.counts.copy_(torch.tensor([10.0, 200.0, 3000.0]))
    return method.eval()


def points(num_samples: int = 33) -> Batch:
    """Three overlapping classes of unequal size; with batches of 16 the last has one sample."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_samples, 2, generator=generator)
    return Batch(x, (x[:, 0] > 0).long() + (x[:, 0] > 1).long())


def class_density(method: PosteriorNetwork, u: Tensor, c: int) -> Tensor:
    """log p_c(u) by torch.distributions and a single flow."""
    flow = RadialFlow(method.config.latent, method.config.layers)
    flow.load_state_dict({name: value[c] for name, value in method.flows.state_dict().items()})
    t, log_det = flow(u)
    normal = torch.distributions.MultivariateNormal(torch.zeros(u.shape[1]), torch.eye(u.shape[1]))
    return normal.log_prob(t) + log_det


@torch.no_grad()
def test_alpha_is_one_plus_count_times_density_of_each_class() -> None:
    method, x = network(), points().x
    u = method.latent(method.features(x))
    alpha = method.alpha(method.log_counts(method.features(x)))
    for c in range(NUM_CLASSES):
        expected = 1 + method.counts[c] * class_density(method, u, c).exp()
        torch.testing.assert_close(alpha[:, c], expected, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_equal_densities_give_counts_in_proportion_to_the_classes() -> None:
    method, x = network(), points().x
    for parameter in method.flows.parameters():
        parameter.zero_()
    log_counts = method.log_counts(method.features(x))
    density = class_density(method, method.latent(method.features(x)), 0).exp()
    evidence = method.alpha(log_counts).double().sum(1) - NUM_CLASSES
    torch.testing.assert_close(
        evidence, (method.counts.sum() * density).double(), rtol=1e-3, atol=1e-6
    )
    torch.testing.assert_close(
        log_counts.softmax(1), (method.counts / method.counts.sum()).expand(len(x), -1)
    )


def test_far_away_the_prediction_is_uniform_in_every_direction() -> None:
    method = network()
    direction = nn.functional.normalize(torch.randn(50, 2), dim=1)
    near, far = method.predict(direction), method.predict(1e4 * direction)
    torch.testing.assert_close(far.probs, torch.full((50, NUM_CLASSES), 1 / NUM_CLASSES))
    torch.testing.assert_close(far.aleatoric, torch.full((50,), math.log(NUM_CLASSES)))
    assert far.epistemic.min() > near.epistemic.max()


def test_epistemic_keeps_growing_where_the_counts_are_rounded_to_none() -> None:
    direction = torch.tensor([[0.6, 0.8]])
    values = [network().predict(size * direction).epistemic.item() for size in (1e3, 1e4, 1e5)]
    assert values[0] < values[1] < values[2]


@torch.no_grad()
def test_epistemic_is_minus_the_log_of_all_evidence() -> None:
    method, x = network(), points().x
    alpha = method.alpha(method.log_counts(method.features(x)).double())
    evidence = alpha.sum(1) - NUM_CLASSES
    torch.testing.assert_close(method(x).epistemic.double(), -evidence.log(), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_prediction_is_the_mean_of_the_dirichlet_and_its_entropy() -> None:
    method, x = network(), points().x
    posterior = torch.distributions.Dirichlet(method.alpha(method.log_counts(method.features(x))))
    prediction = method(x)
    torch.testing.assert_close(prediction.probs, posterior.mean)
    entropy = torch.distributions.Categorical(posterior.mean).entropy()
    torch.testing.assert_close(prediction.aleatoric, entropy)


@torch.no_grad()
def test_loss_is_expected_cross_entropy_minus_weighted_entropy() -> None:
    method, batch = network(entropy_weight=0.3), points()
    posterior = torch.distributions.Dirichlet(
        method.alpha(method.log_counts(method.features(batch.x)))
    )
    expected = dirichlet.expected_cross_entropy(posterior.concentration, batch.y)
    torch.testing.assert_close(method.loss(batch), expected - 0.3 * posterior.entropy())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("size", [1e3, 1e12])
def test_features_far_too_large_give_finite_losses_and_gradients(
    training: bool, size: float
) -> None:
    method, batch = network().train(training), points()
    loss = method.loss(Batch(size * batch.x, batch.y)).mean()
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


def test_training_counts_the_classes_and_survives_a_last_batch_of_one() -> None:
    method, batch = network(), points()
    source = ArraySource(*batch)
    fit(method, source, source, engine=CPU, progress=False)
    assert torch.equal(method.counts, batch.y.bincount(minlength=NUM_CLASSES).float())
    assert all(value.isfinite().all() for value in method.state_dict().values())


def test_training_changes_every_part_and_lowers_the_loss() -> None:
    method, batch = network(descent=Descent(epochs=30, batch_size=33)), points()
    with torch.no_grad():
        method.counts.copy_(batch.y.bincount(minlength=NUM_CLASSES))
        before = method.train().loss(batch).mean()
    start = {name: value.clone() for name, value in method.named_parameters()}
    source = ArraySource(*batch)
    fit(method, source, source, engine=CPU, progress=False)
    assert not any(torch.equal(value, start[name]) for name, value in method.named_parameters())
    with torch.no_grad():
        assert method.train().loss(batch).mean() < before


def test_class_without_samples_is_never_predicted_and_breaks_nothing() -> None:
    method, batch = network(), points()
    only = batch.y < 2
    source = ArraySource(batch.x[only], batch.y[only])
    fit(method, source, source, engine=CPU, progress=False)
    alpha = method.alpha(method.log_counts(method.features(batch.x)))
    torch.testing.assert_close(alpha[:, 2], torch.ones(len(alpha)))


def test_label_beyond_the_classes_is_named() -> None:
    batch = points()
    source = ArraySource(batch.x, batch.y + 1)
    with pytest.raises(ValueError, match="label 3: labels must be 0 to 2"):
        fit(network(), source, source, engine=CPU, progress=False)


def test_state_holds_the_counts_and_the_latents_statistics() -> None:
    method, other = network(0), network(1)
    method.latent.norm.running_mean.fill_(0.3)
    other.load_state_dict(method.state_dict())
    for ours, theirs in zip(other(points().x), method(points().x), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latent": 0}, "latent=0: choose 1 or more"),
        ({"layers": 0}, "layers=0: choose 1 or more"),
        ({"entropy_weight": -0.1}, r"entropy_weight=-0\.1: choose 0 or more"),
    ],
)
def test_settings_that_cannot_be_built_are_refused(changes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PosteriorNetwork.Config(**changes)


def test_exported_program_says_the_same() -> None:
    method, x = network(), points().x
    shapes = {"x": {0: torch.export.Dim("batch", min=1)}}
    exported = torch.export.export(method, (x,), dynamic_shapes=shapes).module()
    for num_samples in (1, 7):
        torch.testing.assert_close(exported(x[:num_samples]), method(x[:num_samples]))
