import json

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from density_softmax.config import ConfigError, from_dict, override, to_dict
from density_softmax.training import (
    SGD,
    Adam,
    Constant,
    Descent,
    OneCycle,
    Optimizer,
    Schedule,
    Steps,
)

SCHEDULES = [Constant(), Steps(), Steps(warmup_epochs=0.0), OneCycle(), OneCycle(rise=0.75)]


def test_steps_of_the_nominal_run_fall_at_the_milestones() -> None:
    schedule = Steps((60, 120, 160), ratio=0.2, nominal_epochs=200)
    epochs = [59.99, 60, 119.99, 120, 159.99, 160, 200]
    factors = [schedule.factor(epoch, 200) for epoch in epochs]
    assert factors == pytest.approx([1, 0.2, 0.2, 0.04, 0.04, 0.008, 0.008])


@given(share=st.floats(0, 1), epochs=st.integers(1, 1000))
def test_milestones_scale_with_the_length_of_the_run(share: float, epochs: int) -> None:
    nominal = Steps((64, 128), ratio=0.1, warmup_epochs=0.0, nominal_epochs=256)
    assume(all(abs(share - milestone / 256) > 1e-9 for milestone in (64, 128)))
    assert nominal.factor(share * epochs, epochs) == nominal.factor(share * 256, 256)


@given(epoch=st.floats(0, 5))
def test_warmup_is_linear_and_then_over(epoch: float) -> None:
    schedule = Steps((60,), warmup_epochs=4.0)
    assert schedule.factor(epoch, 200) == pytest.approx(min(1.0, epoch / 4))


def test_one_cycle_rises_from_0_to_1_and_falls_back_to_0() -> None:
    factors = [OneCycle(rise=0.25).factor(epoch, 8) for epoch in (0, 1, 2, 5, 8)]
    assert factors == pytest.approx([0, 0.5, 1, 0.5, 0])


@given(rise=st.floats(0.01, 0.99), done=st.floats(0, 1))
def test_one_cycle_peaks_at_1(rise: float, done: float) -> None:
    schedule = OneCycle(rise)
    assert 0 <= schedule.factor(done * 30, 30) <= 1 + 1e-9
    assert schedule.factor(rise * 30, 30) == pytest.approx(1)


@given(rise=st.floats(0.01, 0.99), epoch=st.floats(0, 29.99))
def test_one_cycle_is_continuous(rise: float, epoch: float) -> None:
    schedule = OneCycle(rise)
    step = 1e-6
    slope = max(1 / rise, 1 / (1 - rise)) / 30
    jump = abs(schedule.factor(epoch + step, 30) - schedule.factor(epoch, 30))
    assert jump <= slope * step + 1e-9


@pytest.mark.parametrize("rise", [0.0, 1.0, -0.1, 1.5])
def test_one_cycle_without_two_flanks_is_refused(rise: float) -> None:
    with pytest.raises(ConfigError, match=f"rise={rise}: choose a share between 0 and 1"):
        OneCycle(rise)


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (SGD(), "lr=-1", "lr=-1.0: choose 0 or more"),
        (SGD(), "momentum=-1", "momentum=-1.0: choose 0 or more"),
        (SGD(), "momentum=0", "momentum=0: choose more than 0, or nesterov=false"),
        (Steps(), "nominal_epochs=0", "nominal_epochs=0: choose 1 or more"),
        (Steps(), "warmup_epochs=-1", "warmup_epochs=-1.0: choose 0 or more"),
    ],
)
def test_what_is_no_descent_is_refused(
    config: Optimizer | Schedule, change: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        override(config, change)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_no_schedule_exceeds_the_full_rate(schedule: Schedule) -> None:
    factors = [schedule.factor(step / 10, 20) for step in range(201)]
    assert min(factors) >= 0
    assert max(factors) == pytest.approx(1.0)


@pytest.mark.parametrize("optimizer", [Adam(0.3, 0.1), SGD(0.3, 0.5, False, 0.1)], ids=str)
def test_built_optimizer_has_the_configured_rates(optimizer: Optimizer) -> None:
    (group,) = optimizer.build([nn.Parameter(torch.ones(2))]).param_groups
    for name, value in to_dict(optimizer).items():
        assert name == "kind" or group[name] == value


def test_sgd_decay_is_the_gradient_of_half_the_squared_norm() -> None:
    weight = nn.Parameter(torch.tensor([2.0]))
    optimizer = SGD(lr=0.1, weight_decay=0.5).build([weight])
    weight.grad = torch.zeros(1)
    optimizer.step()
    # Nesterov's first step is (1 + momentum) times the gradient ½ · 2 = 1.
    assert weight.item() == pytest.approx(2 - 0.1 * 1.9)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("optimizer", [Adam(), SGD(weight_decay=1e-4)], ids=str)
def test_descent_survives_json(optimizer: Optimizer, schedule: Schedule) -> None:
    descent = Descent(7, 32, optimizer, schedule, accumulate=2, clip_norm=0.5)
    assert from_dict(Descent, json.loads(json.dumps(to_dict(descent)))) == descent


def test_descent_is_overridden_by_kind() -> None:
    descent = override(override(Descent(1), "schedule=one_cycle"), "schedule.rise=0.5")
    assert descent == Descent(1, schedule=OneCycle(0.5))


@pytest.mark.parametrize(
    ("num_samples", "expected"), [(10_000, 128), (400, 100), (200, 50), (100, 32), (5, 32)]
)
def test_a_small_split_gives_several_steps_an_epoch(num_samples: int, expected: int) -> None:
    assert Descent(epochs=1, min_batches=4).samples_per_step(num_samples) == expected
    assert Descent(epochs=1, batch_size=16, min_batches=4).samples_per_step(num_samples) == 16
