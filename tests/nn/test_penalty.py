import copy
import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from density_softmax.config import ConfigError, from_dict, override, to_dict
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.lipschitz.linearization import Linearization
from density_softmax.nn.lipschitz.penalty import (
    FrobeniusPenalty,
    NoPenalty,
    PenaltyConfig,
    PenaltyOptions,
    SpectralPenalty,
    SumPenalty,
)
from density_softmax.types import Batch


def image_encoder() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 4))


ENCODERS = {
    "tanh": (lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)), (3,)),
    "resffn": (lambda: ResFFN(2, depth=3, width=6), (2,)),
    "image": (image_encoder, (2, 3, 3)),
    "one to one": (lambda: nn.Sequential(nn.Linear(1, 1), nn.Softplus()), (1,)),
}
CONFIGS = {
    "frobenius": FrobeniusPenalty.Config(weight=1.0, exact_below=100),
    "spectral": SpectralPenalty.Config(weight=1.0, exact_below=0, iterations=200),
    "spectral, exact": SpectralPenalty.Config(weight=1.0, exact_below=99),
    "sum": SumPenalty.Config(weight=1.0),
}
PROJECTED = FrobeniusPenalty.Config(weight=1.0, exact_below=0)
NORMS = {
    "frobenius": lambda jac: torch.linalg.norm(jac.flatten()),
    "spectral": lambda jac: torch.linalg.matrix_norm(jac, ord=2),
    "spectral, exact": lambda jac: torch.linalg.matrix_norm(jac, ord=2),
    "sum": lambda jac: jac.sum(0).norm(),
}


@pytest.fixture(params=ENCODERS)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, shape = ENCODERS[request.param]
    return build().double(), torch.randn(4, *shape, dtype=torch.float64)


def reference_penalty(name: str, encoder: nn.Module, x: Tensor) -> Tensor:
    """From the whole Jacobian, one sample at a time, by reverse mode."""
    terms = []
    for sample in x:
        J = jacobian(lambda s: encoder(s[None])[0], sample, create_graph=True).flatten(1)
        terms.append((NORMS[name](J) - 1) ** 2)
    return torch.stack(terms).mean()


@pytest.mark.parametrize("name", CONFIGS)
def test_penalty_is_that_of_the_whole_jacobian(name: str, case: tuple[nn.Module, Tensor]) -> None:
    _, penalty = CONFIGS[name].build()(*case)
    torch.testing.assert_close(penalty, reference_penalty(name, *case))


@pytest.mark.parametrize("name", CONFIGS)
def test_gradient_is_that_through_the_whole_jacobian(
    name: str, case: tuple[nn.Module, Tensor]
) -> None:
    encoder, x = case
    weights = [p for n, p in encoder.named_parameters() if n.endswith("weight")]
    ours = torch.autograd.grad(CONFIGS[name].build()(encoder, x)[1], weights)
    theirs = torch.autograd.grad(reference_penalty(name, encoder, x), weights)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", CONFIGS)
def test_features_are_the_encoders_and_carry_gradients(
    name: str, case: tuple[nn.Module, Tensor]
) -> None:
    encoder, x = case
    z, _ = CONFIGS[name].build()(encoder, x)
    torch.testing.assert_close(z, encoder(x))
    ours = torch.autograd.grad(z.sum(), list(encoder.parameters()))
    theirs = torch.autograd.grad(encoder(x).sum(), list(encoder.parameters()))
    torch.testing.assert_close(ours, theirs)


CONVOLUTIONAL = {
    "pooled": lambda: nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten()),
    ),
    "strided": lambda: nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 48)),
    ),
    "wide": lambda: WideResNet.Config(depth=10, width=1).build((3, 16, 16)),
}


