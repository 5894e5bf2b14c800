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
from torch.distributions import Categorical
from torch.nn import functional as F

import density_softmax as ds
from density_softmax.config import ConfigError
from density_softmax.methods.deterministic import Deterministic
from density_softmax.methods.mimo import MIMO
from density_softmax.nn.backbones.resnet import ResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.types import Batch


@pytest.mark.parametrize("kind", ["ResFFN", "WideResNet", "CifarResNet"])
def test_one_member_is_erm_with_the_same_weights(kind):
    erm, method, x = pair(kind, MIMO.Config(num_members=1))
    erm.head.load_state_dict(method.heads.state_dict())
    ours, theirs = method.predict(x), erm.predict(x)
    torch.testing.assert_close(ours.probs, theirs.probs, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(ours.aleatoric, theirs.aleatoric)
    assert ours.epistemic.max() < 1e-6


@torch.no_grad()
def with_independent_members(num_members: int = 3, **settings) -> tuple[MIMO, Deterministic]:
    """A MIMO whose member m reads input m alone, and the classifier that each member is."""
    torch.manual_seed(0)
    width = 4
    erm = Deterministic(nn.Sequential(nn.Linear(2, width), nn.Tanh()), NUM_CLASSES)
    config = MIMO.Config(num_members=num_members, **settings)
    encoder = nn.Sequential(nn.Linear(2, num_members * width), nn.Tanh())
    method = MIMO(encoder, NUM_CLASSES, config)
    copies = [erm.encoder[0].weight] * num_members, [erm.head.linear.weight] * num_members
    encoder[0].weight.copy_(torch.block_diag(*copies[0]))
    encoder[0].bias.copy_(erm.encoder[0].bias.repeat(num_members))
    method.heads.linear.weight.copy_(torch.block_diag(*copies[1]))
    method.heads.linear.bias.copy_(erm.head.linear.bias.repeat(num_members))
    return method.eval(), erm.eval()


def test_each_member_learns_every_sample_with_its_own_label():
    # Otherwise independent members would not have the loss of a classifier on the batch.
    method, erm = with_independent_members(batch_repetition=4)
    batch = Batch(inputs(), labels())
    nll = F.cross_entropy(erm.head(erm.features(batch.x)), batch.y)
    nlls = method.member_nlls(batch)
    assert nlls.shape == (3, 4 * 6)
    torch.testing.assert_close(nlls.mean(1), nll.expand(3))
    torch.testing.assert_close(method.stages()[0].loss(batch), 3 * nll)


def influence(method: MIMO, member: int, place: int) -> set[int]:
    """The samples of a training batch on which the loss of a member at a place depends."""
    x = inputs().requires_grad_()
    torch.manual_seed(5)
    method.member_nlls(Batch(x, labels()))[member, place].backward()
    return set(x.grad.abs().sum(1).nonzero().flatten().tolist())


def dealt(method: MIMO) -> torch.Tensor:
    torch.manual_seed(5)
    return method.deal(len(inputs()))


def test_the_loss_of_an_independent_member_has_no_gradient_but_by_the_sample_it_was_dealt():
    method, _ = with_independent_members()
    hands = dealt(method)
    for place in range(6):
        for member in range(3):
            assert influence(method, member, place) == {hands[member, place].item()}


def test_the_members_of_a_network_are_given_different_samples_in_training():
    # Weights are mixed here: a loss depends on all that was given to any member at its place.
    method = small(MIMO.Config())
    hands = dealt(method)
    numbers = [len(set(hands[:, place].tolist())) for place in range(6)]
    assert max(numbers) == 3
    for place in range(6):
        assert influence(method, 0, place) == set(hands[:, place].tolist())


def test_all_heads_read_the_same_sample_in_prediction():
    method, erm = with_independent_members()
    members = method.member_logits(method.features(inputs()))
    expected = erm.head(erm.features(inputs()))
    torch.testing.assert_close(members, expected.expand(3, -1, -1))
    mixed = small(MIMO.Config())
    x = inputs().requires_grad_()
    mixed(x).probs[2, 0].backward()
    assert x.grad.abs().sum(1).nonzero().flatten().tolist() == [2]


def test_every_member_is_dealt_each_sample_equally_often():
    hands = small(MIMO.Config(num_members=5, batch_repetition=4)).deal(7)
    assert hands.shape == (5, 4 * 7)
    for hand in hands:
        assert torch.equal(hand.bincount(), torch.full((7,), 4))


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_members_meet_by_chance_only_but_in_the_share_that_is_repeated(share):
    torch.manual_seed(0)
    num_samples = 1000
    hands = small(MIMO.Config(input_repetition=share)).deal(num_samples)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        together = (hands[a] == hands[b]).float().mean().item()
        assert together == pytest.approx(share + (1 - share) / num_samples, abs=3e-3)
    own = round(4 * num_samples * (1 - share))
    assert (hands[:, own:] == hands[0, own:]).all()
    if share == 0:
        correlations = torch.corrcoef(hands.float())
        assert (correlations - torch.eye(3)).abs().max() < 5 / (4 * num_samples) ** 0.5


def test_deals_follow_the_generator():
    method = small(MIMO.Config())
    assert torch.equal(dealt(method), dealt(method))
    assert not torch.equal(method.deal(6), method.deal(6))


def test_prediction_is_the_mean_softmax_of_the_heads():
    method = small(MIMO.Config())
    joined = inputs().repeat(1, 3)
    z = method.encoder(joined)
    heads = zip(method.heads.linear.weight.chunk(3), method.heads.linear.bias.chunk(3), strict=True)
    members = torch.stack([F.linear(z, weight, bias).softmax(-1) for weight, bias in heads])
    probs, aleatoric, epistemic = method.predict(inputs())
    torch.testing.assert_close(probs, members.mean(0))
    torch.testing.assert_close(aleatoric, Categorical(members).entropy().mean(0))
    torch.testing.assert_close(
        epistemic, Categorical(probs).entropy() - aleatoric, rtol=1e-4, atol=1e-6
    )
    nll = method.stages()[0].monitor(Batch(inputs(), labels()))["nll"]
    torch.testing.assert_close(nll, -probs.gather(1, labels()[:, None]).squeeze(1).log())
    assert torch.equal(probs, method.predict(inputs()).probs)


def test_images_are_joined_on_their_channels():
    torch.manual_seed(0)
    encoder = WideResNet.Config(depth=10, width=1).build((3, 8, 8))
    method = MIMO(encoder, NUM_CLASSES, example=torch.zeros(1, 3, 8, 8)).eval()
    seen = []
    encoder.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    x = inputs((3, 8, 8))
    method.predict(x)
    assert torch.equal(seen[0], torch.cat([x, x, x], dim=1))


# The paper's counts are Keras': they include the moving statistics of batch norm. Its count on
# ImageNet is that of 2 members.
@pytest.mark.parametrize(
    ("encoder", "num_classes", "num_members", "count", "millions"),
    [
        (WideResNet.Config(), 10, 3, 36_492_878, 36.51),
        (WideResNet.Config(), 100, 3, 36_665_948, 36.68),
        (ResNet.Config(), 1000, 2, 27_615_440, 27.67),
    ],
)
def test_parameters_are_as_many_as_published(encoder, num_classes, num_members, count, millions):
    config = MIMO.Config(num_members=num_members)
    with torch.device("meta"):
        method = MIMO(encoder.build((3, 32, 32)), num_classes, config)
    assert sum(w.numel() for w in method.parameters()) == count
    moving = sum(b.numel() for name, b in method.named_buffers() if "running" in name)
    assert round((count + moving) / 1e6, 2) == millions


def test_training_changes_every_parameter_and_the_state_holds_all_of_it():
    method = small(MIMO.Config(descent=TWO_EPOCHS))
    before = {name: w.clone() for name, w in method.named_parameters()}
    ds.fit(method, points(40), points(20), engine=EVERY_EPOCH, progress=False)
    assert all((w != before[name]).any() for name, w in method.named_parameters())
    other = small(MIMO.Config(), seed=1)
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.predict(inputs()).probs, method.predict(inputs()).probs)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_members": 0},
        {"batch_repetition": 0},
        {"input_repetition": 1.5},
        {"input_repetition": -0.1},
    ],
)
def test_settings_that_mean_nothing_are_refused(settings):
    ((name, value),) = settings.items()
    with pytest.raises(ConfigError, match=f"{name}={value}: choose"):
        MIMO.Config(**settings)


def test_an_encoder_whose_input_cannot_be_widened_is_refused_with_an_example_at_hand():
    encoder = nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 4))
    with pytest.raises(ValueError, match="cannot read 3 inputs side by side"):
        MIMO(encoder, NUM_CLASSES, example=torch.zeros(1, 2))
