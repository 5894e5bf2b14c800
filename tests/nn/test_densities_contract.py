"""What holds for every density, whatever its kind."""

import math

import pytest
import torch
from test_densities import batches, features, run
from torch import Tensor, nn

from density_softmax.config import from_dict, to_dict
from density_softmax.errors import UserError
from density_softmax.nn.densities import (
    Density,
    DensityConfig,
    FlowDensity,
    GaussianDensity,
    GaussianMixtureDensity,
    RadialDensity,
    ZukoDensity,
)
from density_softmax.training import Estimate

SMALL = ("transforms=1", "hidden_features=[8, 8]", "bins=4")
CONFIGS: dict[str, DensityConfig] = {
    "realnvp": FlowDensity.Config(),
    "radial": RadialDensity.Config(),
    "gaussian": GaussianDensity.Config(),
    "gaussian_mixture": GaussianMixtureDensity.Config(),
    "gaussian_mixture tied": GaussianMixtureDensity.Config(tied=True),
    "zuko": ZukoDensity.Config(arguments=SMALL),
    "realnvp raw": FlowDensity.Config(standardize=False),
    "radial raw": RadialDensity.Config(standardize=False),
}
ANY_UNITS = [name for name in CONFIGS if "raw" not in name]
CLOSED_FORM = [name for name in CONFIGS if "gaussian" in name]
EXPORTED = [name for name in CONFIGS if "zuko" not in name]
WITH_LEMMA_1 = [name for name in CONFIGS if "gaussian" in name or "radial" in name]


def fitted(name: str, z: Tensor, num_steps: int = 100, num_classes: int = 2) -> Density:
    torch.manual_seed(0)
    density = CONFIGS[name].build(z.shape[1], num_classes)
    run(density, z, num_steps)
    return density.requires_grad_(False)


FITTED: dict[str, Density] = {}


@pytest.fixture(params=CONFIGS)
def density(request: pytest.FixtureRequest) -> Density:
    if request.param not in FITTED:
        FITTED[request.param] = fitted(request.param, features())
    return FITTED[request.param]


def integral(density: Density, center: list[float], reach: list[float], points: int) -> float:
    axes = [torch.linspace(c - r, c + r, points) for c, r in zip(center, reach, strict=True)]
    grid = torch.cartesian_prod(*axes).reshape(-1, len(axes))
    cell = math.prod((axis[1] - axis[0]).item() for axis in axes)
    total = sum(density.log_prob(part).double().exp().sum().item() for part in grid.split(2**16))
    return total * cell


def test_every_kind_is_tested_here() -> None:
    assert {config.kind for config in CONFIGS.values()} == set(DensityConfig.members)


def test_density_integrates_to_one(density: Density) -> None:
    assert integral(density, [5.0, -1.0], [60.0, 12.0], 801) == pytest.approx(1, abs=2e-3)


def test_fitting_raises_the_likelihood(density: Density) -> None:
    unfitted = FlowDensity(2, FlowDensity.Config(standardize=False))
    fresh = features(seed=1)
    with torch.no_grad():
        assert density.log_prob(fresh).mean() > unfitted.log_prob(fresh).mean() + 1


def test_log_prob_of_features_a_thousand_times_too_large_is_finite(density: Density) -> None:
    assert density.log_prob(1000 * features()).isfinite().all()


def test_mixed_precision_does_not_touch_the_log_density(density: Density) -> None:
    z = features()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = density.log_prob(z)
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, density.log_prob(z))


def test_half_precision_features_give_float32(density: Density) -> None:
    z = features().bfloat16()
    log_prob = density.log_prob(z)
    assert log_prob.dtype == torch.float32
    assert torch.equal(log_prob, density.log_prob(z.float()))


@pytest.mark.parametrize("name", CONFIGS)
def test_constants_and_weights_travel_in_the_state_dict(name: str) -> None:
    density = fitted(name, features(), num_steps=2)
    other = CONFIGS[name].build(2, 2)
    other.load_state_dict(density.state_dict())
    with torch.no_grad():
        assert torch.equal(other.log_prob(features()), density.log_prob(features()))


@pytest.mark.parametrize("name", CONFIGS)
def test_config_survives_text(name: str) -> None:
    assert from_dict(DensityConfig, to_dict(CONFIGS[name])) == CONFIGS[name]


@pytest.mark.parametrize("name", ANY_UNITS)
def test_one_dimension_is_fitted(name: str) -> None:
    z = 2 + 3 * torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
    density = fitted(name, z, num_steps=250)
    assert integral(density, [2.0], [80.0], 8001) == pytest.approx(1, abs=2e-3)
    normal = torch.distributions.Normal(z.mean(), z.std(correction=0)).log_prob(z[:, 0])
    assert density.log_prob(z).mean() == pytest.approx(normal.mean().item(), abs=0.1)


