"""Do the guarantees of policies and monitors hold? decisions_data.py shows what they are worth.

    python benchmarks/decisions.py [--streams N]

It simulates the coverage of sets and the bound on errors over 500 random splits,
and how many of N streams of 5,000 inputs without any change ever raise an alarm, each with 500
calibration samples of its own; beside it the same bets on p-values against these samples alone.
"""

from __future__ import annotations

import argparse
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from density_softmax.decide.conformal import (
    ConformalSets,
    GuaranteeError,
    LabelScore,
    Quantiles,
)
from density_softmax.decide.martingale import Bag, Bets
from density_softmax.decide.monitor import ALARMING
from density_softmax.decide.risk import Abstention

FALSE_ALARMS, LENGTH, NUM_CALIBRATION = 0.01, 5000, 500
NUM_SPLITS, AT_ONCE = 500, 20
Floats = NDArray[np.float64]


class Predicted(NamedTuple):
    """A prediction of arrays."""

    probs: Floats
    aleatoric: Floats
    epistemic: Floats

    def rows(self, chosen: NDArray[np.int64]) -> Predicted:
        """Some of its rows."""
        return Predicted(*(values[chosen] for values in self))


def world(count: int, rng: np.random.Generator) -> tuple[Predicted, NDArray[np.int64]]:
    """Five classes around the corners of a simplex, and a classifier that is too sharp."""
    y = rng.integers(0, 5, count)
    x = rng.standard_normal((count, 5)) + 2.5 * np.eye(5)[y]
    powers = np.exp(3.0 * (x - x.max(1, keepdims=True)))
    return Predicted(powers / powers.sum(1, keepdims=True), x[:, 0], np.square(x).sum(1)), y


def coverage_of_sets(score: LabelScore, coverage: float = 0.9) -> tuple[float, float]:
    """The mean share of covered labels over random splits, and its standard error."""
    rng, shares = np.random.default_rng(0), []
    for _ in range(NUM_SPLITS):
        p, y = world(NUM_CALIBRATION + 1000, rng)
        true = score(p.probs)[np.arange(len(y)), y]
        quantiles = Quantiles.of(true[:NUM_CALIBRATION], coverage, None, 5)
        sets = ConformalSets(score, coverage, quantiles)(p.probs[NUM_CALIBRATION:])
        shares.append(sets[np.arange(1000), y[NUM_CALIBRATION:]].mean())
    return float(np.mean(shares)), float(np.std(shares) / math.sqrt(NUM_SPLITS))


def violations_of_risk(max_error: float) -> tuple[float, float, float]:
    """Shares of random splits in which the bound is violated or refused, and of answered inputs."""
    big, y = world(400_000, np.random.default_rng(1))
    sure = big.probs.max(1)
    order = np.argsort(-sure)
    risk = np.cumsum((big.probs.argmax(1) != y)[order]) / np.arange(1, len(order) + 1)
    violated, refused = 0, 0
    answered: list[float] = []
    for split in range(NUM_SPLITS):
        p, y = world(NUM_CALIBRATION, np.random.default_rng(2 + split))
        wrong = p.probs.argmax(1) != y
        try:
            found = Abstention.of(p.probs.max(1), wrong, max_error, 0.95, seed=split)
        except GuaranteeError:
            refused += 1
            continue
        count = np.searchsorted(-sure[order], -found.threshold, side="right")
        violated += risk[count - 1] > max_error
        answered.append(float(count / len(order)))
    return violated / NUM_SPLITS, refused / NUM_SPLITS, float(np.mean(answered or [0.0]))


def highest_evidence(streams: int, rng: np.random.Generator, fixed: bool) -> Floats:
    """The most evidence that each of many streams without a change ever shows, (streams,).

    Args:
        streams: how many.
        rng: draws two scores that depend on each other, as epistemic score and confidence do.
        fixed: take p-values against calibration samples alone.
    """

    def draw(count: int) -> Floats:
        z = rng.standard_normal((2, streams, count))
        return np.stack([z[0], 0.5 * z[0] + z[1]])

    calibration = draw(NUM_CALIBRATION)
    bags = [_bags(scores) for scores in calibration]
    bets = [Bets.of(streams) for _ in ALARMING]
    found = np.full(streams, -math.inf)
    for _ in range(0, LENGTH, AT_ONCE):
        for scores, bag, bet, known in zip(draw(AT_ONCE), bags, bets, calibration, strict=True):
            p = _fixed_p_values(known, scores, rng) if fixed else bag.p_values(scores, rng)
            found = np.maximum(found, bet.update(p).max(1))
    return found - math.log(len(ALARMING))


def _bags(calibration: Floats) -> Bag:
    """The bags of many streams as one."""
    each = [vars(Bag.of(scores, seed=seed)) for seed, scores in enumerate(calibration)]
    return Bag(**{name: np.stack([bag[name] for bag in each]) for name in each[0]})


def _fixed_p_values(known: Floats, scores: Floats, rng: np.random.Generator) -> Floats:
    """(#{calibration > score} + U) / (n + 1)."""
    above = np.stack(
        [len(a) - np.searchsorted(np.sort(a), b) for a, b in zip(known, scores, strict=True)]
    )
    return np.asarray((above + rng.random(above.shape)) / (known.shape[1] + 1))


def simulate(streams: int) -> None:
    """Print what was promised beside what was found."""
    print(f"coverage of 0.9-sets, {NUM_SPLITS} splits, {NUM_CALIBRATION} calibration samples")
    for kind in ("lac", "aps", "raps"):
        for randomised in (False, True)[: 1 + (kind != "lac")]:
            mean, error = coverage_of_sets(LabelScore(kind, randomised))
            print(f"  {kind}{', randomised' * randomised}: {mean:.4f} ± {error:.4f}")
    for max_error in (0.05, 0.08):
        violated, refused, answered = violations_of_risk(max_error)
        print(
            f"max_error={max_error}: violated in {violated:.1%} of the splits, refused in "
            f"{refused:.1%}, {answered:.1%} answered otherwise"
        )
    print(f"{streams} streams of {LENGTH} inputs without a change, {NUM_CALIBRATION} samples each")
    for fixed in (False, True):
        highest = highest_evidence(streams, np.random.default_rng(3), fixed)
        shares = {rate: (highest >= -math.log(rate)).mean() for rate in (0.01, 0.05, 0.2)}
        said = ", ".join(f"{share:.2%} at {rate}" for rate, share in shares.items())
        kind = "calibration samples alone" if fixed else "growing bag"
        print(f"  ever an alarm, p-values against {kind}: {said}")


def main() -> None:
    """Simulate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=2000, help="streams to simulate")
    simulate(parser.parse_args().streams)


if __name__ == "__main__":
    main()
