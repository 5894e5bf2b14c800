import copy
import math

import pytest
import torch
from limit_cases import (
    EVERY_EPOCH,
    NETWORKS,
    NUM_CLASSES,
    SMALL_NETWORKS,
    TWO_EPOCHS,
    inputs,
    labels,
    pair,
    points,
    small,
)
from torch import distributions as td
from torch import nn
from torch.nn import functional as F

import density_softmax as ds
from density_softmax.config import ConfigError
from density_softmax.methods.mean_field import MeanField
from density_softmax.nn.backbones.resnet import ResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.layers.variational import Flipout
from density_softmax.types import Batch


def flipouts(method: nn.Module) -> list[Flipout]:
    return [part for part in method.modules() if isinstance(part, Flipout)]


@pytest.mark.parametrize("kind", NETWORKS)
def test_without_deviation_it_is_erm(kind):
    erm, method, x = pair(kind, MeanField.Config(num_samples=1))
    erm.head.linear.load_state_dict(method.head.mean.state_dict())
    for layer in flipouts(method):
        nn.init.constant_(layer.raw_std, -math.inf)
    with torch.no_grad():
        assert torch.equal(method.head(method.features(x)), erm.head(erm.features(x)))
    probs, _, epistemic = method.predict(x)
    torch.testing.assert_close(probs, erm.predict(x).probs)
    assert (epistemic == 0).all()


@pytest.mark.parametrize("kind", SMALL_NETWORKS)
def test_every_kernel_has_a_posterior_and_nothing_else_has(kind):
    erm, method, _ = pair(kind, MeanField.Config())
    kernels = [w for w in erm.parameters() if w.ndim > 1]
    assert [layer.raw_std.shape for layer in flipouts(method)] == [w.shape for w in kernels]
    doubled = sum(w.numel() for w in kernels)
    assert num_parameters(method) == num_parameters(erm) + doubled


def num_parameters(method: nn.Module) -> int:
    return sum(w.numel() for w in method.parameters())


# The paper's counts are Keras': they include the moving statistics of batch norm.
@pytest.mark.parametrize(
    ("encoder", "num_classes", "count", "millions"),
    [
        (WideResNet.Config(), 10, 72_940_426, 72.96),
        (WideResNet.Config(), 100, 73_055_716, 73.07),
        (ResNet.Config(), 1000, 51_059_944, None),
    ],
)
def test_parameters_are_as_many_as_published(encoder, num_classes, count, millions):
    with torch.device("meta"):
        method = MeanField(encoder.build((3, 32, 32)), num_classes)
    assert num_parameters(method) == count
    moving = sum(b.numel() for name, b in method.named_buffers() if "running" in name)
    assert millions is None or round((count + moving) / 1e6, 2) == millions


def test_loss_is_the_evidence_bound_with_decay_of_what_has_no_posterior():
    _, method, x = pair("WideResNet", MeanField.Config(l2=0.3, annealing_epochs=4, prior_std=0.2))
    method.kl.count().finish({"count": torch.tensor(50)})
    method.kl.after_step().finish({"count": torch.tensor(100)})
    torch.manual_seed(1)
    logits = method.head(method.features(x))
    torch.manual_seed(1)
    loss = method.loss(Batch(x, labels()))
    kl = sum(
        td.kl_divergence(
            td.Normal(layer.mean.weight, F.softplus(layer.raw_std)),
            td.Normal(layer.mean.weight, 0.2),
        ).sum()
        for layer in flipouts(method)
    )
    plain = [w for name, w in method.named_parameters() if "bn" in name or "bias" in name]
    l2 = 0.3 * sum(w.square().sum() for w in plain)
    expected = F.cross_entropy(logits, labels()) + (100 + 50) / 200 * kl / 50 + l2
    torch.testing.assert_close(loss, expected)


def test_a_seed_repeats_a_prediction_and_without_one_it_varies():
    method = small(MeanField.Config(num_samples=3, initial_std=0.3))
    first, again = method.predict(inputs(), seed=3), method.predict(inputs(), seed=3)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.probs, method.predict(inputs(), seed=4).probs)
    assert not torch.equal(method.predict(inputs()).probs, method.predict(inputs()).probs)


