import math

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from density_softmax.nn.densities import Density, FlowDensity, RadialDensity
from density_softmax.training import Estimate, Train
from density_softmax.types import Batch


def features(num_samples: int = 400, seed: int = 0) -> Tensor:
    """A bent cloud whose coordinates differ in place and size."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(num_samples, 2, generator=generator)
    z[:, 1] += 4 * z[:, 0].abs()
    return z * torch.tensor([3.0, 0.2]) + torch.tensor([5.0, -2.0])


def labels(z: Tensor) -> Tensor:
    """Two classes that overlap."""
    return (z[:, 0] + z[:, 0].roll(1) > 2 * z[:, 0].mean()).long()


def batches(z: Tensor, size: int, y: Tensor | None = None) -> list[Batch]:
    y = labels(z) if y is None else y
    return list(map(Batch, z.split(size), y.split(size)))


def estimate(stage: Estimate, parts: list[Batch]) -> None:
    """One pass, in any batches."""
    contributions = [stage.statistics(batch) for batch in parts]
    stage.finish({name: sum(c[name] for c in contributions) for name in contributions[0]})


def run(density: Density, z: Tensor, num_steps: int = 150, y: Tensor | None = None) -> None:
    """The density's own stages, by hand."""
    for stage in density.stages():
        if isinstance(stage, Estimate):
            estimate(stage, batches(z, 64, y))
        else:
            optimizer = torch.optim.Adam(stage.parameters, lr=1e-2)
            for _ in range(num_steps):
                optimizer.zero_grad()
                stage.loss(batches(z, len(z), y)[0]).backward()
                optimizer.step()


def fitted(standardize: bool, z: Tensor, num_steps: int = 150) -> FlowDensity:
    torch.manual_seed(0)
    density = FlowDensity(z.shape[1], FlowDensity.Config(standardize=standardize))
    run(density, z, num_steps)
    return density.requires_grad_(False)


@pytest.fixture(scope="module", params=[True, False], ids=["standardised", "raw"])
def density(request: pytest.FixtureRequest) -> FlowDensity:
    return fitted(request.param, features())


def test_fitted_flow_beats_the_best_gaussian_on_data_that_are_not_gaussian() -> None:
    z, fresh = features(), features(seed=1)
    gaussian = MultivariateNormal(z.mean(0), torch.cov(z.T)).log_prob(fresh).mean()
    assert fitted(True, z, num_steps=400).log_prob(fresh).mean() > gaussian


def test_standardiser_holds_mean_and_deviation_of_the_training_features() -> None:
    z = features()
    density = fitted(True, z, num_steps=0)
    torch.testing.assert_close(density.mean, z.mean(0))
    torch.testing.assert_close(density.scale, z.std(0, correction=0))


def test_standardiser_survives_features_far_from_zero() -> None:
    z = features() + torch.tensor([0.0, 1e4])
    density = fitted(True, z, num_steps=0)
    torch.testing.assert_close(density.scale, z.double().std(0, correction=0).float())


@pytest.mark.parametrize("value", [0.0, 7.3, -1e5, 1e-8])
def test_constant_features_keep_scale_one(value: float) -> None:
    z = torch.cat([features(), torch.full((400, 1), value)], 1)
    density = fitted(True, z, num_steps=0)
    assert density.scale[2] == 1
    assert density.log_prob(z).isfinite().all()


def test_raw_density_has_no_standardiser() -> None:
    density = fitted(False, features(), num_steps=0)
    assert torch.equal(density.mean, torch.zeros(2))
    assert torch.equal(density.scale, torch.ones(2))


def test_log_prob_is_change_of_variables_written_out(density: FlowDensity) -> None:
    z = features(7, seed=2)
    t, log_det = density.flow((z - density.mean) / density.scale)
    normal = -0.5 * t.square().sum(1) - math.log(2 * math.pi)
    torch.testing.assert_close(density.log_prob(z), normal + log_det - density.scale.log().sum())


def test_stages_are_moments_then_maximum_likelihood_on_features() -> None:
    density = FlowDensity(3)
    moments, descent = density.stages()
    assert isinstance(moments, Estimate)
    assert isinstance(descent, Train)
    assert (moments.name, moments.on, moments.split) == ("standardize", "features", "train")
    assert (descent.name, descent.on, descent.split) == ("density", "features", "train")
    assert set(descent.parameters) == set(density.flow.parameters())


def test_loss_is_the_mean_of_the_monitored_nll() -> None:
    density = FlowDensity(2, FlowDensity.Config(standardize=False))
    (descent,) = density.stages()
    assert isinstance(descent, Train)
    assert descent.monitor is not None
    (batch,) = batches(features(), 400)
    nll = descent.monitor(batch)["nll"]
    assert nll.shape == (400,)
    torch.testing.assert_close(descent.loss(batch), nll.mean())


def test_one_dimension_is_fitted() -> None:
    z = 2 + 3 * torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
    log_prob = fitted(True, z, num_steps=50).log_prob(z)
    normal = torch.distributions.Normal(z.mean(), z.std(correction=0)).log_prob(z[:, 0])
    torch.testing.assert_close(log_prob, normal, atol=0.05, rtol=0)


def test_gradients_are_clipped_by_default() -> None:
    assert FlowDensity.Config().descent.clip_norm is not None
    assert RadialDensity.Config().descent.clip_norm is not None
