import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import nn

from density_softmax.engine import fit
from density_softmax.methods.ddu import DDU
from density_softmax.methods.deterministic import Deterministic
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.resnet import CifarResNet, ResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.densities import GaussianMixtureDensity, TiedMixtureDensity
from density_softmax.nn.lipschitz.spectral import Spectral, SpectralBatchNorm
from density_softmax.training import Adam, Descent, Estimate, Train
from density_softmax.types import Batch

DESCENT = Descent(epochs=2, batch_size=32, optimizer=Adam(lr=1e-2))


def method(width: int = 4, **changes) -> DDU:
    torch.manual_seed(0)
    config = DDU.Config(descent=DESCENT, **({"bound": 0.65} | changes))
    return config.build(ResFFN(2, depth=2, width=width), 2)


def data(num_samples: int = 80, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(num_samples, 2, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0.3).long()


def trained(num_samples: int = 80, **changes) -> DDU:
    ddu = method(**changes)
    fit(ddu, data(num_samples), data(16, seed=1), progress=False)
    return ddu


def test_probabilities_and_entropy_are_those_of_erm_with_the_same_weights():
    ddu = trained()
    erm = Deterministic(ddu.encoder, 2)
    erm.head.load_state_dict(ddu.head.state_dict())
    x = data(seed=2)[0]
    assert torch.equal(ddu.predict(x).probs, erm.predict(x).probs)
    assert torch.equal(ddu.predict(x).aleatoric, erm.predict(x).aleatoric)


def test_epistemic_is_minus_the_log_density_of_the_mixture_of_class_gaussians():
    ddu = trained()
    x, y = data()
    with torch.no_grad():
        z = ddu.features(x).double().numpy()
        new = ddu.features(data(seed=2)[0]).double().numpy()
    density = 0.0
    for c in (0, 1):
        own = z[y.numpy() == c]
        gaussian = multivariate_normal(own.mean(0), np.cov(own.T, bias=True))
        density = density + len(own) / len(z) * gaussian.pdf(new)
    epistemic = ddu.predict(data(seed=2)[0]).epistemic.numpy()
    np.testing.assert_allclose(epistemic, -np.log(density), rtol=1e-3, atol=1e-3)


def test_fewer_samples_than_dimensions_give_a_density():
    ddu = trained(num_samples=12, width=32)
    near, far = ddu.predict(data(12)[0]).epistemic, ddu.predict(50 + data(12)[0]).epistemic
    assert near.isfinite().all()
    assert far.isfinite().all()
    assert near.max() < far.min()


def test_the_density_is_the_class_mixture_that_density_softmax_offers():
    assert isinstance(method().density, GaussianMixtureDensity)
    assert isinstance(method(tied=True).density, TiedMixtureDensity)


def test_gaussians_take_exactly_one_pass_over_features():
    train, estimate = method().stages()
    assert isinstance(train, Train)
    assert isinstance(estimate, Estimate)
    assert (estimate.on, estimate.reduce) == ("features", "sum")


def test_training_leaves_the_density_and_estimation_the_network_alone():
    ddu = method().eval()
    start = {name: value.clone() for name, value in ddu.state_dict().items()}
    train, estimate = ddu.stages()
    assert {id(p) for p in train.parameters} == {id(p) for p in ddu.parameters()}
    assert not list(ddu.density.parameters())
    with torch.no_grad():
        estimate.finish(estimate.statistics(Batch(ddu.features(data()[0]), data()[1])))
    changed = {n for n, value in ddu.state_dict().items() if not torch.equal(value, start[n])}
    assert {"density.center", "density.whitening", "density.log_weight"} <= changed
    assert all(name.startswith("density.") for name in changed)


def test_state_holds_all_that_is_learned_and_estimated():
    ddu = trained()
    other = ddu.config.build(ResFFN(2, depth=2, width=4), 2)
    other.load_state_dict(ddu.state_dict())
    for ours, theirs in zip(other.predict(data()[0]), ddu.predict(data()[0]), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("backbone", [WideResNet.Config(10, 1), CifarResNet.Config(8)])
def test_image_networks_get_leaky_activations_pooling_shortcuts_and_bounds(backbone, norms):
    torch.manual_seed(0)
    encoder = backbone.build((3, 8, 8))
    ddu = DDU.Config(norms=norms).build(encoder, 3, torch.randn(2, 3, 8, 8))
    kinds = {type(layer) for layer in ddu.encoder.modules()}
    assert nn.ReLU not in kinds
    assert nn.LeakyReLU in kinds
    convolutions = [m for m in ddu.encoder.modules() if isinstance(m, nn.Conv2d)]
    assert all(isinstance(m, Spectral) and m.kernel_size == (3, 3) for m in convolutions)
    assert (SpectralBatchNorm in kinds) == norms
    assert ddu.predict(torch.randn(2, 3, 8, 8)).probs.shape == (2, 3)


def test_too_many_covariances_are_refused_with_the_remedy():
    encoder = nn.Sequential(nn.Linear(2, ResNet.num_features))
    with pytest.raises(ValueError, match=r"1000 covariances of 2048 features .* tied=true"):
        DDU.Config(bound=None).build(encoder, 1000)
