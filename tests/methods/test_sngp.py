import math

import pytest
import torch
from torch import nn

from density_softmax.engine import EngineConfig, fit
from density_softmax.methods.sngp import SNGP
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.layers.processes import RandomFeatureProcess
from density_softmax.nn.lipschitz.spectral import Spectral
from density_softmax.training import Adam, Descent
from density_softmax.types import Batch

PROCESS = RandomFeatureProcess.Config(
    num_features=32, num_inputs=None, normalize=False, length_scale=1.0, scaled=True
)
DESCENT = Descent(epochs=1, batch_size=32, optimizer=Adam(lr=1e-2))


def method(**changes) -> SNGP:
    torch.manual_seed(0)
    settings = {"bound": 0.9, "process": PROCESS, "mean_field_factor": math.pi / 8} | changes
    return SNGP(ResFFN(2, depth=2, width=8), 3, SNGP.Config(descent=DESCENT, **settings))


def data(num_samples: int = 64, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(num_samples, 2, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def trained(batch_size: int = 16, **changes) -> SNGP:
    sngp = method(**changes)
    engine = EngineConfig(accelerator="cpu", predict_batch_size=batch_size)
    fit(sngp, data(), data(16, seed=1), engine=engine, progress=False)
    return sngp


def test_logits_are_divided_by_the_root_of_one_plus_factor_times_variance():
    sngp = trained(mean_field_factor=7.5)
    x = data(seed=2)[0]
    with torch.no_grad():
        logits, variance = sngp.process(sngp.features(x))
    probs, aleatoric, epistemic = sngp.predict(x)
    scale = 1 / math.sqrt(1 + 7.5 * variance[3].item())
    torch.testing.assert_close(probs[3], (scale * logits[3]).softmax(-1))
    torch.testing.assert_close(aleatoric, torch.distributions.Categorical(logits=logits).entropy())
    torch.testing.assert_close(epistemic, variance)


def test_without_factor_and_bound_it_is_the_softmax_of_its_logits():
    sngp = method(mean_field_factor=0.0, bound=None)
    assert not any(isinstance(layer, Spectral) for layer in sngp.modules())
    x = data()[0]
    logits = sngp.process.weights(sngp.process.random_features(sngp.encoder(x)))
    torch.testing.assert_close(sngp.predict(x).probs, logits.softmax(-1).detach())


def test_a_prediction_does_not_depend_on_the_batch_it_is_in():
    sngp, x = trained(), data(seed=2)[0]
    one_by_one = torch.cat([sngp.predict(x[i : i + 1]).epistemic for i in range(5)])
    torch.testing.assert_close(sngp.predict(x).epistemic[:5], one_by_one)


def test_covariance_is_exact_over_one_pass_in_batches_of_any_size():
    sngp, other = trained(batch_size=16), trained(batch_size=7)
    torch.testing.assert_close(sngp.process.whitening, other.process.whitening)
    with torch.no_grad():
        phi = sngp.process.random_features(sngp.features(data()[0])).double()
    expected = torch.linalg.inv(torch.eye(32).double() + phi.T @ phi)
    covariance = sngp.process.whitening.T @ sngp.process.whitening
    torch.testing.assert_close(covariance.double(), expected, rtol=1e-4, atol=1e-6)


def test_far_from_the_data_it_knows_less_and_says_so():
    sngp = trained(mean_field_factor=20.0)
    near, far = data(seed=2)[0], 30 + data(seed=3)[0]
    assert sngp.predict(near).epistemic.median() < 0.5 * sngp.predict(far).epistemic.median()
    plain = sngp.process.logits(sngp.features(far)).softmax(-1).amax(-1)
    assert (sngp.predict(far).probs.amax(-1) < plain).all()


def changed(sngp: SNGP, start: dict[str, torch.Tensor]) -> set[str]:
    return {
        name for name, value in sngp.state_dict().items() if not torch.equal(value, start[name])
    }


def test_estimation_changes_the_covariance_alone():
    sngp = method().eval()
    start = {name: value.clone() for name, value in sngp.state_dict().items()}
    _, estimate = sngp.stages()
    assert (estimate.name, estimate.on) == ("precision", "features")
    with torch.no_grad():
        estimate.finish(estimate.statistics(Batch(sngp.features(data()[0]), data()[1])))
    assert changed(sngp, start) == {"process.whitening"}


def test_training_changes_all_but_what_was_drawn():
    sngp = method()
    start = {name: value.clone() for name, value in sngp.state_dict().items()}
    assert {id(p) for p in sngp.stages()[0].parameters} == {id(p) for p in sngp.parameters()}
    fit(sngp, data(), data(16, seed=1), progress=False)
    assert set(start) - changed(sngp, start) == {"process.frequencies", "process.phase"}


def test_state_holds_all_that_is_learned_drawn_and_estimated():
    sngp = trained()
    torch.manual_seed(7)
    other = SNGP(ResFFN(2, depth=2, width=8), 3, sngp.config)
    other.load_state_dict(sngp.state_dict())
    for ours, theirs in zip(other.predict(data()[0]), sngp.predict(data()[0]), strict=True):
        assert torch.equal(ours, theirs)


def test_l2_holds_for_the_encoder_and_not_for_the_process():
    x, y = data()
    sngp, plain = method(l2=0.1), method()
    sngp.eval(), plain.eval()
    difference = sngp.loss(Batch(x, y)) - plain.loss(Batch(x, y))
    squares = sum(p.square().sum() for p in sngp.encoder.parameters())
    torch.testing.assert_close(difference, 0.1 * squares)


def test_every_layer_of_a_convolutional_encoder_is_constrained():
    torch.manual_seed(0)
    encoder = WideResNet.Config(10, 1).build((3, 8, 8))
    sngp = SNGP.Config().build(encoder, 4, torch.randn(2, 3, 8, 8))
    layers = [m for m in sngp.encoder.modules() if isinstance(m, nn.Conv2d)]
    assert all(isinstance(layer, Spectral) and layer.bound == 6 for layer in layers)
    assert sngp.predict(torch.randn(2, 3, 8, 8)).probs.shape == (2, 4)


def test_a_factor_below_zero_is_refused():
    with pytest.raises(ValueError, match=r"mean_field_factor=-1.*choose 0"):
        SNGP.Config(mean_field_factor=-1.0)
