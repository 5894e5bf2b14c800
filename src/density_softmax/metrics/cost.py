"""What a prediction costs: parameters and seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

__all__ = [
    "NOISY",
    "Latency",
    "interleaved_latency",
    "is_noisy",
    "latency_ratio",
    "latency_spread",
    "num_parameters",
]

# Of a ratio, the interquartile range from which on it is not to be believed.
NOISY = 0.25


class Latency(NamedTuple):
    """Seconds that one call took in each round of a measurement."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over rounds."""
        return float(np.median(self.rounds))

    @property
    def low(self) -> float:
        """The first quartile."""
        return float(np.quantile(self.rounds, 0.25))

    @property
    def high(self) -> float:
        """The third quartile."""
        return float(np.quantile(self.rounds, 0.75))


def num_parameters(module: nn.Module) -> int:
    """Count the scalars in the parameters, trained or frozen; shared ones count once.

    Args:
        module: any module.
    """
    return sum(parameter.numel() for parameter in module.parameters())


def interleaved_latency(
    calls: Mapping[str, Callable[[], object]],
    repeats: int = 30,
    warmup: int = 3,
    device: torch.device | str | None = None,
) -> dict[str, Latency]:
    """Time several calls against each other in one process.

    Every round runs each call once, starting one call later than the round before, so that a
    machine that speeds up, slows down or warms a cache treats all of them alike.

    Args:
        calls: what to time, by name.
        repeats: number of rounds that count.
        warmup: number of rounds before them that do not.
        device: that the calls run on; a CUDA device is synchronised around each call.
    """
    if not calls or repeats < 1 or warmup < 0:
        raise ValueError(
            f"cannot time {len(calls)} calls in {repeats} rounds after {warmup} of warm-up: "
            f"pass at least 1 call, 1 round and 0 of warm-up"
        )
    device = None if device is None else torch.device(device)
    names = list(calls)
    rounds = []
    for i in range(warmup + repeats):
        first = i % len(names)
        order = names[first:] + names[:first]
        rounds.append({name: _seconds(calls[name], device) for name in order})
    counted = rounds[warmup:]
    return {name: Latency(tuple(seconds[name] for seconds in counted)) for name in names}


def latency_ratio(latencies: Mapping[str, Latency], reference: str) -> dict[str, float]:
    """Return the median over rounds r of t_r / t_r(reference), by name.

    The two times of one round were taken within moments of each other, so that the load of the
    machine, which changes from round to round, cancels in their ratio.

    Args:
        latencies: of one measurement, by name.
        reference: the name to divide by.
    """
    ratios = _ratios(latencies, reference)
    return {name: float(np.median(rounds)) for name, rounds in ratios.items()}


def latency_spread(latencies: Mapping[str, Latency], reference: str) -> dict[str, float]:
    """Return the interquartile range of t_r / t_r(reference): how noisy `latency_ratio` is.

    Args:
        latencies: of one measurement, by name.
        reference: the name to divide by.
    """
    ratios = _ratios(latencies, reference)
    return {name: float(np.subtract(*np.quantile(r, [0.75, 0.25]))) for name, r in ratios.items()}


def is_noisy(ratio: float, spread: float) -> bool:
    """Whether the machine was too busy, or the calls too short, for a ratio to be believed.

    The rounds decide by themselves: on an idle machine they agree to a few percent, and what else
    runs there interrupts some calls and not others.

    Args:
        ratio: a `latency_ratio`.
        spread: its `latency_spread`.
    """
    return not spread <= NOISY * ratio


def _ratios(
    latencies: Mapping[str, Latency], reference: str
) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """t_r / t_r(reference) of every round r."""
    if reference not in latencies:
        raise ValueError(f"no latency of '{reference}': choose one of {', '.join(latencies)}")
    lengths = {name: len(latency.rounds) for name, latency in latencies.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"rounds do not match: {lengths}; take latencies of one measurement")
    base = np.array(latencies[reference].rounds)
    return {name: np.array(latency.rounds) / base for name, latency in latencies.items()}


def _seconds(call: Callable[[], object], device: torch.device | None) -> float:
    _synchronize(device)
    start = perf_counter()
    call()
    _synchronize(device)
    return perf_counter() - start


def _synchronize(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