@pytest.mark.parametrize("name", ANY_UNITS)
def test_an_odd_dimension_is_fitted(name: str) -> None:
    z = features() @ torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 3.0]])
    z[:, 2] += torch.randn(400, generator=torch.Generator().manual_seed(2))
    unit = integral(fitted(name, z, num_steps=30), [5.0, -1.0, 0.0], [50.0, 10.0, 40.0], 81)
    assert unit == pytest.approx(1, abs=2e-2)


@pytest.mark.parametrize("name", CLOSED_FORM)
def test_a_density_without_data_is_the_standard_normal(name: str) -> None:
    z = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    normal = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(1)
    torch.testing.assert_close(CONFIGS[name].build(3, 4).log_prob(z), normal)


@pytest.mark.parametrize("name", WITH_LEMMA_1)
@pytest.mark.parametrize("num_features", [1, 2, 17])
def test_density_vanishes_far_away_in_every_direction(name: str, num_features: int) -> None:
    generator = torch.Generator().manual_seed(5)
    z = torch.randn(100, num_features, generator=generator).exp()
    density = fitted(name, z, num_steps=30)
    axes = torch.eye(num_features)
    directions = torch.cat([axes, -axes, torch.randn(50, num_features, generator=generator)])
    directions = directions / directions.norm(dim=1, keepdim=True)
    distances = torch.tensor([1e2, 1e3, 1e4, 1e5, 1e6])
    rays = distances[:, None, None] * directions
    log_prob = density.log_prob(rays.flatten(0, 1)).view(len(distances), -1)
    assert (log_prob.diff(dim=0) < 0).all()
    # As fast as a Gaussian: a hundredfold at every tenfold distance.
    assert (log_prob[-1] < 50 * log_prob[-2]).all()
    assert (log_prob[-1] < -1e6).all()


class LogProb(nn.Module):
    def __init__(self, density: Density) -> None:
        super().__init__()
        self.density = density

    def forward(self, z: Tensor) -> Tensor:
        return self.density.log_prob(z)


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_log_prob_accepts_any_batch_size(name: str) -> None:
    module = LogProb(fitted(name, features(), num_steps=3))
    batch = {"z": {0: torch.export.Dim("batch", min=1)}}
    program = torch.export.export(module, (features(5),), dynamic_shapes=batch)
    assert not [node for node in program.graph.nodes if "linalg_cholesky" in str(node.target)]
    exported = program.module()
    for num_samples in (1, 8, 33):
        z = features(num_samples, seed=3)
        torch.testing.assert_close(exported(z), module(z))


def post_relu(num_samples: int, num_features: int, seed: int = 0) -> Tensor:
    """Like the last features of a ResNet: most are zero, some always, tails are heavy."""
    generator = torch.Generator().manual_seed(seed)
    factors = torch.randn(16, num_features, generator=torch.Generator().manual_seed(9))
    z = torch.randn(num_samples, 16, generator=generator) @ factors / 3 - 0.7
    z = z + 0.3 * torch.randn(num_samples, num_features, generator=generator)
    z = z * torch.rand(num_samples, 1, generator=generator).clamp_min(0.01) ** -0.7
    z[:, : num_features // 20] = 0
    return z.relu()


@pytest.mark.parametrize("name", ANY_UNITS)
def test_post_relu_features_of_2048_dimensions_are_fitted(name: str) -> None:
    z = post_relu(512, 2048)
    assert (z == 0).float().mean() > 0.5
    torch.manual_seed(0)
    density = CONFIGS[name].build(2048, 2)
    y = torch.arange(512) % 2
    start = density.log_prob(z[:64]).mean().item()
    run(density, z, num_steps=2 if "zuko" in name else 10, y=y)
    with torch.no_grad():
        seen = [density.log_prob(x) for x in (z[:64], post_relu(64, 2048, 1), 1000 * z[:64])]
    assert all(parameter.isfinite().all() for parameter in density.parameters())
    assert all(log_prob.isfinite().all() for log_prob in seen)
    assert seen[0].mean() > start
    assert seen[2].max() < seen[0].min()


CHECKED = [*ANY_UNITS, *(name for name in CLOSED_FORM if "raw" in name)]


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize(
    ("z", "message"),
    [
        (torch.ones(1, 2), "at least two"),
        (torch.tensor([[3.0, 0.1]]).repeat(50, 1), "all 2 features are constant"),
        (torch.tensor([[1.0, 2.0], [math.nan, 1.0]]), "1 of 2 features are NaN or infinite"),
        (torch.tensor([[1.0, 2.0], [math.inf, math.inf]]), "2 of 2 features are NaN"),
    ],
    ids=["one sample", "constant", "nan", "infinite"],
)
def test_data_that_support_no_density_are_named(name: str, z: Tensor, message: str) -> None:
    (stage, *_) = CONFIGS[name].build(2, 2).stages()
    assert isinstance(stage, Estimate)
    y = torch.arange(len(z)) % 2
    contributions = [stage.statistics(batch) for batch in batches(z, 7, y)]
    total = {key: sum(c[key] for c in contributions) for key in contributions[0]}
    with pytest.raises(UserError, match=message):
        stage.finish(total)
