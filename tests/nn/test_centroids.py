import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from density_softmax.nn.layers.centroids import CentroidKernels, KernelPenalty
from density_softmax.nn.lipschitz.penalty import PenaltyOptions

FEATURES, CLASSES, SIZE = 5, 3, 4


def kernels(momentum: float = 0.9, length_scale: float = 0.5) -> CentroidKernels:
    torch.manual_seed(0)
    return CentroidKernels(FEATURES, CLASSES, SIZE, length_scale, momentum, count=2.0)


def data(num_samples: int = 8, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_samples, FEATURES, generator=generator), torch.arange(num_samples) % 3


@torch.no_grad()
def test_log_kernels_are_minus_the_mean_squares_over_two_sigma_squared() -> None:
    layer, (z, _) = kernels(length_scale=0.3), data()
    for sample, row in zip(layer(z), z, strict=True):
        for c in range(CLASSES):
            residual = layer.weight[c] @ row - layer.centroids[c]
            expected = -(residual @ residual) / (2 * SIZE * 0.3**2)
            torch.testing.assert_close(sample[c], expected)


@torch.no_grad()
def test_a_kernel_is_one_at_its_centroid_and_falls_with_the_distance() -> None:
    layer, (z, _) = kernels(), data(1)
    layer.centroids.copy_(layer.embed(z)[0])
    torch.testing.assert_close(layer(z).exp(), torch.ones(1, CLASSES))
    direction = torch.randn(FEATURES, generator=torch.Generator().manual_seed(2))
    away = z + torch.linspace(0, 20, 30)[:, None] * direction
    assert (layer(away).diff(dim=0) < 0).all()


@torch.no_grad()
def test_centroids_are_the_quotients_of_two_moving_averages() -> None:
    layer = kernels(momentum=0.7)
    N, m = layer.counts.clone(), layer.centroids * layer.counts[:, None]
    for step in range(4):
        z, y = data(7, seed=step)
        y = y if step else y.clamp_max(1)  # the third class is not in the first batch
        for c in range(CLASSES):
            own = [layer.weight[c] @ row for row in z[y == c]]
            N[c] = 0.7 * N[c] + 0.3 * len(own)
            m[c] = 0.7 * m[c] + 0.3 * sum(own, torch.zeros(SIZE))
        layer.move(layer.sums(z, y))
        torch.testing.assert_close(layer.counts, N)
        torch.testing.assert_close(layer.centroids, m / N[:, None])


@torch.no_grad()
def test_the_sums_of_parts_are_those_of_the_whole() -> None:
    layer, (z, y) = kernels(), data()
    whole = layer.sums(z, y)
    for name, value in whole.items():
        parts = sum(layer.sums(z[i::3], y[i::3])[name] for i in range(3))
        torch.testing.assert_close(parts, value)


@torch.no_grad()
def test_the_centroid_of_a_class_without_samples_stays_finite_and_in_place() -> None:
    layer, (z, y) = kernels(momentum=0.1), data()
    before = layer.centroids[2].clone()
    for _ in range(100):
        layer.move(layer.sums(z, y.clamp_max(1)))
    assert layer.counts[2] == 0
    assert torch.equal(layer.centroids[2], before)


class LargestTensor(TorchDispatchMode):
    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.size = max(self.size, *sizes, 0)
        return result


def test_nothing_is_held_that_is_larger_than_batch_times_classes_times_size() -> None:
    layer = CentroidKernels(64, 10, 32, 0.1, 0.9, count=1.0)
    z = torch.randn(100, 64, requires_grad=True)  # more than features: the weights are smaller
    with LargestTensor() as largest:
        layer(z).sum().backward()
        layer.sums(z, torch.zeros(100, dtype=torch.long))
    assert largest.size == 100 * 10 * 32


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, FEATURES), kernels(0.9, 1.0))


def test_the_penalty_is_that_of_the_exact_gradient_of_the_summed_kernels() -> None:
    net, x = network(), torch.randn(6, 2, generator=torch.Generator().manual_seed(4))
    log_kernels, penalty = KernelPenalty(PenaltyOptions(weight=0.5))(net, x)
    torch.testing.assert_close(log_kernels, net(x))
    parameters = list(net.parameters())
    ours = torch.autograd.grad(penalty, parameters, allow_unused=True)
    expected = torch.zeros(())
    for row in x:
        row = row.clone().requires_grad_()
        total = net(row[None]).exp().sum()
        (gradient,) = torch.autograd.grad(total, row, create_graph=True)
        expected = expected + 0.5 * (gradient.norm() - 1) ** 2 / len(x)
    torch.testing.assert_close(penalty, expected)
    theirs = torch.autograd.grad(expected, parameters, allow_unused=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("distance", [0.0, 1e3])
def test_the_penalty_has_a_gradient_where_the_kernels_are_flat(distance: float) -> None:
    net = network()
    with torch.no_grad():
        net[-1].centroids.copy_(net[-1].embed(net[:-1](torch.zeros(1, 2)))[0] + distance)
    _, penalty = KernelPenalty(PenaltyOptions(weight=1.0))(net, torch.zeros(1, 2))
    penalty.backward()
    assert penalty.item() == pytest.approx(1.0, abs=1e-3)
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())
