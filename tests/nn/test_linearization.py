import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torch.nn import functional as F

from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.lipschitz.linearization import Linearization, left_singular_vectors

Builder = Callable[[], nn.Module]

CONVOLUTIONS: dict[str, tuple[Builder, tuple[int, ...]]] = {
    "plain": (lambda: nn.Conv2d(2, 3, 3, padding=1, bias=False), (2, 4, 5)),
    "strided": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=(1, 0)), (2, 6, 5)),
    "dilated": (lambda: nn.Conv2d(2, 3, 2, dilation=2), (2, 4, 5)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), (4, 4, 4)),
    "padding by name": (lambda: nn.Conv2d(2, 3, 3, padding="same"), (2, 4, 4)),
    "one dimension": (lambda: nn.Conv1d(2, 3, 3, stride=2), (2, 6)),
    "three dimensions": (lambda: nn.Conv3d(1, 2, 2), (1, 3, 3, 3)),
}


def flat(encoder: nn.Module) -> nn.Module:
    """With a nonlinearity, so that second derivatives depend on x, and feature vectors."""
    return nn.Sequential(encoder, nn.Tanh(), nn.Flatten()).double()


def make(case: tuple[Builder, tuple[int, ...]]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, shape = case
    return flat(build()), torch.randn(3, *shape, dtype=torch.float64)


def jacobians(encoder: nn.Module, x: Tensor, create_graph: bool = False) -> Tensor:
    """(batch, features, inputs), one sample at a time."""
    parts = [jacobian(lambda s: encoder(s[None])[0], row, create_graph=create_graph) for row in x]
    return torch.stack(parts).flatten(2)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_products_are_those_of_the_whole_jacobian(name: str) -> None:
    encoder, x = make(CONVOLUTIONS[name])
    f, J = Linearization(encoder, x), jacobians(encoder, x)
    u, v = torch.randn_like(f.z), torch.randn_like(x)
    torch.testing.assert_close(f.z, encoder(x))
    torch.testing.assert_close(f.pull(u).flatten(1), torch.einsum("bji,bj->bi", J, u))
    torch.testing.assert_close(f.push(v), torch.einsum("bji,bi->bj", J, v.flatten(1)))


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_products_have_the_gradients_of_the_whole_jacobian(name: str) -> None:
    encoder, x = make(CONVOLUTIONS[name])
    f, J = Linearization(encoder, x), jacobians(encoder, x, create_graph=True)
    u, v = torch.randn_like(f.z), torch.randn_like(x)
    pairs = [
        (f.pull(u, create_graph=True).flatten(1), torch.einsum("bji,bj->bi", J, u)),
        (f.push(v, create_graph=True), torch.einsum("bji,bi->bj", J, v.flatten(1))),
    ]
    for ours, theirs in pairs:
        gradients = [
            torch.autograd.grad(product.pow(3).sum(), encoder.parameters(), retain_graph=True)
            for product in (ours, theirs)
        ]
        torch.testing.assert_close(*gradients)


def normalised() -> nn.Module:
    norms = nn.BatchNorm2d(4), nn.BatchNorm2d(3, affine=False)
    convolutions = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 2)
    return nn.Sequential(convolutions[0], norms[0], nn.Tanh(), convolutions[1], norms[1])


def with_statistics_of(encoder: nn.Module, x: Tensor) -> nn.Module:
    """The encoder in evaluation mode, whose running statistics are those of the batch x."""
    frozen = copy.deepcopy(encoder)
    for module in frozen.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.register_forward_pre_hook(_take_statistics)
    frozen(x)
    return frozen.eval()


def _take_statistics(module: nn.Module, args: tuple[Tensor]) -> None:
    if module.training:
        module.momentum = 0.0
        dims = [0, *range(2, args[0].ndim)]
        module.running_mean = args[0].mean(dims).detach()
        module.running_var = args[0].var(dims, unbiased=False).detach()


def test_statistics_of_a_batch_norm_in_training_count_as_constants() -> None:
    encoder, x = make((normalised, (2, 5, 5)))
    J = jacobians(with_statistics_of(encoder, x), x)
    f = Linearization(encoder, x)
    u, v = torch.randn_like(f.z), torch.randn_like(x)
    torch.testing.assert_close(f.pull(u).flatten(1), torch.einsum("bji,bj->bi", J, u))
    torch.testing.assert_close(f.push(v), torch.einsum("bji,bi->bj", J, v.flatten(1)))


def test_gradient_of_a_product_is_that_with_constant_statistics() -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.Flatten()
    encoder, x = nn.Sequential(*layers).double(), torch.randn(3, 2, 5, 5, dtype=torch.float64)
    frozen = with_statistics_of(encoder, x)
    u = torch.randn_like(encoder(x))
    weights = ["0.weight", "1.weight", "3.weight"]
    ours, theirs = (
        torch.autograd.grad(
            Linearization(net, x, freeze).pull(u, create_graph=True).pow(3).sum(),
            [net.get_parameter(name) for name in weights],
        )
        for net, freeze in ((encoder, True), (frozen, False))
    )
    torch.testing.assert_close(ours, theirs)


def test_without_freezing_the_samples_of_a_batch_mix() -> None:
    encoder, x = make((normalised, (2, 5, 5)))
    u = torch.zeros_like(encoder(x))
    u[0] = 1
    others = [Linearization(encoder, x, freeze).pull(u)[1:].norm() for freeze in (True, False)]
    assert others[0] == 0
    assert others[1] > 0.01


@pytest.mark.parametrize("freeze_norm", [True, False])
def test_features_losses_and_running_statistics_are_those_of_an_ordinary_pass(
    freeze_norm: bool,
) -> None:
    torch.manual_seed(0)
    encoder = WideResNet.Config(depth=10, width=1).build((3, 8, 8))
    x, y = torch.randn(4, 3, 8, 8), torch.arange(4)
    plain = copy.deepcopy(encoder)
    f = Linearization(encoder, x, freeze_norm)
    f.pull(torch.randn_like(f.z), create_graph=True)
    f.push(torch.randn_like(x))
    z = plain(x)
    assert torch.equal(f.z, z)
    ours = torch.autograd.grad(F.cross_entropy(f.z, y), list(encoder.parameters()))
    theirs = torch.autograd.grad(F.cross_entropy(z, y), list(plain.parameters()))
    torch.testing.assert_close(ours, theirs)
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name]), name


def test_layers_may_work_in_place_and_leave_the_inputs_alone() -> None:
    noisy = nn.ReLU(inplace=True), nn.Dropout(0.2)
    layers = nn.ReLU(inplace=True), nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), *noisy
    encoder, x = make((lambda: nn.Sequential(*layers), (2, 5, 5)))
    before = x.clone()
    f = Linearization(encoder, x)
    (f.z.sum() + f.pull(torch.ones_like(f.z), create_graph=True).square().sum()).backward()
    assert torch.equal(x, before)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


def test_one_value_per_channel_is_refused_as_by_torch() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        Linearization(nn.BatchNorm1d(2), torch.randn(1, 2))


def test_power_iteration_finds_the_singular_vector_of_every_sample() -> None:
    encoder, x = make(CONVOLUTIONS["strided"])
    f = Linearization(encoder, x)
    norms = f.pull(left_singular_vectors(f, iterations=200)).flatten(1).norm(dim=1)
    torch.testing.assert_close(norms, torch.linalg.matrix_norm(jacobians(encoder, x), ord=2))