@pytest.mark.parametrize("kind", CONVOLUTIONAL)
def test_by_default_the_spectral_norm_of_a_convolutional_network_is_within_5_percent(
    kind: str,
) -> None:
    torch.manual_seed(0)
    encoder, x = CONVOLUTIONAL[kind]().double(), torch.randn(16, 3, 16, 16).double()
    f = Linearization(encoder, x)
    rows = torch.stack([f.pull(e.expand_as(f.z)).flatten(1) for e in torch.eye(f.z.shape[1])], 1)
    exact = torch.linalg.matrix_norm(rows, ord=2)
    for _ in range(4):  # random starts
        ratio = SpectralPenalty().norm(f) / exact
        assert ratio.min() > 0.95
        assert ratio.max() < 1 + 1e-9


@pytest.mark.parametrize("iterations", [3, 5, 40])
def test_a_span_larger_than_the_rank_of_the_jacobian_gives_its_norm(iterations: int) -> None:
    torch.manual_seed(0)
    encoder, x = nn.Linear(20, 5, bias=False), torch.randn(3, 20)
    encoder.weight.data = torch.randn(5, 2) @ torch.randn(2, 20)
    penalty = SpectralPenalty.Config(exact_below=0, iterations=iterations).build()
    found = penalty.norm(Linearization(encoder, x))
    expected = torch.linalg.matrix_norm(encoder.weight, ord=2)
    torch.testing.assert_close(found, expected.expand(3), rtol=1e-5, atol=0)


def test_a_network_that_has_diverged_has_a_penalty_that_is_no_number() -> None:
    encoder = nn.Linear(20, 5)
    nn.init.constant_(encoder.weight, math.nan)
    assert SpectralPenalty()(encoder, torch.randn(3, 20))[1].isnan()


def test_projections_estimate_the_square_of_the_frobenius_norm_without_bias() -> None:
    torch.manual_seed(0)
    encoder, x = image_encoder().double(), torch.randn(1, 2, 3, 3, dtype=torch.float64)
    exact = CONFIGS["frobenius"].build().norm(Linearization(encoder, x)).square()
    many = Linearization(encoder, x.expand(20_000, -1, -1, -1))  # a direction for each copy
    estimate = PROJECTED.build().norm(many).square().mean(0, keepdim=True)
    torch.testing.assert_close(estimate, exact, rtol=0.02, atol=0)
    ours, theirs = (torch.autograd.grad(s.sum(), encoder[0].weight)[0] for s in (estimate, exact))
    assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_more_projections_lessen_the_spread() -> None:
    torch.manual_seed(0)
    encoder, x = image_encoder().double(), torch.randn(1, 2, 3, 3, dtype=torch.float64)
    many = Linearization(encoder, x.expand(2000, -1, -1, -1))
    one, nine = (
        dataclasses.replace(PROJECTED, num_projections=n).build().norm(many).square().var()
        for n in (1, 9)
    )
    assert nine.item() == pytest.approx(one.item() / 9, rel=0.2)


def test_one_feature_needs_one_projection() -> None:
    encoder, x = nn.Linear(30, 1).double(), torch.randn(3, 30, dtype=torch.float64)
    torch.testing.assert_close(
        PROJECTED.build()(encoder, x)[1], (encoder.weight.norm() - 1).square()
    )


@pytest.mark.parametrize(("coordinates", "is_exact"), [(15, True), (16, False)])
def test_default_is_exact_where_the_input_has_few_coordinates(
    coordinates: int, is_exact: bool
) -> None:
    torch.manual_seed(0)
    encoder, x = nn.Linear(coordinates, 3), torch.randn(2, coordinates)
    norms = FrobeniusPenalty().norm(Linearization(encoder, x))
    assert torch.allclose(norms, encoder.weight.norm().expand(2)) == is_exact


def test_sum_of_features_that_cancel_hides_the_largest_jacobian() -> None:
    encoder = nn.Linear(2, 2, bias=False)
    encoder.weight.data = torch.tensor([[100.0, 0.0], [-100.0, 0.0]])
    f = Linearization(encoder, torch.randn(1, 2))
    assert SumPenalty().norm(f).item() == pytest.approx(0, abs=1e-5)
    assert SpectralPenalty().norm(f).item() > 100


