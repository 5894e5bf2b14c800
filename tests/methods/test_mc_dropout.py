import pytest
import torch
from limit_cases import EVERY_EPOCH, TWO_EPOCHS, inputs, labels, pair, points, small
from torch import nn
from torch.distributions import Categorical

import density_softmax as ds
from density_softmax.config import ConfigError
from density_softmax.methods.mc_dropout import MCDropout
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.resnet import ResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.layers.variational import MonteCarloDropout
from density_softmax.types import Batch


@torch.no_grad()
def become(erm: nn.Module, method: nn.Module) -> None:
    """Give ERM the head of a method; their encoders are copies already."""
    erm.head.load_state_dict(method.head.state_dict())


@pytest.mark.parametrize("kind", ["ResFFN", "WideResNet", "CifarResNet"])
def test_no_dropout_gives_erm(kind):
    erm, method, x = pair(kind, MCDropout.Config(rate=0.0, num_samples=3))
    become(erm, method)
    ours, theirs = method.predict(x), erm.predict(x)
    torch.testing.assert_close(ours.probs, theirs.probs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.aleatoric, theirs.aleatoric, rtol=1e-5, atol=1e-6)
    assert ours.epistemic.max() < 1e-6


def test_one_sample_without_dropout_gives_the_logits_of_erm_exactly():
    erm, method, x = pair("WideResNet", MCDropout.Config(rate=0.0, num_samples=1))
    become(erm, method)
    assert torch.equal(method.sample_logits(x)[0], erm.head(erm.features(x)))


def test_prediction_averages_the_probabilities_of_its_samples():
    method = small(MCDropout.Config(rate=0.3, num_samples=5))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        members = method.sample_logits(inputs()).softmax(-1)
    probs, aleatoric, epistemic = method.predict(inputs(), seed=3)
    torch.testing.assert_close(probs, members.mean(0))
    torch.testing.assert_close(aleatoric, Categorical(members).entropy().mean(0))
    torch.testing.assert_close(epistemic, Categorical(probs).entropy() - aleatoric)
    assert epistemic.min() > 0


def test_the_mean_over_masks_of_a_linear_network_is_the_network_without_dropout():
    torch.manual_seed(0)
    num_samples = 40_000
    config = MCDropout.Config(rate=0.3, num_samples=num_samples)
    method = MCDropout(nn.Sequential(nn.Linear(2, 8), nn.Linear(8, 4)), 3, config).eval()
    x = inputs()
    with torch.no_grad():
        logits = method.sample_logits(x)
        for module in method.modules():
            if isinstance(module, MonteCarloDropout):
                module.rate = 0.0
        expected = method.head(method.features(x))
    error = logits.std(0) / num_samples**0.5
    assert ((logits.mean(0) - expected).abs() < 5 * error).all()


def test_masks_differ_between_samples_and_between_rows_of_a_batch():
    method = small(MCDropout.Config(rate=0.5, num_samples=4))
    logits = method.sample_logits(inputs()[:1].expand(3, -1))
    rows = logits.flatten(0, 1)
    assert len(rows.unique(dim=0)) == len(rows)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_active_in_both_modes(training):
    method = small(MCDropout.Config(rate=0.5)).train(training)
    assert not torch.equal(method.features(inputs()), method.features(inputs()))


def test_a_seed_repeats_the_prediction_and_no_seed_does_not():
    method = small(MCDropout.Config(rate=0.5, num_samples=3))
    first, again, other = (method.predict(inputs(), seed=seed).probs for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(method.predict(inputs()).probs, method.predict(inputs()).probs)


class GivenMasks(nn.Module):
    """Dropout with masks from a list, row by row in the order in which rows come."""

    def __init__(self, masks: torch.Tensor) -> None:
        super().__init__()
        self.masks, self.used = masks, 0

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        masks = self.masks[self.used : self.used + len(h)]
        self.used += len(h)
        return h * masks


def test_chunks_give_the_same_prediction_under_the_same_masks():
    def prediction(chunk: int) -> list[torch.Tensor]:
        torch.manual_seed(0)
        config = MCDropout.Config(num_samples=5, chunk=chunk)
        method = MCDropout(nn.Sequential(nn.Linear(2, 8)), 3, config).eval()
        method.encoder[0].dropout = GivenMasks(torch.rand(5 * 6, 8).round())
        return list(method(inputs()))

    whole = prediction(0)
    for chunk in (1, 2, 5, 7):
        for ours, theirs in zip(prediction(chunk), whole, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_no_pass_is_larger_than_a_chunk():
    method = small(MCDropout.Config(num_samples=5, chunk=2))
    sizes = []
    method.encoder.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    method.predict(inputs())
    assert sizes == [2 * 6, 2 * 6, 6]


def test_loss_is_the_cross_entropy_under_one_mask_per_row():
    method = small(MCDropout.Config(rate=0.5)).train()
    torch.manual_seed(3)
    loss = method.stages()[0].loss(Batch(inputs(), labels()))
    torch.manual_seed(3)
    logits = method.head(method.features(inputs()))
    torch.testing.assert_close(loss, -Categorical(logits=logits).log_prob(labels()).mean())


# The paper's counts are Keras': they include the moving statistics of batch norm.
@pytest.mark.parametrize(
    ("encoder", "num_classes", "count", "millions"),
    [
        (WideResNet.Config(), 10, 36_479_194, 36.50),
        (WideResNet.Config(), 100, 36_536_884, 36.55),
        (ResNet.Config(), 1000, 25_557_032, 25.61),
    ],
)
def test_parameters_are_as_many_as_published(encoder, num_classes, count, millions):
    with torch.device("meta"):
        method = MCDropout(encoder.build((3, 32, 32)), num_classes)
    assert sum(w.numel() for w in method.parameters()) == count
    moving = sum(b.numel() for name, b in method.named_buffers() if "running" in name)
    assert round((count + moving) / 1e6, 2) == millions


def test_training_changes_every_parameter_and_the_state_holds_all_of_it():
    method = small(MCDropout.Config(descent=TWO_EPOCHS))
    before = {name: w.clone() for name, w in method.named_parameters()}
    ds.fit(method, points(40), points(20), engine=EVERY_EPOCH, progress=False)
    assert all((w != before[name]).any() for name, w in method.named_parameters())
    other = small(MCDropout.Config(), seed=1)
    other.load_state_dict(method.state_dict())
    seeded = (m.predict(inputs(), seed=0).probs for m in (method, other))
    assert torch.equal(*seeded)


@pytest.mark.parametrize(
    "settings", [{"rate": 1.0}, {"rate": -0.1}, {"num_samples": 0}, {"chunk": -1}]
)
def test_settings_that_mean_nothing_are_refused(settings):
    ((name, value),) = settings.items()
    with pytest.raises(ConfigError, match=f"{name}={value}: choose"):
        MCDropout.Config(**settings)


def test_an_encoder_that_is_one_layer_is_refused_with_a_remedy():
    with pytest.raises(ValueError, match=r"wrap it in nn\.Sequential"):
        MCDropout(nn.Linear(2, 4), 3)


def test_weights_of_erm_keep_their_names_but_for_the_layers_with_dropout():
    names = set(MCDropout(ResFFN(2, depth=1, width=4), 3).state_dict())
    assert "encoder.input.weight" in names
    assert "encoder.blocks.0.linear.layer.weight" in names
