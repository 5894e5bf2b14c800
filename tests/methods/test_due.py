import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist
from torch import Tensor, nn
from torch.distributions import Categorical

from density_softmax.config import ConfigError
from density_softmax.data import ArraySource
from density_softmax.engine import EngineConfig, fit
from density_softmax.methods import load
from density_softmax.methods.due import DUE
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.lipschitz.spectral import Spectral, SpectralBatchNorm
from density_softmax.training import Adam, Descent
from density_softmax.types import Batch

pytest.importorskip("gpytorch")

ENGINE = EngineConfig(accelerator="cpu", checkpoint_seconds=0.0)
DESCENT = Descent(epochs=2, batch_size=20, optimizer=Adam(lr=1e-2))


def due(encoder: nn.Module | None = None, **settings) -> DUE:
    torch.manual_seed(0)
    settings = {"descent": DESCENT} | settings
    return DUE.Config(**settings).build(encoder or ResFFN(2, depth=2, width=6), 3)


def clusters(num_samples: int = 60, seed: int = 0) -> ArraySource:
    """Three Gaussians, 3 apart."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(num_samples) % 3
    centers = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])
    return ArraySource(centers[y] + 0.3 * torch.randn(num_samples, 2, generator=generator), y)


def trained(method: DUE, **options) -> DUE:
    fit(method, clusters(), clusters(seed=1), engine=ENGINE, progress=False, **options)
    return method


# Five points with three labels, and others between and beyond them.
X = torch.tensor([[-2.0], [-1.0], [0.0], [1.0], [2.5]])
Y = torch.tensor([0, 0, 1, 2, 2])
X_TEST = torch.tensor([[-3.0], [-1.5], [-0.5], [0.4], [1.7], [6.0]])
LENGTH_SCALE, OUTPUT_SCALE = 1.2, 3.0


@pytest.fixture(scope="module")
def exact(num_draws: int = 100_000) -> tuple[np.ndarray, float]:
    """Predictive and log evidence of the process by importance sampling: prior draws of f at all
    points, weighted with the likelihood of the labels. Nothing is approximated but the integral.
    """
    rng = np.random.default_rng(0)
    x = np.concatenate([X, X_TEST])[:, 0]
    K = OUTPUT_SCALE * np.exp(-0.5 * (x[:, None] - x) ** 2 / LENGTH_SCALE**2)
    L = np.linalg.cholesky(K + 1e-9 * np.eye(len(x)))
    f = np.einsum("ij,bjc->bic", L, rng.standard_normal((num_draws, len(x), 3)))
    p = np.exp(f - f.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    weights = p[:, range(5), Y].prod(1)
    return (weights[:, None, None] * p[:, 5:]).mean(0) / weights.mean(), math.log(weights.mean())


@pytest.fixture(scope="module")
def tiny() -> DUE:
    """Inducing points = training points, kernels fixed, q optimised to the end."""
    torch.manual_seed(0)
    config = DUE.Config(num_inducing=5, num_train_samples=64, num_samples=4096)
    method = DUE(nn.Identity(), 3, config, example=X)
    process = method.process
    with torch.no_grad():
        process.inducing_points.copy_(X)
        process.model.covar_module.base_kernel.initialize(lengthscale=LENGTH_SCALE)
        process.model.covar_module.initialize(outputscale=OUTPUT_SCALE)
        method.num_data.fill_(len(X))
    q = [p for name, p in process.named_parameters() if "_variational_distribution" in name]
    optimizer = torch.optim.Adam(q, lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=400)
    for _ in range(400):
        optimizer.zero_grad()
        method.loss(Batch(X, Y)).backward()
        optimizer.step()
        schedule.step()
    return method


def test_the_prediction_is_that_of_exact_gaussian_process_classification(
    tiny: DUE, exact: tuple[np.ndarray, float]
) -> None:
    expected, _ = exact
    np.testing.assert_allclose(tiny.predict(X_TEST).probs, expected, atol=0.02)


@torch.no_grad()
def test_the_lower_bound_is_below_the_evidence_and_near_it(
    tiny: DUE, exact: tuple[np.ndarray, float]
) -> None:
    _, evidence = exact
    bound = -5 * np.mean([tiny.loss(Batch(X, Y)).item() for _ in range(200)])
    assert evidence - 0.3 < bound < evidence


def test_entropy_is_the_sum_of_both_uncertainties() -> None:
    probs, aleatoric, epistemic = due().predict(clusters().x)
    torch.testing.assert_close(Categorical(probs).entropy(), aleatoric + epistemic)


def test_predictions_average_draws_that_never_change() -> None:
    method, x = due(), clusters().x
    first = method.predict(x)
    torch.manual_seed(7)
    assert all(torch.equal(a, b) for a, b in zip(method.predict(x), first, strict=True))
    with torch.no_grad():
        mean, variance = method.process(method.features(x))
    probs = [(mean + variance.sqrt() * draw).softmax(-1) for draw in method.draws]
    torch.testing.assert_close(first.probs, torch.stack(probs).mean(0))


def test_few_draws_integrate_like_many() -> None:
    few, many = due(num_samples=32), due(num_samples=20_000)
    difference = few.predict(clusters().x).probs - many.predict(clusters().x).probs
    assert difference.abs().max() < 0.02


def test_a_trained_due_knows_its_classes_and_its_distance_from_them() -> None:
    method = trained(due(descent=Descent(epochs=50, batch_size=20, optimizer=Adam(lr=2e-2))))
    test = clusters(seed=2)
    near, far = method.predict(test.x), method.predict(test.x + 30)
    assert (near.probs.argmax(1) == test.y).all()
    assert far.epistemic.min() > near.epistemic.max()


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, z: Tensor) -> Tensor:
        return self.factor * z


@pytest.mark.parametrize("factor", [1e-2, 1e2])
def test_squeezed_or_stretched_features_do_not_leave_it_at_chance(factor: float) -> None:
    encoder = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), Scaled(factor))
    method = due(encoder, bound=None, descent=Descent(epochs=50, optimizer=Adam(lr=2e-2)))
    trained(method)
    test = clusters(seed=2)
    assert (method.predict(test.x).probs.argmax(1) == test.y).float().mean() > 0.95


def test_only_num_initial_samples_decide_where_the_process_begins() -> None:
    method = due(num_initial=30)
    seen: list[int] = []
    method.encoder.register_forward_hook(lambda module, args, z: seen.append(len(z)))
    stages = method.stages()
    object.__setattr__(method, "stages", lambda: stages[:2])
    trained(method)
    assert seen == [2, 30]  # two of them only measure how much a batch takes
    assert method.num_data == 60


def test_the_length_scale_is_the_mean_distance_of_features_as_training_sees_them() -> None:
    torch.manual_seed(0)
    encoder = WideResNet.Config(depth=10, width=1).build((3, 8, 8))
    x = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(1)) * 5
    method = DUE(encoder, 3, DUE.Config(num_initial=40), example=x[:2])
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    stages = method.stages()
    object.__setattr__(method, "stages", lambda: stages[:2])
    data = ArraySource(x, torch.arange(40) % 3)
    fit(method, data, data, engine=ENGINE, progress=False)
    for name, value in encoder.state_dict().items():
        # Spectral norms are measured anew whenever evaluation begins.
        assert name.endswith(".norm") or torch.equal(value, before[name]), name
    with torch.no_grad():
        evaluated = pdist(encoder(x)).mean()
        trained = pdist(encoder.train()(x)).mean()
    scale = method.process.length_scale.detach().flatten()
    np.testing.assert_allclose(scale, trained, rtol=1e-3)
    assert abs(evaluated / trained - 1) > 0.3  # an untrained running variance is another scale


def test_batch_norms_survive_a_lone_last_sample() -> None:
    encoder = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU())
    engine, source = replace(ENGINE, predict_batch_size=32), clusters(33)
    fit(due(encoder), source, source, engine=engine, progress=False)


def test_every_layer_and_batch_norm_is_bounded() -> None:
    encoder = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU())
    bounded = list(due(encoder, bound=0.5).encoder)
    assert isinstance(bounded[0], Spectral)
    assert isinstance(bounded[1], SpectralBatchNorm)
    assert bounded[0].bound == bounded[1].bound == 0.5


def test_each_stage_changes_only_what_is_its_own() -> None:
    own = [
        {"num_data"},
        {"inducing_points", "raw_lengthscale", "whitening"},
        {name.rpartition(".")[2] for name, _ in due().named_parameters()}
        | {"whitening", "v", "norm"},
    ]
    previous = due().eval().state_dict()
    for number, names in enumerate(own):
        part = due().eval()
        part.load_state_dict(previous)
        stage = part.stages()[number]
        object.__setattr__(part, "stages", lambda stage=stage: (stage,))
        after = trained(part).state_dict()
        changed = {name for name in after if not torch.equal(after[name], previous[name])}
        assert {name.rpartition(".")[2] for name in changed} == names
        previous = after


class Killed(Exception):  # noqa: N818
    """Stands for a kill at any moment."""


@pytest.mark.parametrize("calls", [0, 4])
def test_a_killed_run_resumes_to_the_same_weights(calls, tmp_path, monkeypatch) -> None:
    undisturbed, steps = trained(due()), iter(range(calls))
    step = torch.optim.Adam.step

    def counted(*args, **kwargs):
        if next(steps, None) is None:
            raise Killed
        return step(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", counted)
        with pytest.raises(Killed):
            trained(due(), directory=tmp_path)
    resumed = trained(due(), directory=tmp_path, resume=True).state_dict()
    for name, value in undisturbed.state_dict().items():
        assert torch.equal(resumed[name], value), name


def test_a_loaded_due_is_the_one_that_was_saved(tmp_path) -> None:
    method = trained(due())
    method.save(tmp_path / "due.safetensors")
    loaded = load(tmp_path / "due.safetensors", ResFFN(2, depth=2, width=6))
    for name, value in method.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    predictions = zip(loaded.predict(clusters().x), method.predict(clusters().x), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in predictions)


@pytest.mark.parametrize("name", ["num_inducing", "num_initial", "num_train_samples"])
def test_counts_that_count_nothing_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=0: choose 1 or more"):
        DUE.Config(**{name: 0})


class Served(nn.Module):
    def __init__(self, method: DUE) -> None:
        super().__init__()
        self.method = method

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.method(x))


def test_an_exported_due_predicts_the_same_without_a_factorisation() -> None:
    module = Served(trained(due()))
    batch = {"x": {0: torch.export.Dim("batch", min=1)}}
    program = torch.export.export(module, (clusters(5).x,), dynamic_shapes=batch)
    assert not [node for node in program.graph.nodes if "linalg" in str(node.target)]
    for ours, theirs in zip(program.module()(clusters().x), module(clusters().x), strict=True):
        torch.testing.assert_close(ours, theirs)
