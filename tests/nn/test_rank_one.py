import math

import pytest
import torch
from torch import distributions as td
from torch import nn
from torch.nn import functional as F

from density_softmax.nn.layers.decay import sum_of_squares
from density_softmax.nn.layers.rank_one import (
    GaussianVectors,
    MemberBatchNorm,
    PointVectors,
    RankOne,
    random_signs,
)
from density_softmax.nn.softmax.averaging import tile

LAYERS = {
    "dense": (lambda: nn.Linear(3, 4), (3,)),
    "dense, of sequences": (lambda: nn.Linear(3, 2, bias=False), (5, 3)),
    "convolution": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 5, 5)),
    "convolution of a torus": (
        lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular", bias=False),
        (2, 4, 4),
    ),
}
MEMBERS = 3


def points(width: int) -> PointVectors:
    return PointVectors(1 + 0.5 * torch.randn(MEMBERS, width).double())


def gaussians(width: int, std: float = 0.2) -> GaussianVectors:
    return GaussianVectors(torch.randn(MEMBERS, width).double(), std, 1.0, 0.1)


def layer_and_input(kind: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    make, shape = LAYERS[kind]
    return make().double(), torch.randn(4, *shape).double()


@pytest.mark.parametrize("kind", LAYERS)
def test_a_member_is_the_layer_with_the_product_kernel(kind):
    layer, x = layer_and_input(kind)
    ensemble = RankOne(layer, MEMBERS, points)
    if ensemble.bias is not None:
        nn.init.normal_(ensemble.bias.value)
    outputs = ensemble(tile(x, MEMBERS)).unflatten(0, (MEMBERS, 4))
    for m in range(MEMBERS):
        member = LAYERS[kind][0]().double()
        factor = torch.outer(ensemble.s.value[m], ensemble.r.value[m])
        factor = factor.reshape(*factor.shape, *[1] * (layer.weight.ndim - 2))
        with torch.no_grad():
            member.weight.copy_(layer.weight * factor)
            if ensemble.bias is not None:
                member.bias.copy_(ensemble.bias.value[m])
        torch.testing.assert_close(outputs[m], member(x))


@pytest.mark.parametrize("kind", LAYERS)
def test_factors_of_one_leave_the_layer_as_it_was(kind):
    layer, x = layer_and_input(kind)
    expected = layer(x)
    ensemble = RankOne(
        layer, MEMBERS, lambda width: PointVectors(torch.ones(MEMBERS, width).double())
    )
    for output in ensemble(tile(x, MEMBERS)).chunk(MEMBERS):
        torch.testing.assert_close(output, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("kind", LAYERS)
def test_gaussian_factors_without_deviation_are_their_means(kind):
    layer, x = layer_and_input(kind)
    ensemble = RankOne(layer, MEMBERS, gaussians)
    fixed = {id(v): PointVectors(v.mean.detach()) for v in (ensemble.r, ensemble.s)}
    for vectors in (ensemble.r, ensemble.s):
        nn.init.constant_(vectors.raw_std, -math.inf)
    output = ensemble(tile(x, MEMBERS))
    ensemble.r, ensemble.s = fixed[id(ensemble.r)], fixed[id(ensemble.s)]
    assert torch.equal(output, ensemble(tile(x, MEMBERS)))


def test_divergence_is_that_of_torch():
    torch.manual_seed(0)
    vectors = gaussians(5)
    std = F.softplus(vectors.raw_std)
    expected = td.kl_divergence(td.Normal(vectors.mean, std), td.Normal(1.0, 0.1)).sum()
    torch.testing.assert_close(vectors.kl(), expected)


@torch.no_grad()
def test_each_row_gets_its_own_draw_from_its_member():
    torch.manual_seed(0)
    vectors = gaussians(4, std=0.3)
    draws = vectors(MEMBERS * 4000).unflatten(0, (MEMBERS, 4000))
    torch.testing.assert_close(draws.mean(1), vectors.mean, rtol=0, atol=0.03)
    torch.testing.assert_close(
        draws.std(1), torch.full((MEMBERS, 4), 0.3).double(), rtol=0.05, atol=0
    )
    neighbours = (draws[:, 1:] - vectors.mean[:, None]) * (draws[:, :-1] - vectors.mean[:, None])
    assert (neighbours.mean(1).abs() < 0.1 * 0.3**2).all()


@pytest.mark.parametrize("gradient", [0.5, 0.3, 1.0, 0.0])
def test_gradient_of_vectors_is_scaled_and_their_value_is_not(gradient):
    torch.manual_seed(0)
    values, weights = torch.randn(MEMBERS, 5), torch.randn(2 * MEMBERS, 5)
    vectors = PointVectors(values.clone(), gradient)
    output = vectors(2 * MEMBERS)
    assert torch.equal(output, values.repeat_interleave(2, 0))
    (output * weights).sum().backward()
    expected = gradient * weights.view(MEMBERS, 2, 5).sum(1)
    torch.testing.assert_close(vectors.value.grad, expected)


def test_the_kernel_is_shared_and_keeps_its_gradient():
    layer, x = layer_and_input("dense")
    ensemble = RankOne(
        layer, MEMBERS, lambda width: PointVectors(torch.ones(MEMBERS, width).double(), 0.5), 0.5
    )
    ensemble(tile(x, MEMBERS)).sum().backward()
    torch.testing.assert_close(layer.weight.grad, MEMBERS * x.sum(0).expand(4, 3))
    torch.testing.assert_close(ensemble.bias.value.grad, torch.full((MEMBERS, 4), 2.0).double())


def test_decay_spares_the_fast_weights_alone():
    torch.manual_seed(0)
    network = nn.Sequential(RankOne(nn.Linear(3, 4), MEMBERS, points), nn.BatchNorm1d(4))
    layer = network[0]
    decayed = (layer.shared.weight, layer.bias.value, *network[1].parameters())
    torch.testing.assert_close(sum_of_squares(network), sum(w.square().sum() for w in decayed))


@pytest.mark.parametrize("positive", [0.0, 0.5, 0.75, 1.0])
def test_signs_are_positive_as_often_as_asked(positive):
    torch.manual_seed(0)
    signs = random_signs(4, 5000, positive)
    assert signs.abs().eq(1).all()
    assert signs.mean().item() == pytest.approx(2 * positive - 1, abs=0.03)


@pytest.mark.parametrize(
    ("norm", "shape"),
    [(nn.BatchNorm1d, (2,)), (nn.BatchNorm2d, (2, 3, 3)), (nn.BatchNorm1d, (2, 3))],
)
def test_members_normalise_by_their_own_rows(norm, shape):
    torch.manual_seed(0)
    alone = [norm(2) for _ in range(MEMBERS)]
    together = MemberBatchNorm(norm(2), MEMBERS)
    x = torch.randn(MEMBERS, 6, *shape) * torch.arange(1, 4).view(-1, 1, *[1] * len(shape))
    for mode in (True, True, False):
        together.train(mode)
        expected = torch.cat([bn.train(mode)(rows) for bn, rows in zip(alone, x, strict=True)])
        torch.testing.assert_close(together(x.flatten(0, 1)), expected)
    expected = torch.cat([bn.running_var for bn in alone])
    torch.testing.assert_close(together.norm.running_var, expected)


def test_members_start_from_the_norm_they_replace():
    norm = nn.BatchNorm2d(2, eps=0.1, momentum=0.3)
    for value in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        nn.init.uniform_(value, 0.5, 2)
    x = torch.randn(4, 2, 3, 3)
    together = MemberBatchNorm(norm, MEMBERS).eval()
    for output in together(tile(x, MEMBERS)).chunk(MEMBERS):
        torch.testing.assert_close(output, norm.eval()(x))
    assert (together.norm.eps, together.norm.momentum) == (0.1, 0.3)


def test_factors_keep_the_precision_of_the_activations():
    layer = RankOne(nn.Linear(3, 4), MEMBERS, lambda width: PointVectors(torch.ones(3, width)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.zeros(6, 3)).dtype == torch.bfloat16
