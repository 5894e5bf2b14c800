import pytest
import torch
from limit_cases import EVERY_EPOCH, NETWORKS, TWO_EPOCHS, inputs, labels, pair, points, small
from torch import distributions as td
from torch import nn
from torch.nn import functional as F

import density_softmax as ds
from density_softmax.config import ConfigError
from density_softmax.methods.rank1_bnn import Rank1BNN
from density_softmax.nn.backbones.resnet import ResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.layers.rank_one import GaussianVectors, RankOne
from density_softmax.types import Batch


def vectors(method: nn.Module) -> list[GaussianVectors]:
    return [part for part in method.modules() if isinstance(part, GaussianVectors)]


@pytest.mark.parametrize(
    ("kind", "member_norm"),
    [("WideResNet", True), *((kind, False) for kind in NETWORKS)],
)
@torch.no_grad()
def test_factors_of_one_without_deviation_give_erm(kind, member_norm):
    config = Rank1BNN.Config(positive=1.0, initial_std=1e-30, member_norm=member_norm)
    erm, method, x = pair(kind, config)
    erm.head.linear.weight.copy_(method.head.shared.weight)
    erm.head.linear.bias.copy_(method.head.bias.value[0])
    ours, theirs = method.predict(x), erm.predict(x)
    torch.testing.assert_close(ours.probs, theirs.probs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.aleatoric, theirs.aleatoric, rtol=1e-5, atol=1e-5)
    assert ours.epistemic.max() < 1e-5


@torch.no_grad()
def test_one_member_without_deviation_is_one_network_with_product_kernels():
    erm, method, x = pair("ResFFN", Rank1BNN.Config(num_members=1, initial_std=1e-30))
    ours = dict(method.named_modules())
    for name, layer in erm.named_modules():
        if isinstance(layer, nn.Linear):
            part = ours[name.removesuffix(".linear") if name == "head.linear" else name]
            layer.weight.copy_(part.shared.weight * torch.outer(part.s.mean[0], part.r.mean[0]))
            layer.bias.copy_(part.bias.value[0])
    torch.testing.assert_close(method.predict(x).probs, erm.predict(x).probs)


@pytest.mark.parametrize(("positive", "signs"), [(1.0, {1}), (0.5, {-1, 1}), (0.0, {-1})])
def test_means_start_as_signs_and_deviations_as_told(positive, signs):
    method = small(Rank1BNN.Config(positive=positive))
    assert set(torch.cat([v.mean.flatten() for v in vectors(method)]).tolist()) == signs
    for each in vectors(method):
        expected = torch.full_like(each.mean, (1e-3 / 0.999) ** 0.5)
        torch.testing.assert_close(F.softplus(each.raw_std), expected)


# The paper's counts are Keras': they include the moving statistics of batch norm.
@pytest.mark.parametrize(
    ("encoder", "num_classes", "member_norm", "count", "millions"),
    [
        (WideResNet.Config(), 10, False, 36_635_872, 36.65),
        (WideResNet.Config(), 100, False, 36_694_552, 36.71),
        (ResNet.Config(), 1000, True, 26_136_504, 26.35),
    ],
)
def test_parameters_are_as_many_as_published(encoder, num_classes, member_norm, count, millions):
    with torch.device("meta"):
        network = encoder.build((3, 32, 32))
        method = Rank1BNN(network, num_classes, Rank1BNN.Config(member_norm=member_norm))
    assert sum(w.numel() for w in method.parameters()) == count
    moving = sum(b.numel() for name, b in method.named_buffers() if "running" in name)
    assert round((count + moving) / 1e6, 2) == millions


