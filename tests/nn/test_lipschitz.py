import itertools

import pytest
import torch
from torch import Tensor, nn

from density_softmax.errors import UserError
from density_softmax.nn.backbones.base import BackboneConfig
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.resnet import CifarResNet, ResNet
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.lipschitz.bounds import _operator_norm, lower_bound, upper_bound


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def spectral(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix.detach(), ord=2))


def matrix_of(module: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """The explicit operator, column by column."""
    size = int(torch.tensor(shape).prod())
    shift = module(torch.zeros(1, *shape, dtype=torch.float64))
    columns = [module(e.view(1, *shape)) - shift for e in torch.eye(size, dtype=torch.float64)]
    return torch.stack(columns, -1).flatten(0, -2)


def randomise_norms(network: nn.Module) -> nn.Module:
    """Batch norms as after a training: neither means 0 nor scales 1."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for tensor in (module.running_mean, module.bias, module.weight):
                nn.init.normal_(tensor, std=0.5)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return network.eval()


def test_linear_network_has_the_norm_of_its_product() -> None:
    encoder = nn.Sequential(nn.Linear(6, 9), nn.Dropout(), nn.Linear(9, 4)).double()
    true = spectral(encoder[2].weight @ encoder[0].weight)
    x = torch.randn(3, 6, dtype=torch.float64)
    assert upper_bound(encoder, (6,)) == pytest.approx(true)
    assert lower_bound(encoder, x, iterations=500) == pytest.approx(true)
    assert lower_bound(encoder, x) <= true * (1 + 1e-12)


@pytest.mark.parametrize("hidden", [3, 10, 20])
def test_true_constant_of_one_hidden_layer_lies_between_the_bounds(hidden: int) -> None:
    # With more inputs than units, every on/off pattern occurs somewhere.
    encoder = nn.Sequential(nn.Linear(24, hidden), nn.ReLU(), nn.Linear(hidden, 5)).double()
    W, V = encoder[0].weight.detach(), encoder[2].weight.detach()
    patterns = itertools.product((0.0, 1.0), repeat=hidden)
    if hidden > 12:
        patterns = iter(torch.rand(4000, hidden).round().tolist())
    D = torch.tensor(list(patterns), dtype=torch.float64)
    true = float(torch.linalg.matrix_norm(V @ (D[:, :, None] * W), ord=2).max())
    upper, lower = (
        upper_bound(encoder, (24,)),
        lower_bound(encoder, 5 * torch.randn(500, 24).double()),
    )
    assert lower <= true * (1 + 1e-9)
    assert true <= upper * (1 + 1e-9)
    assert upper < 0.95 * spectral(V) * spectral(W)
    if hidden <= 12:
        assert upper == pytest.approx(true)


def test_deep_narrow_network_is_bounded_below_the_product_of_its_norms() -> None:
    widths = [4, 6, 5, 7, 3]
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    encoder = nn.Sequential(*(m for layer in layers for m in (layer, nn.Tanh()))).double()
    product = torch.tensor([spectral(layer.weight) for layer in layers]).prod()
    lower = lower_bound(encoder, 0.1 * torch.randn(200, 4).double())
    assert lower <= upper_bound(encoder, (4,)) < product


@pytest.mark.parametrize("size", [4, 12])
@pytest.mark.parametrize("options", [{"padding": 1}, {"stride": 2}, {"padding": 1, "stride": 2}])
def test_norm_of_a_convolution_is_that_of_the_explicit_operator(
    size: int, options: dict[str, int]
) -> None:
    conv = nn.Conv2d(3, 4, 3, **options).double()
    true = spectral(matrix_of(conv, (3, size, size)))
    assert true * (1 - 1e-9) <= upper_bound(conv, (3, size, size)) <= true * (1 + 2e-3)


def test_batch_norm_is_folded_into_its_convolution() -> None:
    encoder = randomise_norms(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).double())
    true = spectral(matrix_of(encoder, (2, 5, 5)))
    assert upper_bound(encoder.train(), (2, 5, 5)) == pytest.approx(true)
    conv, norm = encoder.eval()
    scale = (norm.weight / norm.running_var.sqrt()).detach().abs().max()
    assert true < scale * spectral(matrix_of(conv, (2, 5, 5)))


def test_norm_of_a_large_operator_that_is_zero_is_zero() -> None:
    assert _operator_norm(lambda x: 0 * x, torch.zeros(1, 1000)) == 0


def test_linear_residual_network_keeps_its_true_constant() -> None:
    encoder = ResFFN(3, depth=1, width=8).double()
    nn.init.constant_(encoder.blocks[0].linear.bias, 1e3)  # relu is the identity
    W = encoder.blocks[0].linear.weight
    true = spectral((torch.eye(8) + W) @ encoder.input.weight)
    x = torch.randn(4, 3, dtype=torch.float64)
    assert lower_bound(encoder, x, iterations=300) == pytest.approx(true)
    assert true <= upper_bound(encoder, (3,)) <= (1 + spectral(W)) * spectral(encoder.input.weight)


BACKBONES: dict[str, tuple[BackboneConfig, tuple[int, ...]]] = {
    "resffn": (ResFFN.Config(depth=3, width=8), (2,)),
    "wide_resnet": (WideResNet.Config(depth=10, width=1), (3, 8, 8)),
    "cifar_resnet": (CifarResNet.Config(depth=8), (3, 8, 8)),
}


@pytest.mark.parametrize("name", BACKBONES)
def test_no_difference_quotient_exceeds_the_bound_of_a_backbone(name: str) -> None:
    config, shape = BACKBONES[name]
    encoder = randomise_norms(config.build(shape))
    x, step = torch.randn(20, *shape), 0.1 * torch.randn(20, *shape)
    with torch.no_grad():
        quotients = (encoder(x + step) - encoder(x)).norm(dim=1) / step.flatten(1).norm(dim=1)
    lower, upper = lower_bound(encoder, x), upper_bound(encoder, shape)
    assert quotients.max() <= upper
    assert 0 < lower <= upper


def test_bound_covers_bottlenecks_and_overlapping_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ResNet.NUM_BLOCKS, 8, (1, 1, 1, 1))
    encoder = randomise_norms(ResNet.Config(depth=8).build((3, 16, 16)))
    assert 0 < lower_bound(encoder, torch.randn(4, 3, 16, 16)) <= upper_bound(encoder, (3, 16, 16))


def test_pooled_maxima_of_overlapping_windows_can_double_a_distance() -> None:
    pool = nn.MaxPool2d(3, 2, 1)
    x = torch.zeros(1, 1, 8, 8)
    x[0, 0, 3, 3] = 1
    assert pool(x).norm() == 2
    assert upper_bound(pool, (1, 8, 8)) == 2


def test_bounds_leave_the_encoder_as_it_was() -> None:
    encoder = WideResNet.Config(depth=10, width=1).build((3, 8, 8))
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    lower_bound(encoder, torch.randn(2, 3, 8, 8), iterations=1)
    upper_bound(encoder, (3, 8, 8))
    assert encoder.training
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.GELU()), "GELU"),
        (nn.LayerNorm(2), "LayerNorm"),
        (nn.BatchNorm1d(2, track_running_stats=False), "running statistics"),
        (nn.LeakyReLU(2.0), "negative_slope"),
    ],
)
def test_a_module_without_a_known_constant_is_refused_by_name(
    module: nn.Module, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        upper_bound(module, (2,))
