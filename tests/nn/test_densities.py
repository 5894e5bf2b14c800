import math

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from density_softmax.nn.densities import Density, FlowDensity
from density_softmax.stages import Estimate, Train
from density_softmax.types import Batch


def features(num_samples: int = 400, seed: int = 0) -> Tensor:
    """A bent cloud whose coordinates differ in place and size."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(num_samples, 2, generator=generator)
    z[:, 1] += 4 * z[:, 0].abs()
    return z * torch.tensor([3.0, 0.2]) + torch.tensor([5.0, -2.0])


def batches(z: Tensor, size: int) -> list[Batch]:
    return [Batch(part, torch.zeros(len(part), dtype=torch.long)) for part in z.split(size)]


def run(density: Density, z: Tensor, num_steps: int = 150) -> None:
    """The density's own stages, by hand."""
    for stage in density.stages():
        if isinstance(stage, Estimate):
            contributions = [stage.statistics(batch) for batch in batches(z, 64)]
            stage.finish({name: sum(c[name] for c in contributions) for name in contributions[0]})
        else:
            optimizer = torch.optim.Adam(stage.parameters, lr=1e-2)
            for _ in range(num_steps):
                optimizer.zero_grad()
                stage.loss(batches(z, len(z))[0]).backward()
                optimizer.step()


def fitted(standardize: bool, z: Tensor, num_steps: int = 150) -> FlowDensity:
    torch.manual_seed(0)
    density = FlowDensity(z.shape[1], FlowDensity.Config(standardize=standardize))
    run(density, z, num_steps)
    return density.requires_grad_(False)


@pytest.fixture(scope="module", params=[True, False], ids=["standardised", "raw"])
def density(request: pytest.FixtureRequest) -> FlowDensity:
    return fitted(request.param, features())


def test_density_integrates_to_one(density: FlowDensity) -> None:
    center, reach = torch.tensor([5.0, -1.0]), torch.tensor([60.0, 12.0])
    axes = [torch.linspace(-1, 1, 801) * r + c for r, c in zip(reach, center, strict=True)]
    grid = torch.cartesian_prod(*axes)
    cell = math.prod((axis[1] - axis[0]).item() for axis in axes)
    total = density.log_prob(grid).double().exp().sum().item() * cell
    assert total == pytest.approx(1, abs=2e-3)


def test_fitting_raises_the_likelihood(density: FlowDensity) -> None:
    unfitted = FlowDensity(2, FlowDensity.Config(standardize=False))
    fresh = features(seed=1)
    with torch.no_grad():
        assert density.log_prob(fresh).mean() > unfitted.log_prob(fresh).mean() + 1


def test_fitted_flow_beats_the_best_gaussian_on_data_that_are_not_gaussian() -> None:
    z, fresh = features(), features(seed=1)
    gaussian = MultivariateNormal(z.mean(0), torch.cov(z.T)).log_prob(fresh).mean()
    assert fitted(True, z, num_steps=400).log_prob(fresh).mean() > gaussian


def test_log_prob_of_features_a_thousand_times_too_large_is_finite(density: FlowDensity) -> None:
    assert density.log_prob(1000 * features()).isfinite().all()


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


def test_mixed_precision_does_not_touch_the_log_density(density: FlowDensity) -> None:
    z = features()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = density.log_prob(z)
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, density.log_prob(z))


def test_half_precision_features_give_float32(density: FlowDensity) -> None:
    z = features().bfloat16()
    log_prob = density.log_prob(z)
    assert log_prob.dtype == torch.float32
    assert torch.equal(log_prob, density.log_prob(z.float()))


def test_constants_and_weights_travel_in_the_state_dict(density: FlowDensity) -> None:
    other = FlowDensity(2)
    other.load_state_dict(density.state_dict())
    with torch.no_grad():
        assert torch.equal(other.log_prob(features()), density.log_prob(features()))


def test_one_dimension_is_fitted() -> None:
    z = 2 + 3 * torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
    log_prob = fitted(True, z, num_steps=50).log_prob(z)
    normal = torch.distributions.Normal(z.mean(), z.std(correction=0)).log_prob(z[:, 0])
    torch.testing.assert_close(log_prob, normal, atol=0.05, rtol=0)