def test_loss_is_the_evidence_bound_with_decay_of_all_but_the_factors():
    config = Rank1BNN.Config(num_members=2, l2=0.3, annealing_epochs=4, prior_std=0.2)
    _, method, x = pair("WideResNet", config)
    method.kl.count().finish({"count": torch.tensor(50)})
    method.kl.after_step().finish({"count": torch.tensor(100)})
    torch.manual_seed(1)
    logits = method.head(method.features(torch.cat([x, x])))
    torch.manual_seed(1)
    loss = method.loss(Batch(x, labels()))
    kl = sum(
        td.kl_divergence(td.Normal(v.mean, F.softplus(v.raw_std)), td.Normal(1.0, 0.2)).sum()
        for v in vectors(method)
    )
    fast = {id(w) for v in vectors(method) for w in v.parameters()}
    l2 = 0.3 * sum(w.square().sum() for w in method.parameters() if id(w) not in fast)
    nll = F.cross_entropy(logits, labels().repeat(2))
    torch.testing.assert_close(loss, nll + (100 + 50) / 200 * kl / 50 + l2)


def test_a_seed_repeats_a_prediction_and_without_one_it_varies():
    method = small(Rank1BNN.Config(num_members=2, initial_std=0.3))
    first, again = method.predict(inputs(), seed=3), method.predict(inputs(), seed=3)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.probs, method.predict(inputs(), seed=4).probs)
    assert not torch.equal(method.predict(inputs()).probs, method.predict(inputs()).probs)


def test_prediction_is_the_mean_over_members_and_draws_and_their_disagreement():
    method = small(Rank1BNN.Config(num_members=3, num_samples=2, chunk=1, initial_std=0.3))
    x = inputs()
    torch.manual_seed(2)
    draws = [method.head(method.features(x.repeat(3, 1))).view(3, 6, -1) for _ in range(2)]
    draws = torch.cat(draws).softmax(-1)
    probs, aleatoric, epistemic = method.predict(x, seed=2)
    torch.testing.assert_close(probs, draws.mean(0))
    torch.testing.assert_close(aleatoric, td.Categorical(draws).entropy().mean(0))
    torch.testing.assert_close(epistemic, td.Categorical(probs).entropy() - aleatoric)
    torch.manual_seed(2)
    nll = method.stages()[1].monitor(Batch(x, labels()))["nll"]
    torch.testing.assert_close(nll, -probs.gather(1, labels()[:, None]).squeeze(1).log())


@torch.no_grad()
def test_samples_in_one_pass_serve_every_member_alike():
    config = {"num_members": 3, "num_samples": 4, "initial_std": 1e-30}
    once, apart = small(Rank1BNN.Config(**config)), small(Rank1BNN.Config(**config, chunk=1))
    torch.testing.assert_close(once.predict(inputs()), apart.predict(inputs()))


def test_training_counts_the_samples_and_changes_every_parameter():
    method = small(Rank1BNN.Config(num_members=2, annealing_epochs=3, descent=TWO_EPOCHS))
    before = {name: w.clone() for name, w in method.named_parameters()}
    ds.fit(method, points(40), points(20), engine=EVERY_EPOCH, progress=False)
    assert (method.kl.num_train, method.kl.num_seen) == (40, 80)
    assert all((w != before[name]).any() for name, w in method.named_parameters())


def test_state_holds_all_that_is_learned_and_counted():
    method = small(Rank1BNN.Config(num_members=2, descent=TWO_EPOCHS))
    ds.fit(method, points(40), points(20), engine=EVERY_EPOCH, progress=False)
    other = small(Rank1BNN.Config(num_members=2), seed=1)
    other.load_state_dict(method.state_dict())
    assert torch.equal(
        method.predict(inputs(), seed=0).probs, other.predict(inputs(), seed=0).probs
    )
    assert (other.kl.num_train, other.kl.num_seen) == (40, 80)


def test_every_layer_is_an_ensemble_of_its_own():
    method = small(Rank1BNN.Config())
    layers = {name for name, part in method.named_modules() if isinstance(part, RankOne)}
    assert layers == {"encoder.input", "encoder.blocks.0.linear", "encoder.blocks.1.linear", "head"}


@pytest.mark.parametrize(
    "bad",
    [
        {"num_members": 0},
        {"num_samples": 0},
        {"chunk": -1},
        {"annealing_epochs": 0},
        {"initial_std": 0.0},
        {"prior_std": -0.1},
        {"positive": 1.5},
        {"l2": -1.0},
    ],
)
def test_settings_that_make_no_sense_are_named(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ConfigError, match=f"{name}={value}: choose"):
        Rank1BNN.Config(**bad)
