"""Every density inside Density-Softmax: fitted by the engine, saved, loaded, continued."""

from pathlib import Path

import pytest
import torch
from test_densities_contract import ANY_UNITS, CONFIGS
from torch import nn

from density_softmax.data import ArraySource
from density_softmax.engine import EngineConfig, fit
from density_softmax.methods import load
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.densities import DensityConfig, GaussianMixtureDensity
from density_softmax.nn.lipschitz.penalty import NoPenalty
from density_softmax.training import Adam, Descent

ENGINE = EngineConfig(accelerator="cpu", predict_batch_size=16)
DENSITIES: dict[str, DensityConfig] = {name: CONFIGS[name] for name in ANY_UNITS}


def encoder() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 5), nn.ReLU())


def points(num_samples: int, seed: int) -> ArraySource:
    x = torch.randn(num_samples, 2, generator=torch.Generator().manual_seed(seed))
    return ArraySource(x, (x[:, 0] > 0).long() + (x[:, 1] > 1).long())


def trained(density: DensityConfig, **options: object) -> DensitySoftmax:
    torch.manual_seed(0)
    config = DensitySoftmax.Config(
        density=density,
        representation=Descent(2, 32, Adam(lr=1e-2)),
        penalty=NoPenalty.Config(),
        head=None,
    )
    method = DensitySoftmax(encoder(), 3, config)
    fit(method, points(90, 1), points(60, 2), engine=ENGINE, progress=False, **options)
    return method


@pytest.mark.parametrize("name", DENSITIES)
def test_far_inputs_are_less_known_than_all_training_inputs(name: str) -> None:
    method = trained(DENSITIES[name])
    near, far = method.predict(points(90, 1).x), method.predict(1e4 * points(90, 1).x)
    assert all(part.isfinite().all() for part in (*near, *far))
    assert far.epistemic.median() > near.epistemic.max()


@pytest.mark.parametrize("name", DENSITIES)
def test_saved_method_predicts_as_before(name: str, tmp_path: Path) -> None:
    method = trained(DENSITIES[name])
    method.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", encoder())
    x = points(20, 3).x
    assert all(map(torch.equal, method.predict(x), again.predict(x)))


@pytest.mark.parametrize("tied", [True, False])
def test_a_finished_run_is_loaded_with_its_estimates(tied: bool, tmp_path: Path) -> None:
    config = GaussianMixtureDensity.Config(tied=tied)
    method = trained(config, directory=tmp_path)
    again = trained(config, directory=tmp_path, resume=True)
    x = points(20, 3).x
    assert all(map(torch.equal, method.predict(x), again.predict(x)))
