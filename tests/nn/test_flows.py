from itertools import product

import pytest
import torch
from flow_inverses import inverse_of_real_nvp
from torch import Tensor, nn

from density_softmax.nn.densities.flows import RealNVP

DIMENSIONS, COUPLINGS = (1, 2, 3, 4, 7), (1, 2, 3, 4)
CASES = list(product(DIMENSIONS, COUPLINGS))


def flow(num_features: int, num_couplings: int, seed: int = 0) -> RealNVP:
    """A flow in float64 whose weights are far from the identity's."""
    torch.manual_seed(seed)
    result = RealNVP(num_features, num_couplings, hidden=(8, 8)).double()
    for parameter in result.parameters():
        nn.init.normal_(parameter, std=0.7)
    return result


def sample(num_samples: int, num_features: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(num_samples, num_features, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("num_features", "num_couplings"), CASES)
def test_log_determinant_is_that_of_the_jacobian(num_features: int, num_couplings: int) -> None:
    s = flow(num_features, num_couplings)
    z = sample(4, num_features)
    jacobian = torch.func.vmap(torch.func.jacrev(lambda row: s(row[None])[0][0]))(z)
    torch.testing.assert_close(s(z)[1], torch.linalg.slogdet(jacobian).logabsdet)


@pytest.mark.parametrize(("num_features", "num_couplings"), CASES)
def test_inverse_undoes_forward_and_forward_undoes_inverse(
    num_features: int, num_couplings: int
) -> None:
    s = flow(num_features, num_couplings)
    z = 3 * sample(20, num_features)
    torch.testing.assert_close(inverse_of_real_nvp(s, s(z)[0]), z)
    torch.testing.assert_close(s(inverse_of_real_nvp(s, z))[0], z)


@pytest.mark.parametrize("num_features", DIMENSIONS)
def test_one_coupling_keeps_the_first_half(num_features: int) -> None:
    z = sample(5, num_features)
    t, _ = flow(num_features, num_couplings=1)(z)
    half = num_features // 2
    assert torch.equal(t[:, :half], z[:, :half])
    assert not (t[:, half:] == z[:, half:]).any()


@pytest.mark.parametrize("num_features", [2, 3, 4, 7])
def test_two_couplings_move_every_coordinate(num_features: int) -> None:
    z = sample(5, num_features)
    assert not (flow(num_features, num_couplings=2)(z)[0] == z).any()


def masked(network: nn.Module, rows: Tensor, columns: Tensor, z: Tensor) -> Tensor:
    """A conditioner as a full-width network on masked input, written to masked output."""
    result = torch.zeros_like(z)
    result[:, ~columns] = network((z * rows)[:, rows.bool()])
    return result


@pytest.mark.parametrize(("num_features", "num_couplings"), [(4, 2), (5, 3), (6, 4)])
def test_halves_compute_what_alternating_masks_compute(
    num_features: int, num_couplings: int
) -> None:
    s, z = flow(num_features, num_couplings), sample(6, num_features)
    t, log_det = z.clone(), 0.0
    mask = (torch.arange(num_features) < num_features // 2).double()
    for coupling in s.couplings:
        kept = mask.bool()
        scale = torch.tanh(masked(coupling.scale, mask, kept, t))
        shift = masked(coupling.shift, mask, kept, t)
        t = mask * t + (1 - mask) * (t * scale.exp() + shift)
        log_det = log_det + scale.sum(-1)
        mask = 1 - mask
    torch.testing.assert_close(s(z), (t, log_det))


@pytest.mark.parametrize(("num_features", "published"), [(640, 87_808), (2048, 273_664)])
def test_parameters_that_grow_with_the_width_are_half_of_the_published(
    num_features: int, published: int
) -> None:
    with torch.device("meta"):
        s = RealNVP(num_features, num_couplings=2, hidden=(16, 16, 16, 16))
    # Four networks: biases of four hidden layers and three squares of weights stay as they are.
    fixed = 4 * (4 * 16 + 3 * 16 * 16)
    count = sum(parameter.numel() for parameter in s.parameters())
    assert count - fixed == (published - fixed) / 2


def test_parameters_of_an_odd_dimension_counted_by_hand() -> None:
    s = RealNVP(3, num_couplings=2, hidden=(4,))
    # 1 → 4 → 2 moves two coordinates, 2 → 4 → 1 moves one; s and t each.
    by_hand = 2 * (1 * 4 + 4 + 4 * 2 + 2) + 2 * (2 * 4 + 4 + 4 * 1 + 1)
    assert sum(parameter.numel() for parameter in s.parameters()) == by_hand


def test_one_dimension_is_one_affine_map() -> None:
    s = flow(1, num_couplings=3)
    z = sample(9, 1)
    t, log_det = s(z)
    slope = (t[1:] - t[:-1]) / (z[1:] - z[:-1])
    torch.testing.assert_close(slope, log_det.exp()[1:, None])


def test_gradients_reach_every_parameter_of_every_dimension() -> None:
    for num_features in DIMENSIONS:
        s = flow(num_features, num_couplings=2)
        t, log_det = s(sample(8, num_features))
        (t.square().sum() + log_det.sum()).backward()
        assert all(parameter.grad is not None for parameter in s.parameters())


@pytest.mark.parametrize("num_features", [1, 3])
def test_exported_flow_accepts_any_batch_size(num_features: int) -> None:
    s = flow(num_features, num_couplings=2)
    batch = {"z": {0: torch.export.Dim("batch", min=1)}}
    exported = torch.export.export(s, (sample(5, num_features),), dynamic_shapes=batch).module()
    for num_samples in (1, 8):
        z = sample(num_samples, num_features)
        torch.testing.assert_close(exported(z), s(z))
