import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import density_softmax as ds
from density_softmax import metrics
from density_softmax.config import ConfigError, from_dict, to_dict
from density_softmax.data import ArraySource
from density_softmax.errors import UserError
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.methods.deep_ensemble import DeepEnsemble
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.methods.deterministic import Deterministic, TemperatureScaling
from density_softmax.methods.posterior_network import PosteriorNetwork
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.resnet import CifarResNet, ResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.training import Adam, Descent

NUM_CLASSES = 3
SHORT = Descent(epochs=2, batch_size=16, optimizer=Adam(lr=1e-2))
ERM = Deterministic.Config(descent=SHORT)
ENGINE = ds.EngineConfig(accelerator="cpu", threads=1)


def points(num_samples: int, seed: int) -> ArraySource:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_samples, 2, generator=generator)
    return ArraySource(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())


def network(seed: int = 0) -> nn.Module:
    """With batch norm and dropout, which depend on modes and on draws."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 6))


def ensemble(num_members: int = 3, member: MethodConfig = ERM, seed: int = 0) -> DeepEnsemble:
    config = DeepEnsemble.Config(member=member, num_members=num_members)
    return config.build(network(seed), NUM_CLASSES)


def trained(method: Method) -> Method:
    ds.fit(method, points(40, 1), points(20, 2), seed=7, engine=ENGINE, progress=False)
    return method


def states(method: DeepEnsemble) -> list[dict[str, Tensor]]:
    return [{k: v.clone() for k, v in member.state_dict().items()} for member in method.members]


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


X = points(30, 3).x


def test_probabilities_are_the_mean_of_the_members_and_disagreement_is_epistemic() -> None:
    method = trained(ensemble())
    members = torch.stack([member.predict(X).probs for member in method.members]).double()
    probs, aleatoric, epistemic = method.predict(X)
    torch.testing.assert_close(probs.double(), members.mean(0), rtol=0, atol=1e-6)
    expected = Categorical(probs=members).entropy().mean(0)
    torch.testing.assert_close(aleatoric.double(), expected, rtol=0, atol=1e-6)
    information = Categorical(probs=members.mean(0)).entropy() - expected
    torch.testing.assert_close(epistemic.double(), information, rtol=0, atol=1e-6)


def test_its_nll_is_that_of_the_mean_probability_and_below_the_mean_of_the_nlls() -> None:
    method, y = trained(ensemble()), points(30, 3).y
    members = torch.stack([member.predict(X).probs for member in method.members])
    found = metrics.nll(method.predict(X).probs, y)
    expected = -members.mean(0)[torch.arange(30), y].log().mean().item()
    assert found == pytest.approx(expected, rel=1e-5)
    assert found < sum(metrics.nll(probs, y) for probs in members) / 3


def test_one_member_is_erm() -> None:
    one, erm = trained(ensemble(1)), trained(ERM.build(network(), NUM_CLASSES))
    assert same(one.members[0].state_dict(), erm.state_dict())
    ours, plain = one.predict(X), erm.predict(X)
    assert torch.equal(ours.probs, plain.probs)
    torch.testing.assert_close(ours.aleatoric, plain.aleatoric)
    assert (ours.epistemic == 0).all()


def test_certain_members_that_contradict_each_other_are_all_epistemic() -> None:
    method = ensemble(2)
    with torch.no_grad():
        for member, bias in zip(method.members, ([1e4, 0, 0], [0, 1e4, 0]), strict=True):
            member.head.linear.bias.copy_(torch.tensor(bias))
    _, aleatoric, epistemic = method.predict(X)
    assert (aleatoric == 0).all()
    torch.testing.assert_close(epistemic, torch.full((30,), math.log(2)))


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (ResFFN.Config(depth=2, width=4), (3,)),
        (WideResNet.Config(depth=10, width=1), (1, 8, 8)),
        (CifarResNet.Config(depth=8), (1, 8, 8)),
        (ResNet.Config(depth=50), (1, 32, 32)),
    ],
    ids=["ResFFN", "WideResNet", "CifarResNet", "ResNet"],
)
def test_members_start_from_weights_of_their_own_and_share_none(config, shape) -> None:
    method = DeepEnsemble.Config(num_members=2).build(config.build(shape), NUM_CLASSES)
    names = [name for name, p in method.members[0].named_parameters() if p.ndim > 1]
    first, second = (dict(member.named_parameters()) for member in method.members)
    assert names
    assert all(not torch.equal(first[name], second[name]) for name in names)
    assert not {p.data_ptr() for p in first.values()} & {p.data_ptr() for p in second.values()}
    x = torch.randn(2, *shape)
    torch.testing.assert_close(method.predict(x).probs.sum(1), torch.ones(2))


def test_the_first_member_keeps_the_weights_of_the_encoder() -> None:
    encoder = network()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    method = DeepEnsemble(encoder, NUM_CLASSES)
    assert same(method.members[0].encoder.state_dict(), before)


def test_every_stage_trains_one_member_and_leaves_the_others() -> None:
    method = ensemble()
    assert [stage.name for stage in method.stages()] == [f"member{i}-train" for i in range(3)]
    before = states(method)
    stages = method.stages()[1:2]
    object.__setattr__(method, "stages", lambda: stages)
    trained(method)
    changed = [not same(old, new) for old, new in zip(before, states(method), strict=True)]
    assert changed == [False, True, False]


def test_a_member_does_not_depend_on_what_the_others_are() -> None:
    plain, other = ensemble(), ensemble()
    with torch.no_grad():
        for parameter in other.members[0].parameters():
            parameter.mul_(2)
    ours, theirs = states(trained(plain)), states(trained(other))
    assert [same(*pair) for pair in zip(ours, theirs, strict=True)] == [False, True, True]


def test_members_see_the_data_in_orders_of_their_own() -> None:
    method = ensemble(2)
    method.members[1].load_state_dict(method.members[0].state_dict())
    assert not same(*states(trained(method)))


def test_members_may_be_of_any_method_whose_stages_read_inputs() -> None:
    method = ensemble(2, PosteriorNetwork.Config(descent=SHORT))
    names = [stage.name for stage in method.stages()]
    assert names == [f"member{i}-{stage}" for i in range(2) for stage in ("count", "train")]
    trained(method)
    assert all(member.counts.sum() > 1 for member in method.members)


def test_a_member_that_reads_cached_features_is_refused_with_a_remedy() -> None:
    method = ensemble(2, DensitySoftmax.Config(representation=SHORT))
    with pytest.raises(UserError, match=r"of density_softmax reads cached features.*density-softm"):
        trained(method)


def test_every_weight_is_saved_once_and_the_whole_state_comes_back() -> None:
    method, other = trained(ensemble()), ensemble(seed=5)
    assert all(name.startswith("members.") for name in method.state_dict())
    assert metrics.num_parameters(method) == 3 * metrics.num_parameters(method.members[0])
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.predict(X).probs, method.predict(X).probs)


def test_features_are_those_of_all_members_side_by_side() -> None:
    method = ensemble().eval()
    parts = method.features(X).split(6, dim=1)
    assert len(parts) == 3
    assert method.num_features == 18
    for part, member in zip(parts, method.members, strict=True):
        assert torch.equal(part, member.features(X))


def test_the_default_is_four_members_of_erm() -> None:
    assert DeepEnsemble.Config().ensemble() == (Deterministic.Config(),) * 4


def test_the_settings_of_members_survive_the_way_to_a_dictionary() -> None:
    config = DeepEnsemble.Config(member=TemperatureScaling.Config(descent=SHORT), num_members=2)
    assert from_dict(MethodConfig, to_dict(config)) == config


def test_an_ensemble_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_members=0: choose 1 or more"):
        DeepEnsemble.Config(num_members=0)
