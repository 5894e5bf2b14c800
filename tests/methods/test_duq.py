import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.config import ConfigError
from density_softmax.data import ArraySource
from density_softmax.engine import EngineConfig, fit
from density_softmax.methods.duq import DUQ
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.lipschitz.penalty import PenaltyOptions
from density_softmax.training import SGD, Adam, Descent
from density_softmax.types import Batch

ENGINE = EngineConfig(accelerator="cpu")


def duq(encoder: nn.Module | None = None, **settings) -> DUQ:
    torch.manual_seed(0)
    settings = {"length_scale": 1.0, "momentum": 0.9, "centroid_size": 4} | settings
    return DUQ.Config(**settings).build(encoder or ResFFN(2, depth=2, width=6), 3)


def clusters(num_samples: int = 60, seed: int = 0) -> ArraySource:
    """Three Gaussians, 3 apart."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(num_samples) % 3
    centers = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])
    return ArraySource(centers[y] + 0.3 * torch.randn(num_samples, 2, generator=generator), y)


def one_step(**changes) -> Descent:
    return Descent(**{"epochs": 1, "batch_size": 60, "optimizer": SGD(lr=0.1)} | changes)


def trained(method: DUQ, data: ArraySource | None = None) -> DUQ:
    data = data or clusters()
    fit(method, data, clusters(seed=1), engine=ENGINE, progress=False)
    return method


@torch.no_grad()
def test_probabilities_are_kernels_over_their_sum() -> None:
    method, x = duq(), clusters().x
    kernels = method.log_kernels(x).exp()
    assert kernels.min() > 1e-3  # where the floor is negligible
    expected = kernels / kernels.sum(1, keepdim=True)
    torch.testing.assert_close(method.predict(x).probs, expected, rtol=1e-4, atol=0)


def test_uncertainties_are_entropy_and_distance_to_the_nearest_centroid() -> None:
    method, x = duq(), clusters().x
    probs, aleatoric, epistemic = method.predict(x)
    torch.testing.assert_close(aleatoric, torch.distributions.Categorical(probs).entropy())
    with torch.no_grad():
        z = method.features(x)
        residuals = torch.einsum("cnf,bf->bcn", method.kernels.weight, z) - method.kernels.centroids
    distances = residuals.square().sum(-1) / (2 * 4 * 1.0**2)
    torch.testing.assert_close(epistemic, distances.amin(1))


def test_far_from_all_centroids_the_prediction_is_uniform_and_distances_keep_their_order() -> None:
    method = duq(length_scale=0.1)
    direction = torch.tensor([[0.6, -0.8]])
    x = 10.0 ** torch.arange(3.0, 9.0)[:, None] * direction
    probs, aleatoric, epistemic = method.predict(x)
    assert (method.log_kernels(x).exp() == 0).all()
    torch.testing.assert_close(probs, torch.full((6, 3), 1 / 3))
    torch.testing.assert_close(aleatoric, torch.full((6,), math.log(3)))
    assert epistemic.isfinite().all()
    assert (epistemic.diff() > 0).all()


def test_the_loss_is_the_binary_cross_entropy_of_all_kernels() -> None:
    method, (x, y) = duq(penalty=PenaltyOptions(weight=0.0)), (clusters().x, clusters().y)
    kernels = method.log_kernels(x).exp()
    expected = F.binary_cross_entropy(kernels, F.one_hot(y, 3).float())
    torch.testing.assert_close(method.loss(Batch(x, y)), expected)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e6])
def test_the_loss_and_its_gradient_are_finite_at_and_far_from_the_centroids(scale: float) -> None:
    method = duq()
    with torch.no_grad():  # at the origin all kernels are 1
        method.kernels.centroids.copy_(method.kernels.embed(method.features(torch.zeros(1, 2)))[0])
    loss = method.loss(Batch(scale * clusters().x, clusters().y))
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in method.parameters())


def test_centroids_move_after_the_step_by_features_in_evaluation_mode() -> None:
    encoder = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU())
    method = duq(encoder, momentum=0.6, descent=one_step())
    old, counts = method.kernels.centroids.clone(), method.kernels.counts.clone()
    trained(method)  # one step, so the features now are those that moved the centroids
    x, y = clusters().x, clusters().y
    with torch.no_grad():
        embedded = method.kernels.embed(method.features(x)).numpy()
    assert not method.training
    n = np.bincount(y, minlength=3)
    N = 0.6 * counts.numpy() + 0.4 * n
    sums = np.stack([embedded[y.numpy() == c, c].sum(0) for c in range(3)])
    m = 0.6 * counts.numpy()[:, None] * old.numpy() + 0.4 * sums
    np.testing.assert_allclose(method.kernels.counts, N, rtol=1e-6)
    np.testing.assert_allclose(method.kernels.centroids, m / N[:, None], rtol=1e-4, atol=1e-6)


def test_a_batch_in_parts_moves_the_centroids_like_the_whole_batch() -> None:
    whole = trained(duq(descent=one_step(epochs=3)))
    parts = trained(duq(descent=one_step(epochs=3, accumulate=4)))
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_training_changes_all_weights_and_the_centroids_and_nothing_else() -> None:
    method = duq(penalty=PenaltyOptions(weight=0.5, every=2), descent=one_step(batch_size=20))
    before = {name: value.clone() for name, value in method.state_dict().items()}
    trained(method)
    after = method.state_dict()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == set(dict(method.named_parameters())) | {
        "kernels.centroids",
        "kernels.counts",
        "penalty.step",
    }
    assert method.penalty.step == 3


def test_a_trained_duq_knows_its_classes_and_its_distance_from_them() -> None:
    method = duq(descent=Descent(epochs=40, batch_size=20, optimizer=Adam(lr=1e-2)))
    trained(method)
    test = clusters(seed=2)
    near, far = method.predict(test.x), method.predict(test.x + 6)
    assert (near.probs.argmax(1) == test.y).all()
    assert far.epistemic.min() > near.epistemic.max()


@pytest.mark.parametrize(
    ("num_classes", "size", "millions"),
    # The paper's table has 40.61 and 77.58: centroids as wide as the 640 features explain both.
    [(10, None, 40.57), (100, None, 77.43), (100, 64, 40.57)],
)
def test_parameters_are_the_encoder_and_a_matrix_per_class(
    num_classes: int, size: int | None, millions: float
) -> None:
    with torch.device("meta"):
        encoder = WideResNet.Config(depth=28, width=10).build((3, 32, 32))
        method = DUQ(encoder, num_classes, DUQ.Config(centroid_size=size))
    count = sum(parameter.numel() for parameter in method.parameters())
    encoded = sum(parameter.numel() for parameter in encoder.parameters())
    assert count == encoded + num_classes * (size or 640) * 640
    assert count / 1e6 == pytest.approx(millions, abs=0.005)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length_scale": 0.0}, "length_scale=0.0: choose more than 0"),
        ({"momentum": 1.0}, "momentum=1.0: choose between 0 and 1"),
        ({"floor": 0.0}, "floor=0.0: choose between 0 and 1"),
        ({"centroid_size": 0}, "centroid_size=0: choose 1 or more, or null"),
    ],
)
def test_settings_without_a_meaning_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DUQ.Config(**changes)


class Served(nn.Module):
    def __init__(self, method: DUQ) -> None:
        super().__init__()
        self.method = method

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.method(x))


def test_an_exported_duq_predicts_the_same_for_any_batch_size() -> None:
    module = Served(trained(duq(descent=one_step())))
    batch = {"x": {0: torch.export.Dim("batch", min=1)}}
    exported = torch.export.export(module, (clusters(5).x,), dynamic_shapes=batch).module()
    for ours, theirs in zip(exported(clusters().x), module(clusters().x), strict=True):
        torch.testing.assert_close(ours, theirs)
