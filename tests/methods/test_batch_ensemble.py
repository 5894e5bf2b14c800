import pytest
import torch
from limit_cases import (
    EVERY_EPOCH,
    NETWORKS,
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
from density_softmax.methods.batch_ensemble import BatchEnsemble
from density_softmax.nn.backbones.resnet import ResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.layers.rank_one import RankOne
from density_softmax.types import Batch


def layers(method: nn.Module) -> dict[str, RankOne]:
    return {name: part for name, part in method.named_modules() if isinstance(part, RankOne)}


@torch.no_grad()
def become(erm: nn.Module, method: BatchEnsemble, m: int) -> None:
    """Give ERM the explicit kernels W ∘ s rᵀ and the biases of a member."""
    plain = dict(erm.named_modules())
    for name, part in layers(method).items():
        layer = plain["head.linear" if name == "head" else name]
        factor = torch.outer(part.s.value[m], part.r.value[m])
        factor = factor.reshape(*factor.shape, *[1] * (layer.weight.ndim - 2))
        layer.weight.copy_(part.shared.weight * factor)
        if part.bias is not None:
            layer.bias.copy_(part.bias.value[m])


@pytest.mark.parametrize("kind", NETWORKS)
def test_factors_of_one_give_erm(kind):
    erm, method, x = pair(kind, BatchEnsemble.Config(initial_std=0.0))
    become(erm, method, 0)
    ours, theirs = method.predict(x), erm.predict(x)
    torch.testing.assert_close(ours.probs, theirs.probs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.aleatoric, theirs.aleatoric, rtol=1e-5, atol=1e-5)
    assert ours.epistemic.max() < 1e-5


@pytest.mark.parametrize("kind", SMALL_NETWORKS)
def test_one_member_is_erm_with_the_product_kernels(kind):
    erm, method, x = pair(kind, BatchEnsemble.Config(num_members=1, initial_std=0.2))
    become(erm, method, 0)
    torch.testing.assert_close(method.predict(x).probs, erm.predict(x).probs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["ResFFN", "WideResNet"])
def test_prediction_is_the_mean_over_networks_with_explicit_kernels(kind):
    erm, method, x = pair(kind, BatchEnsemble.Config(num_members=3))
    for part in layers(method).values():
        if part.bias is not None:
            nn.init.normal_(part.bias.value)
    members = []
    for m in range(3):
        become(erm, method, m)
        members.append(erm.predict(x).probs)
    members = torch.stack(members)
    probs, aleatoric, epistemic = method.predict(x)
    torch.testing.assert_close(probs, members.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        aleatoric, td.Categorical(members).entropy().mean(0), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(epistemic, td.Categorical(probs).entropy() - aleatoric)
    nll = method.stages()[0].monitor(Batch(x, labels()))["nll"]
    torch.testing.assert_close(nll, -probs.gather(1, labels()[:, None]).squeeze(1).log())


def test_factors_start_around_one():
    torch.manual_seed(0)
    method = BatchEnsemble(nn.Linear(2, 3000), 3, BatchEnsemble.Config(num_members=4))
    values = method.encoder.s.value
    assert values.mean().item() == pytest.approx(1, abs=0.02)
    assert values.std().item() == pytest.approx(0.5, abs=0.02)


# The paper's counts are Keras': they include the moving statistics of batch norm.
@pytest.mark.parametrize(
    ("encoder", "num_classes", "count", "millions"),
    [
        (WideResNet.Config(), 10, 36_557_548, 36.58),
        (WideResNet.Config(), 100, 36_615_868, 36.63),
        (ResNet.Config(), 1000, 25_768_588, 25.82),
    ],
)
def test_parameters_are_as_many_as_published(encoder, num_classes, count, millions):
    with torch.device("meta"):
        method = BatchEnsemble(encoder.build((3, 32, 32)), num_classes)
    assert sum(w.numel() for w in method.parameters()) == count
    moving = sum(b.numel() for name, b in method.named_buffers() if "running" in name)
    assert round((count + moving) / 1e6, 2) == millions


def gradients(fast_gradient: float) -> dict[str, torch.Tensor]:
    method = small(BatchEnsemble.Config(fast_gradient=fast_gradient))
    method.loss(Batch(inputs(), labels())).backward()
    return {name: w.grad for name, w in method.named_parameters()}


def test_gradients_of_what_members_own_are_halved_and_no_others():
    halved, full = gradients(0.5), gradients(1.0)
    for name, gradient in full.items():
        share = 1.0 if name.endswith("shared.weight") else 0.5
        torch.testing.assert_close(halved[name], share * gradient)


def test_loss_is_the_mean_over_members_with_decay_of_all_but_the_factors():
    _, method, x = pair("WideResNet", BatchEnsemble.Config(num_members=2, l2=0.3))
    logits = method.head(method.features(torch.cat([x, x]))).view(2, 6, -1)
    fast = {id(w) for part in layers(method).values() for w in (part.r.value, part.s.value)}
    l2 = 0.3 * sum(w.square().sum() for w in method.parameters() if id(w) not in fast)
    nll = (F.cross_entropy(logits[0], labels()) + F.cross_entropy(logits[1], labels())) / 2
    torch.testing.assert_close(method.loss(Batch(x, labels())), nll + l2)


def test_prediction_is_always_the_same():
    method = small(BatchEnsemble.Config())
    assert torch.equal(method.predict(inputs()).probs, method.predict(inputs()).probs)
    assert method.predict(inputs()).epistemic.min() > 0


def test_training_changes_every_parameter_and_keeps_it_in_the_state():
    method = small(BatchEnsemble.Config(num_members=2, descent=TWO_EPOCHS))
    before = {name: w.clone() for name, w in method.named_parameters()}
    ds.fit(method, points(40), points(20), engine=EVERY_EPOCH, progress=False)
    assert all((w != before[name]).any() for name, w in method.named_parameters())
    other = small(BatchEnsemble.Config(num_members=2), seed=1)
    other.load_state_dict(method.state_dict())
    assert torch.equal(method.predict(inputs()).probs, other.predict(inputs()).probs)


@pytest.mark.parametrize(
    "bad", [{"num_members": 0}, {"initial_std": -0.5}, {"fast_gradient": -1.0}, {"l2": -1.0}]
)
def test_settings_that_make_no_sense_are_named(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ConfigError, match=f"{name}={value}: choose"):
        BatchEnsemble.Config(**bad)
