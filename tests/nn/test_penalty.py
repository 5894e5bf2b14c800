import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from density_softmax.nn.penalty import frobenius_penalty
from density_softmax.nn.resffn import ResFFN


def image_encoder() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 4))


ENCODERS = {
    "tanh": (lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)), (3,)),
    "resffn": (lambda: ResFFN(2, depth=3, width=6), (2,)),
    "image": (image_encoder, (2, 3, 3)),
    "one to one": (lambda: nn.Sequential(nn.Linear(1, 1), nn.Softplus()), (1,)),
}


@pytest.fixture(params=ENCODERS)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, shape = ENCODERS[request.param]
    return build().double(), torch.randn(4, *shape, dtype=torch.float64)


def reference_penalty(encoder: nn.Module, x: Tensor) -> Tensor:
    """From the whole Jacobian, one sample at a time, by reverse mode."""
    terms = []
    for sample in x:
        J = jacobian(lambda s: encoder(s[None])[0], sample, create_graph=True)
        terms.append((torch.linalg.norm(J.flatten()) - 1) ** 2)
    return torch.stack(terms).mean()


def test_penalty_is_that_of_the_whole_jacobian(case: tuple[nn.Module, Tensor]) -> None:
    encoder, x = case
    torch.testing.assert_close(frobenius_penalty(encoder, x)[1], reference_penalty(encoder, x))


def test_gradient_is_that_through_the_whole_jacobian(case: tuple[nn.Module, Tensor]) -> None:
    encoder, x = case
    weights = [p for name, p in encoder.named_parameters() if name.endswith("weight")]
    ours = torch.autograd.grad(frobenius_penalty(encoder, x)[1], weights)
    theirs = torch.autograd.grad(reference_penalty(encoder, x), weights)
    torch.testing.assert_close(ours, theirs)


def test_features_are_the_encoders_and_carry_gradients(case: tuple[nn.Module, Tensor]) -> None:
    encoder, x = case
    z, _ = frobenius_penalty(encoder, x)
    torch.testing.assert_close(z, encoder(x))
    ours = torch.autograd.grad(z.sum(), list(encoder.parameters()))
    theirs = torch.autograd.grad(encoder(x).sum(), list(encoder.parameters()))
    torch.testing.assert_close(ours, theirs)


def test_isometry_of_one_coordinate_costs_nothing() -> None:
    encoder = nn.Linear(1, 4, bias=False)
    encoder.weight.data.fill_(0.5)
    assert frobenius_penalty(encoder, torch.randn(6, 1))[1].item() == pytest.approx(0, abs=1e-12)


def test_vanishing_jacobian_costs_one_and_has_a_finite_gradient() -> None:
    encoder = ResFFN(2, depth=2, width=4)
    for parameter in encoder.parameters():
        nn.init.zeros_(parameter)
    z, penalty = frobenius_penalty(encoder, torch.randn(3, 2))
    (penalty + z.sum()).backward()
    assert penalty.item() == pytest.approx(1, abs=1e-5)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


def test_mixed_precision_does_not_touch_the_penalty() -> None:
    torch.manual_seed(0)
    encoder, x = ResFFN(2, depth=2, width=8), torch.randn(5, 2)
    expected = frobenius_penalty(encoder, x)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = frobenius_penalty(encoder, x)
        half = frobenius_penalty(encoder, x.bfloat16())
    assert [part.dtype for part in (*mixed, *half)] == [torch.float32] * 4
    assert all(torch.equal(a, b) for a, b in zip(mixed, expected, strict=True))


def test_dropout_is_drawn_once_for_features_and_jacobian() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(2, 50, bias=False).double()
    x = torch.randn(3, 2, dtype=torch.float64)
    z, penalty = frobenius_penalty(nn.Sequential(linear, nn.Dropout(0.5)), x)
    mask = z / linear(x)
    norms = (mask[:, :, None] * linear.weight).flatten(1).norm(dim=1)
    assert 0 < mask.count_nonzero() < mask.numel()
    torch.testing.assert_close(penalty, (norms - 1).square().mean())
