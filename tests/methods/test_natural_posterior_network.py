import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from density_softmax import EngineConfig, fit
from density_softmax.config import ConfigError
from density_softmax.data import ArraySource
from density_softmax.methods.natural_posterior_network import NaturalPosteriorNetwork
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.softmax import dirichlet
from density_softmax.nn.softmax.head import entropy_of_logits
from density_softmax.training import Adam, Descent
from density_softmax.types import Batch

NUM_CLASSES = 3
CPU = EngineConfig(accelerator="cpu", threads=1)
SHORT = Descent(epochs=1, batch_size=16, optimizer=Adam(lr=1e-2))


def network(seed: int = 0, **changes) -> NaturalPosteriorNetwork:
    torch.manual_seed(seed)
    settings = {
        "latent": 4,
        "layers": 3,
        "warmup": SHORT,
        "descent": SHORT,
        "finetune": SHORT,
    } | changes
    config = NaturalPosteriorNetwork.Config(**settings)
    method = NaturalPosteriorNetwork(ResFFN(2, 2, 6), NUM_CLASSES, config)
    for parameter in method.flow.parameters():
        nn.init.normal_(parameter)
    return method.eval()


def points(num_samples: int = 33) -> Batch:
    """Three classes; with batches of 16 the last has one sample."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_samples, 2, generator=generator)
    return Batch(x, (x[:, 0] > 0).long() + (x[:, 0] > 1).long())


@torch.no_grad()
def test_posterior_is_the_conjugate_update_of_the_uniform_prior() -> None:
    # In natural parameters: n_post = K + n and χ_post = (K χ_prior + n χ) / n_post.
    method, x = network(), points().x
    u = method.latent(method.features(x))
    t, log_det = method.flow(u)
    normal = torch.distributions.MultivariateNormal(torch.zeros(4), torch.eye(4))
    budget = 0.5 * math.log(4 * math.pi) * 4
    n = (normal.log_prob(t) + log_det + budget).exp()[:, None]
    chi = method.head(u).softmax(1)
    chi_post = (NUM_CLASSES * torch.full_like(chi, 1 / NUM_CLASSES) + n * chi) / (NUM_CLASSES + n)
    torch.testing.assert_close(method.alpha(x), (NUM_CLASSES + n) * chi_post)
    torch.testing.assert_close(method(x).probs, chi_post)
    torch.testing.assert_close(method(x).epistemic, -n[:, 0].log())


@torch.no_grad()
def test_evidence_of_an_untrained_flow_at_its_centre_is_two_to_the_half_dimension() -> None:
    # N(0; 0, I) · (4π)^(H/2) = 2^(H/2): what the budget is made for.
    method = network()
    for parameter in method.flow.parameters():
        parameter.zero_()
    evidence = (method.log_prob(torch.zeros(1, 4)) + method.budget).exp()
    torch.testing.assert_close(evidence, torch.tensor([4.0]))


@torch.no_grad()
def test_certain_evidence_gives_the_plain_softmax() -> None:
    method, x = network(), points().x
    method.budget = 1e6
    logits = method.head(method.latent(method.features(x)))
    torch.testing.assert_close(method(x).probs, logits.softmax(1))
    torch.testing.assert_close(method(x).aleatoric, entropy_of_logits(logits), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_parameters_fall_to_the_prior_with_the_density() -> None:
    method, x = network(), points().x
    evidence = []
    for budget in (5.0, 0.0, -5.0, -15.0, -1e9):
        method.budget = budget
        evidence.append(method.alpha(x) - 1)
    assert all((more >= less).all() for more, less in pairwise(evidence))
    torch.testing.assert_close(evidence[-1], torch.zeros_like(evidence[-1]))
    torch.testing.assert_close(method(x).probs, torch.full((33, 3), 1 / 3))


def test_far_away_the_prediction_is_uniform_in_every_direction() -> None:
    method = network()
    direction = nn.functional.normalize(torch.randn(50, 2), dim=1)
    near, far = method.predict(direction), method.predict(1e4 * direction)
    torch.testing.assert_close(far.probs, torch.full((50, NUM_CLASSES), 1 / NUM_CLASSES))
    torch.testing.assert_close(far.aleatoric, torch.full((50,), math.log(NUM_CLASSES)))
    assert far.epistemic.min() > near.epistemic.max()


def test_epistemic_keeps_growing_where_the_evidence_is_cut_off() -> None:
    direction = torch.tensor([[0.6, 0.8]])
    values = [network().predict(size * direction).epistemic.item() for size in (1e3, 1e4, 1e5)]
    assert values[0] < values[1] < values[2]


@torch.no_grad()
def test_loss_is_expected_cross_entropy_minus_weighted_entropy() -> None:
    method, batch = network(entropy_weight=0.3), points()
    posterior = torch.distributions.Dirichlet(method.alpha(batch.x))
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


def test_stages_are_those_of_the_paper_after_standardising_the_latents() -> None:
    assert [stage.name for stage in network().stages()] == ["latent", "warmup", "train", "finetune"]
    without = network(warmup=None, finetune=None).stages()
    assert [stage.name for stage in without] == ["train"]


def test_untrained_batch_norms_see_data_before_the_flow_is_warmed_up(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6))
    method = NaturalPosteriorNetwork(encoder, NUM_CLASSES, network().config)
    x, y = points(32)
    stages = method.stages()
    assert [stage.name for stage in stages[:3]] == ["norms", "latent", "warmup"]
    object.__setattr__(method, "stages", lambda: stages[:2])
    source = ArraySource(100 * x, y)
    fit(method, source, source, engine=CPU, progress=False)
    with torch.no_grad():
        evaluated, trained = (encoder.train(mode)(100 * x) for mode in (False, True))
    torch.testing.assert_close(evaluated, trained, rtol=0.02, atol=0.02)


def test_every_stage_changes_only_its_own_parts(tmp_path: Path) -> None:
    method, source = network(), ArraySource(*points())
    names = ["latent", "warmup", "train", "finetune"]
    states = [{name: value.clone() for name, value in method.state_dict().items()}]
    fit(method, source, source, engine=CPU, progress=False, directory=tmp_path)
    for name in names:
        (file,) = tmp_path.glob(f"stages/{name}.*")
        states.append(load_file(file))
    changed = [
        {name.split(".")[0] for name in after if not torch.equal(after[name], before[name])}
        for before, after in pairwise(states)
    ]
    assert changed == [{"latent"}, {"flow"}, {"encoder", "latent", "flow", "head"}, {"flow"}]
    assert torch.equal(states[0]["latent.linear.weight"], states[1]["latent.linear.weight"])


def test_fit_survives_a_last_batch_of_one_and_fits_the_flow_last() -> None:
    method = network(finetune=Descent(epochs=30, batch_size=16, optimizer=Adam(lr=1e-2)))
    source = ArraySource(*points())
    epochs = fit(method, source, source, engine=CPU, progress=False).epochs
    flow = [e.values["heldout_nll"] for e in epochs if e.stage == "finetune"]
    assert flow[-1] < flow[0]
    assert all(value.isfinite().all() for value in method.state_dict().values())


def test_batch_norms_survive_a_lone_last_sample() -> None:
    encoder = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6))
    config = NaturalPosteriorNetwork.Config(4, warmup=SHORT, descent=SHORT, finetune=SHORT)
    method = NaturalPosteriorNetwork(encoder, NUM_CLASSES, config, points().x)
    engine, source = replace(CPU, predict_batch_size=32), ArraySource(*points(33))
    fit(method, source, source, engine=engine, progress=False)
    assert all(value.isfinite().all() for value in method.state_dict().values())


def test_state_holds_the_latents_statistics() -> None:
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
        NaturalPosteriorNetwork.Config(**changes)


def test_exported_program_says_the_same() -> None:
    method, x = network(), points().x
    shapes = {"x": {0: torch.export.Dim("batch", min=1)}}
    exported = torch.export.export(method, (x,), dynamic_shapes=shapes).module()
    for num_samples in (1, 7):
        torch.testing.assert_close(exported(x[:num_samples]), method(x[:num_samples]))
