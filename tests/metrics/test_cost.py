from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn

from density_softmax.metrics import (
    Latency,
    interleaved_latency,
    is_noisy,
    latency_ratio,
    latency_spread,
    num_parameters,
)
from density_softmax.metrics import cost as cost_module


class Machine:
    """A clock under our control: a call takes its work, times the machine's slowness."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.slowness, self.log = 0.0, 1.0, []
        monkeypatch.setattr(cost_module, "perf_counter", self.read)

    def read(self) -> float:
        self.log.append("clock")
        return self.now

    def call(self, name: str, work: float) -> Callable[[], None]:
        def run() -> None:
            self.log.append(name)
            self.now += work * self.slowness

        return run

    @property
    def order(self) -> list[str]:
        return [entry for entry in self.log if entry not in {"clock", "synchronize"}]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_shared_and_frozen_parameters_count_once() -> None:
    layer = nn.Linear(3, 2)
    tied = nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(2, 3).requires_grad_(False))
    assert num_parameters(tied) == (3 * 2 + 2) + (2 * 3 + 3)


def test_buffers_are_not_parameters() -> None:
    assert num_parameters(nn.BatchNorm1d(5)) == 2 * 5


def test_each_round_runs_every_call_once_and_each_leads_equally_often(machine: Machine) -> None:
    interleaved_latency({n: machine.call(n, 1.0) for n in "abc"}, repeats=6, warmup=0)
    rounds = [machine.order[i : i + 3] for i in range(0, 18, 3)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    for place in range(3):
        assert set(Counter(r[place] for r in rounds).values()) == {2}


def test_latency_is_the_time_of_the_call_alone(machine: Machine) -> None:
    calls = {"short": machine.call("short", 1.0), "long": machine.call("long", 64.0)}
    latencies = interleaved_latency(calls, repeats=5)
    assert latencies["short"].rounds == (1.0,) * 5
    assert latencies["long"].rounds == (64.0,) * 5


def test_warmup_rounds_run_and_do_not_count(machine: Machine) -> None:
    work = iter([100.0, 50.0, 1.0, 2.0, 3.0])

    def call() -> None:
        machine.now += next(work)

    assert interleaved_latency({"call": call}, repeats=3, warmup=2)["call"].rounds == (1, 2, 3)


def test_latency_summarises_by_median_and_quartiles() -> None:
    latency = Latency((4.0, 0.0, 3.0, 1.0, 1000.0))
    assert (latency.low, latency.median, latency.high) == (1.0, 3.0, 4.0)


def test_single_round_is_its_own_summary() -> None:
    latency = Latency((2.0,))
    assert latency.low == latency.median == latency.high == 2.0


def test_ratio_is_exact_on_a_machine_that_slows_down_every_round(machine: Machine) -> None:
    def slowing(name: str, work: float) -> Callable[[], None]:
        def run() -> None:
            machine.slowness = 2.0 ** (len(machine.order) // 2)  # two calls make a round
            machine.call(name, work)()

        return run

    calls = {"reference": slowing("reference", 1.0), "slow": slowing("slow", 3.0)}
    ratios = latency_ratio(interleaved_latency(calls, repeats=10), "reference")
    assert ratios == {"reference": 1.0, "slow": 3.0}


def test_ratio_pairs_the_times_of_one_round() -> None:
    latencies = {"a": Latency((1.0, 10.0, 100.0)), "b": Latency((4.0, 20.0, 100.0))}
    assert latency_ratio(latencies, "a") == {"a": 1.0, "b": 2.0}
    assert latency_ratio(latencies, "b") == {"a": 0.5, "b": 1.0}


def test_spread_is_the_interquartile_range_of_the_ratios_of_rounds() -> None:
    reference = Latency((1.0, 10.0, 100.0, 2.0, 1.0))
    ratios = (1.0, 2.0, 3.0, 5.0, 90.0)
    pairs = zip(ratios, reference.rounds, strict=True)
    other = Latency(tuple(ratio * seconds for ratio, seconds in pairs))
    assert latency_spread({"a": reference, "b": other}, "a") == {"a": 0.0, "b": 3.0}


def test_clock_is_read_after_cuda_has_finished(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: machine.log.append("synchronize"))
    interleaved_latency({"call": machine.call("call", 1.0)}, repeats=1, warmup=0, device="cuda")
    assert machine.log == ["synchronize", "clock", "call", "synchronize", "clock"]


@pytest.mark.parametrize(("repeats", "warmup"), [(0, 0), (1, -1)])
def test_too_few_rounds_are_refused(repeats: int, warmup: int) -> None:
    with pytest.raises(ValueError, match=f"{repeats} rounds after {warmup} of warm-up"):
        interleaved_latency({"call": lambda: None}, repeats=repeats, warmup=warmup)


def test_nothing_to_time_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot time 0 calls"):
        interleaved_latency({})


def test_unknown_reference_lists_the_known() -> None:
    with pytest.raises(ValueError, match="no latency of 'erm': choose one of a, b"):
        latency_ratio({"a": Latency((1.0,)), "b": Latency((1.0,))}, "erm")


def test_latencies_of_different_measurements_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\{'a': 1, 'b': 2\}; take latencies of one"):
        latency_ratio({"a": Latency((1.0,)), "b": Latency((1.0, 1.0))}, "a")


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [((2.0, 2.1) * 4, False), ((2.0, 2.0, 9.0, 40.0) * 2, True), ((float("nan"),) * 8, True)],
)
def test_rounds_that_disagree_tell_a_busy_machine(
    rounds: tuple[float, ...], expected: bool
) -> None:
    latencies = {"reference": Latency((1.0,) * 8), "method": Latency(rounds)}
    ratio, spread = (f(latencies, "reference") for f in (latency_ratio, latency_spread))
    assert is_noisy(ratio["method"], spread["method"]) is expected
    assert not is_noisy(ratio["reference"], spread["reference"])
