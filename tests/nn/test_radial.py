from itertools import product

import pytest
import torch
from flow_inverses import inverse_of_radial_flow
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from density_softmax.nn.densities import FlowDensity, RadialDensity
from density_softmax.nn.densities.flows import RadialFlow, RadialLayer

CASES = list(product((1, 2, 3, 7), (1, 3, 8)))


def flow(num_features: int, num_layers: int, seed: int = 0) -> RadialFlow:
    """A flow in float64 that stretches and shrinks strongly."""
    torch.manual_seed(seed)
    result = RadialFlow(num_features, num_layers).double()
    for parameter in result.parameters():
        nn.init.normal_(parameter, std=2)
    return result


def sample(num_samples: int, num_features: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return 2 * torch.randn(num_samples, num_features, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("num_features", "num_layers"), CASES)
def test_log_determinant_is_that_of_the_jacobian(num_features: int, num_layers: int) -> None:
    s = flow(num_features, num_layers)
    z = sample(6, num_features)
    jacobian = torch.func.vmap(torch.func.jacrev(lambda row: s(row[None])[0][0]))(z)
    torch.testing.assert_close(s(z)[1], torch.linalg.slogdet(jacobian).logabsdet)
    assert (torch.linalg.slogdet(jacobian).sign > 0).all()


@pytest.mark.parametrize(("num_features", "num_layers"), CASES)
def test_inverse_undoes_forward_and_forward_undoes_inverse(
    num_features: int, num_layers: int
) -> None:
    s = flow(num_features, num_layers)
    z = sample(20, num_features)
    torch.testing.assert_close(inverse_of_radial_flow(s, s(z)[0]), z)
    torch.testing.assert_close(s(inverse_of_radial_flow(s, z))[0], z)


def test_layer_is_the_formula_of_the_paper() -> None:
    layer, z = flow(3, 1).layers[0], sample(9, 3)
    assert isinstance(layer, RadialLayer)
    alpha, gamma = layer.reach()
    beta, arm = gamma - alpha, z - layer.center
    r = arm.norm(dim=1, keepdim=True)
    h, slope = 1 / (alpha + r), -1 / (alpha + r) ** 2
    t, log_det = layer(z)
    torch.testing.assert_close(t, z + beta * h * arm)
    det = (1 + beta * h) ** 2 * (1 + beta * h + beta * slope * r)
    torch.testing.assert_close(log_det, det[:, 0].log())


@given(alpha=st.floats(-30, 30), gamma=st.floats(-30, 30), distance=st.floats(0, 1e6))
def test_every_layer_is_invertible_whatever_its_parameters(
    alpha: float, gamma: float, distance: float
) -> None:
    layer = RadialLayer(2).double()
    with torch.no_grad():
        layer.center.zero_()
        layer.raw_alpha.fill_(alpha)
        layer.raw_gamma.fill_(gamma)
        alpha_, gamma_ = layer.reach()
        assert alpha_ > 0
        assert gamma_ - alpha_ > -alpha_
        steps = torch.tensor([distance, distance + 1e-3], dtype=torch.float64)
        t, log_det = layer(torch.stack([steps, torch.zeros(2)], 1))
    assert log_det.isfinite().all()
    assert t[1, 0] > t[0, 0] >= 0


def test_an_untrained_flow_is_the_identity() -> None:
    z = torch.randn(10, 5)
    t, log_det = RadialFlow(5, 8)(z)
    torch.testing.assert_close(t, z)
    torch.testing.assert_close(log_det, torch.zeros(10))


def test_gradient_at_the_centre_is_finite() -> None:
    layer = RadialLayer(3)
    t, log_det = layer(layer.center.detach()[None])
    (t.square().sum() + log_det.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("num_features", [1, 2, 50])
def test_no_point_moves_further_than_the_sum_of_all_beta(num_features: int) -> None:
    s = flow(num_features, 8)
    reaches = [layer.reach() for layer in s.layers if isinstance(layer, RadialLayer)]
    bound = sum((gamma - alpha).abs() for alpha, gamma in reaches)
    for distance in (1.0, 1e3, 1e6):
        z = distance * sample(20, num_features)
        assert ((s(z)[0] - z).norm(dim=1) <= bound * (1 + 1e-9)).all()


def test_far_away_the_determinant_tends_to_one() -> None:
    s, z = flow(4, 8), sample(20, 4)
    sizes = [s(distance * z)[1].abs().max() for distance in (1e2, 1e4, 1e6)]
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[2] < 1e-3


def test_radial_density_overflows_to_minus_infinity_and_not_to_nan() -> None:
    density = RadialDensity(3)
    assert (
        density.log_prob(torch.tensor([[1e30, 0.0, 0.0], [3e38, 3e38, 3e38]])) == -torch.inf
    ).all()


def test_realnvp_falls_far_away_but_at_no_rate_that_the_data_set() -> None:
    density = FlowDensity(2, FlowDensity.Config(standardize=False, couplings=1, hidden=(2,)))
    (coupling,) = density.flow.couplings
    with torch.no_grad():
        for parameter in coupling.parameters():
            parameter.zero_()
        # t(a) = −1000 a for a > 0.
        coupling.shift[0].weight.fill_(1.0)
        coupling.shift[2].weight.fill_(-500.0)
        z = torch.tensor([[0.0, 0.0], [1.0, 1000.0], [1.0, 0.0], [1e3, 1e6]])
        origin, along, across, far = density.log_prob(z).tolist()
    assert along == origin - 0.5
    assert across < origin - 1e5
    assert far < origin - 1e5


def test_exported_flow_accepts_any_batch_size() -> None:
    s = flow(3, 4)
    batch = {"z": {0: torch.export.Dim("batch", min=1)}}
    exported = torch.export.export(s, (sample(5, 3),), dynamic_shapes=batch).module()
    for num_samples in (1, 8):
        z = sample(num_samples, 3)
        torch.testing.assert_close(exported(z), s(z))


@pytest.mark.parametrize("num_flows", [1, 5])
def test_flows_side_by_side_are_the_flows_one_by_one(num_flows: int) -> None:
    torch.manual_seed(0)
    together = RadialFlow(3, 4, num_flows).double()
    for parameter in together.parameters():
        nn.init.normal_(parameter, std=2)
    z = sample(6, 3)
    t, log_det = together(z[:, None])
    assert t.shape == (6, num_flows, 3)
    for index in range(num_flows):
        single = RadialFlow(3, 4).double()
        single.load_state_dict({k: v[index] for k, v in together.state_dict().items()})
        torch.testing.assert_close((t[:, index], log_det[:, index]), single(z))
        torch.testing.assert_close(inverse_of_radial_flow(together, t)[:, index], z)


def test_radial_flow_bends_the_normal_towards_a_ring() -> None:
    generator = torch.Generator().manual_seed(0)
    angle = 6.2832 * torch.rand(1000, generator=generator)
    radius = 2 + 0.2 * torch.randn(1000, generator=generator)
    z = radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
    torch.manual_seed(0)
    density = RadialDensity(2)
    optimizer = torch.optim.Adam(density.parameters(), lr=3e-2)
    for _ in range(300):
        optimizer.zero_grad()
        (-density.log_prob(z).mean()).backward()
        optimizer.step()
    normal = torch.distributions.MultivariateNormal(z.mean(0), torch.cov(z.T))
    with torch.no_grad():
        assert density.log_prob(z).mean() > normal.log_prob(z).mean() + 0.2
        assert density.log_prob(torch.zeros(1, 2)) < density.log_prob(z).mean() - 1