def test_isometry_of_one_coordinate_costs_nothing() -> None:
    encoder = nn.Linear(1, 4, bias=False)
    encoder.weight.data.fill_(0.5)
    for name in ("frobenius", "spectral"):
        _, penalty = CONFIGS[name].build()(encoder, torch.randn(6, 1))
        assert penalty.item() == pytest.approx(0, abs=1e-10)


ALL = [*CONFIGS.values(), PROJECTED]


@pytest.mark.parametrize("config", ALL)
def test_vanishing_jacobian_costs_one_and_has_a_finite_gradient(config: PenaltyConfig) -> None:
    encoder = ResFFN(2, depth=2, width=4)
    for parameter in encoder.parameters():
        nn.init.zeros_(parameter)
    z, penalty = config.build()(encoder, torch.randn(3, 2))
    (penalty + z.sum()).backward()
    assert penalty.item() == pytest.approx(1, abs=1e-5)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.parametrize("config", ALL)
def test_one_sided_penalty_lets_the_encoder_contract(config: PenaltyOptions) -> None:
    encoder = nn.Linear(3, 1)
    nn.init.constant_(encoder.weight, 0.1)
    two, one = (dataclasses.replace(config, sided=sided).build() for sided in ("two", "one"))
    x = torch.randn(4, 3)
    assert two(encoder, x)[1] > 0.5
    assert one(encoder, x)[1] == 0
    nn.init.constant_(encoder.weight, 10.0)
    assert torch.equal(one(encoder, x)[1], two(encoder, x)[1])


def test_weight_multiplies_and_none_and_zero_leave_the_penalty_out() -> None:
    encoder, x = nn.Linear(2, 3), torch.randn(4, 2)
    full = CONFIGS["frobenius"].build()(encoder, x)[1]
    half = FrobeniusPenalty.Config(weight=0.5).build()(encoder, x)[1]
    torch.testing.assert_close(2 * half, full)
    for config in (NoPenalty.Config(), FrobeniusPenalty.Config(weight=0.0)):
        z, penalty = config.build()(encoder, x)
        assert torch.equal(z, encoder(x))
        assert penalty == 0


def test_every_kth_step_carries_the_whole_penalty() -> None:
    torch.manual_seed(0)
    encoder, x = nn.Linear(2, 3), torch.randn(4, 2)
    penalty = FrobeniusPenalty.Config(weight=1.0, every=3).build()
    values = []
    for _ in range(6):
        values.append(penalty(encoder, x)[1])
        assert torch.equal(penalty(encoder, x)[1], values[-1])  # another part of the same batch
        count(penalty)
    assert [value > 0 for value in values] == [True, False, False] * 2
    gradients = [torch.autograd.grad(v, encoder.weight)[0] for v in values if v.requires_grad]
    (expected,) = torch.autograd.grad(CONFIGS["frobenius"].build()(encoder, x)[1], encoder.weight)
    torch.testing.assert_close(torch.stack(gradients).sum(0) / 6, expected)


def count(penalty: FrobeniusPenalty) -> None:
    """What the engine does after a step of the optimizer."""
    estimate = penalty.after_step()
    assert estimate is not None
    estimate.finish(estimate.statistics(Batch(torch.zeros(1), torch.zeros(1))))


def test_evaluation_has_the_mean_penalty_on_every_step_and_counts_none() -> None:
    encoder, x = nn.Linear(2, 3), torch.randn(4, 2)
    penalty = FrobeniusPenalty.Config(weight=1.0, every=3).build()
    count(penalty)
    assert penalty(encoder, x)[1] == 0
    with torch.no_grad():
        z, value = penalty.eval()(encoder, x)
    torch.testing.assert_close(value, CONFIGS["frobenius"].build()(encoder, x)[1])
    assert not z.requires_grad
    assert penalty.step == 1


def test_counter_is_saved_with_the_weights() -> None:
    first, second = (FrobeniusPenalty.Config(every=3).build() for _ in range(2))
    count(first)
    second.load_state_dict(first.state_dict())
    assert second.step == 1
    assert FrobeniusPenalty().after_step() is None