def test_prediction_is_the_mean_over_draws_and_their_disagreement():
    method = small(MeanField.Config(num_samples=4, chunk=1, initial_std=0.3))
    torch.manual_seed(2)
    draws = torch.stack([method.head(method.features(inputs())) for _ in range(4)]).softmax(-1)
    probs, aleatoric, epistemic = method.predict(inputs(), seed=2)
    torch.testing.assert_close(probs, draws.mean(0))
    torch.testing.assert_close(aleatoric, td.Categorical(draws).entropy().mean(0))
    torch.testing.assert_close(epistemic, td.Categorical(probs).entropy() - aleatoric)
    torch.manual_seed(2)
    nll = method.stages()[1].monitor(Batch(inputs(), labels()))["nll"]
    torch.testing.assert_close(nll, -probs.gather(1, labels()[:, None]).squeeze(1).log())


@torch.no_grad()
def test_draws_in_one_pass_average_to_what_draws_in_many_do():
    method = small(MeanField.Config(num_samples=500, initial_std=0.2))
    apart = small(MeanField.Config(num_samples=500, initial_std=0.2, chunk=1))
    means = [m.predict(inputs(), seed=0).probs for m in (method, apart)]
    torch.testing.assert_close(means[0], means[1], rtol=0, atol=0.05)


def test_training_counts_the_samples_and_changes_every_parameter():
    method = small(MeanField.Config(annealing_epochs=3, descent=TWO_EPOCHS))
    before = {name: w.clone() for name, w in method.named_parameters()}
    ds.fit(method, points(40), points(20), engine=EVERY_EPOCH, progress=False)
    assert (method.kl.num_train, method.kl.num_seen) == (40, 80)
    assert method.kl.weight().item() == pytest.approx((80 + 16) / 120)  # in the step to come
    assert all((w != before[name]).any() for name, w in method.named_parameters())


class Killed(Exception):  # noqa: N818
    """Stands for a kill at any moment."""


def test_a_resumed_run_anneals_on_from_where_it_was(tmp_path, monkeypatch):
    def trained(directory, resume=False):
        method = small(MeanField.Config(annealing_epochs=2, descent=TWO_EPOCHS))
        options = {"directory": directory, "resume": resume, "engine": EVERY_EPOCH}
        ds.fit(method, points(40), points(20), progress=False, **options)
        return method

    undisturbed = trained(tmp_path / "undisturbed")
    step, steps = torch.optim.Adam.step, iter(range(4))

    def killed(*args, **kwargs):
        if next(steps, None) is None:
            raise Killed
        return step(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", killed)
        with pytest.raises(Killed):
            trained(tmp_path / "run")
    resumed = trained(tmp_path / "run", resume=True)
    state = resumed.state_dict()
    assert all(torch.equal(w, state[name]) for name, w in undisturbed.state_dict().items())


def test_state_holds_all_that_is_learned_and_counted():
    method = small(MeanField.Config(num_samples=2, descent=TWO_EPOCHS))
    ds.fit(method, points(40), points(20), engine=EVERY_EPOCH, progress=False)
    other = small(MeanField.Config(num_samples=2), seed=1)
    other.load_state_dict(copy.deepcopy(method.state_dict()))
    assert torch.equal(
        method.predict(inputs(), seed=0).probs, other.predict(inputs(), seed=0).probs
    )
    assert (other.kl.num_train, other.kl.num_seen) == (40, 80)


def test_large_inputs_keep_the_loss_finite():
    method = small(MeanField.Config(initial_std=0.1))
    method.kl.count().finish({"count": torch.tensor(6)})
    assert method.loss(Batch(1e6 * inputs(), labels())).isfinite()
    assert method.predict(1e6 * inputs(), seed=0).probs.isfinite().all()


@pytest.mark.parametrize(
    "bad",
    [
        {"num_samples": 0},
        {"chunk": -1},
        {"annealing_epochs": 0},
        {"initial_std": 0.0},
        {"prior_std": -0.1},
        {"l2": -1.0},
    ],
)
def test_settings_that_make_no_sense_are_named(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ConfigError, match=f"{name}={value}: choose"):
        MeanField.Config(**bad)


def test_the_number_of_classes_is_that_of_the_head():
    assert small(MeanField.Config()).predict(inputs()).probs.shape == (6, NUM_CLASSES)