@pytest.mark.parametrize("freeze_norm", [True, False])
@pytest.mark.parametrize("config", [PROJECTED, CONFIGS["sum"], SpectralPenalty.Config()])
def test_statistics_of_batch_norms_are_those_of_a_pass_without_penalty(
    config: PenaltyOptions, freeze_norm: bool
) -> None:
    torch.manual_seed(0)
    encoder = WideResNet.Config(depth=10, width=1).build((3, 8, 8))
    plain, x = copy.deepcopy(encoder), torch.randn(4, 3, 8, 8)
    z, penalty = dataclasses.replace(config, freeze_norm=freeze_norm).build()(encoder, x)
    assert torch.equal(z, plain(x))
    penalty.backward()
    for name, value in plain.state_dict().items():
        assert torch.equal(value, encoder.state_dict()[name]), name
    gradients = {name: p.grad for name, p in encoder.named_parameters()}
    assert all(g.isfinite().all() for g in gradients.values() if g is not None)
    assert {name for name, g in gradients.items() if g is None} <= {"bn.bias"}


@pytest.mark.parametrize("config", ALL)
def test_penalty_of_a_sample_does_not_depend_on_the_others(config: PenaltyOptions) -> None:
    torch.manual_seed(0)
    layers = nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 1)
    encoder, x = nn.Sequential(*layers), torch.randn(16, 2)
    f = Linearization(encoder, x)
    (slope,) = torch.autograd.grad(config.build().norm(f)[0], f.x, allow_unused=True)
    assert slope is None or slope[1:].count_nonzero() == 0


@pytest.mark.parametrize("config", ALL)
def test_mixed_precision_does_not_touch_the_penalty(config: PenaltyConfig) -> None:
    torch.manual_seed(0)
    encoder, x, penalty = ResFFN(2, depth=2, width=8), torch.randn(5, 2), config.build()
    rounded = x.bfloat16()
    cases = []
    for inputs, enabled in ((x, False), (x, True), (rounded.float(), False), (rounded, True)):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            cases.append(penalty(encoder, inputs))
    assert all(part.dtype == torch.float32 for case in cases for part in case)
    for plain, mixed in (cases[:2], cases[2:]):
        assert all(torch.equal(a, b) for a, b in zip(plain, mixed, strict=True))


def test_dropout_is_drawn_once_for_features_and_jacobian() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(2, 50, bias=False).double()
    x = torch.randn(3, 2, dtype=torch.float64)
    for name in ("frobenius", "spectral", "sum"):
        z, penalty = CONFIGS[name].build()(nn.Sequential(linear, nn.Dropout(0.5)), x)
        mask = z / linear(x)
        norms = torch.stack([NORMS[name](row[:, None] * linear.weight) for row in mask])
        assert 0 < mask.count_nonzero() < mask.numel()
        torch.testing.assert_close(penalty, (norms - 1).square().mean())


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("penalty=none", NoPenalty.Config()),
        ("penalty=spectral", SpectralPenalty.Config()),
        ("penalty.weight=0.1", FrobeniusPenalty.Config(weight=0.1)),
        ("penalty.sided=one", FrobeniusPenalty.Config(sided="one")),
    ],
)
def test_penalty_can_be_set_by_name(assignment: str, expected: PenaltyConfig) -> None:
    config = override(DensitySoftmax.Config(), assignment)
    assert config.penalty == expected
    assert from_dict(DensitySoftmax.Config, to_dict(config)) == config


@pytest.mark.parametrize(
    ("config", "option"),
    [
        (FrobeniusPenalty.Config, {"weight": -1.0}),
        (SumPenalty.Config, {"every": 0}),
        (FrobeniusPenalty.Config, {"num_projections": 0}),
        (SpectralPenalty.Config, {"iterations": 0}),
    ],
)
def test_senseless_options_are_refused_by_name(
    config: type[PenaltyConfig], option: dict[str, float]
) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        config(**option)
