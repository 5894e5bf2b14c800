"""Test martingales: p-values of a stream that are independent and uniform, and bets against that.

All arrays may have leading dimensions, one entry for each of many streams.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from density_softmax.decide.conformal import Floats, Ints

MOST_BINS = 64
# Bets κ p^(κ − 1) on small p-values, and 1 + ε (1 − 2p) on small (ε > 0) or large ones.
POWERS = np.array([0.1, 0.25, 0.5, 0.75])
SLOPES = np.array([-1.0, -0.5, 0.5, 1.0])
# A bet on the histogram of the p-values so far: its bins, its caution, and how fast it forgets.
BINS, PRIOR, MEMORY = 10, 5.0, 500.0
MOST_AT_ONCE = 256  # inputs
NUM_BETS = len(POWERS) + len(SLOPES) + 1


@final
@dataclass
class Bag:
    """Counts of calibration samples and of the stream so far, in bins between calibration scores.

    P-values against calibration samples alone are not independent: over thousands of inputs they
    tell by how much these samples miss the true distribution. Here every input joins the bag
    after its p-value was taken. If edges are order statistics of calibration scores, a bin's
    probability has a Dirichlet distribution, with the number of gaps between these scores as its
    parameters. The next input is therefore in bin b with probability exactly
    count(b) / Σ count, given all before, and

        p = (Σ_{b' > b} count(b') + U · count(b)) / Σ count,    U uniform,

    is uniform and independent of all before. Equal scores are ordered at random.

    Args:
        edges: ascending, (..., bins − 1).
        breaks: how equal scores compare with each edge: those with a larger number are above it.
        counts: (..., bins).
    """

    edges: Floats
    breaks: Floats
    counts: Floats

    @classmethod
    def of(cls, scores: Floats, most: int = MOST_BINS, seed: int = 0) -> Bag:
        """Before the stream begins.

        Args:
            scores: of the calibration samples, (n,); infinite if not finite.
            most: how many bins to make, narrower ones for larger scores.
            seed: decides how equal scores are ordered.
        """
        breaks = np.random.default_rng(seed).random(len(scores))
        order = np.lexsort([breaks, scores])
        # Which ranks are edges must not depend on the scores, or bins would not be Dirichlet.
        ranks = _edge_ranks(len(scores), most - 1)
        counts = np.diff(ranks, prepend=-1, append=len(scores)).astype(np.float64)
        return cls(scores[order[ranks]], breaks[order[ranks]], counts)

    def p_values(self, scores: Floats, rng: np.random.Generator) -> Floats:
        """Take the p-values of the next inputs, one after another, (..., inputs).

        Args:
            scores: higher = more unusual, (..., inputs); infinite if not finite.
            rng: breaks ties.
        """
        breaks, shares = rng.random((2, *scores.shape))
        edges, score = self.edges[..., None, :], scores[..., None]
        tied = (score == edges) & (breaks[..., None] > self.breaks[..., None, :])
        bins = ((score > edges) | tied).sum(-1)[..., None]
        each = np.arange(self.counts.shape[-1])
        here = (bins == each).astype(np.float64)
        before = self.counts[..., None, :] + here.cumsum(-2) - here
        weighted = before * ((each > bins) + shares[..., None] * here)
        self.counts = self.counts + here.sum(-2)
        # Never 0, where bets on small p-values would be infinite.
        return np.maximum(weighted.sum(-1) / before.sum(-1), 1e-300)


@final
@dataclass
class Bets:
    """The capital of someone who bets against p-values being uniform, from an initial 1.

    The probability that it ever reaches c is at most 1/c if they are (Ville). The capital is a
    mixture of bets and of the times at which they begin: by step t, all but 1/log₂(t + 2) of it
    has been put on the bets, so that a late change is found nearly as fast as an early one.

    Args:
        steps: how many p-values there were.
        asleep: log of the capital that no bet has yet, (...).
        awake: log of the capital on each bet, (..., bets).
        histogram: how often each tenth of the p-values came, older ones counting less.
    """

    steps: int
    asleep: Floats
    awake: Floats
    histogram: Floats

    @classmethod
    def of(cls, *streams: int) -> Bets:
        """Before the first p-value.

        Args:
            streams: leading dimensions, if there are many streams.
        """
        awake = np.full((*streams, NUM_BETS), -math.inf)
        return cls(0, np.zeros(streams), awake, np.zeros((*streams, BINS)))

    def update(self, p: Floats) -> Floats:
        """Bet on the next p-values, one after another.

        Args:
            p: (..., inputs).

        Returns:
            The log of the capital after each, (..., inputs).
        """
        return np.concatenate([self._bet(part) for part in _parts(p)], axis=-1)

    def _bet(self, p: Floats) -> Floats:
        """The capital on a bet is A_t = (A_{t−1} + S_t) f_t, where S_t begins to bet at step t.

        With F_t = Π f, it is A_t / F_t = A_0 + Σ_i S_i / F_{i−1}: a cumulative sum.
        """
        steps = self.steps + np.arange(1, p.shape[-1] + 1)
        log_size = np.log(np.log(np.arange(self.steps + 1, self.steps + p.shape[-1] + 2) + 1.0))
        asleep = self.asleep[..., None] + log_size[0] - log_size
        started = asleep[..., :-1] + np.log(-np.expm1(-np.diff(log_size)) / NUM_BETS)
        factors = np.cumsum(self._factors(p), axis=-2)
        before = np.concatenate([np.zeros_like(factors[..., :1, :]), factors[..., :-1, :]], axis=-2)
        added = [self.awake[..., None, :], started[..., None] - before]
        awake = np.logaddexp.accumulate(np.concatenate(added, axis=-2), axis=-2)[..., 1:, :]
        awake += factors
        self.steps, self.asleep, self.awake = int(steps[-1]), asleep[..., -1], awake[..., -1, :]
        return np.logaddexp(np.logaddexp.reduce(awake, axis=-1), asleep[..., 1:])

    def _factors(self, p: Floats) -> Floats:
        """The logs of the bets' factors, (..., inputs, bets)."""
        powers = np.log(POWERS) + (POWERS - 1) * np.log(p)[..., None]
        slopes = np.log1p(SLOPES * (1 - 2 * p[..., None]) * (1 - 1e-12))
        return np.concatenate([powers, slopes, self._learned(p)[..., None]], axis=-1)

    def _learned(self, p: Floats) -> Floats:
        """The logs of the factors by the histogram so far, which each p then joins."""
        bins = np.minimum((p * BINS).astype(np.int64), BINS - 1)[..., None]
        here = (bins == np.arange(BINS)).astype(np.float64)
        decay = (1 - 1 / MEMORY) ** np.arange(p.shape[-1] + 1.0)[:, None]
        joined = np.concatenate([self.histogram[..., None, :], here / decay[1:]], axis=-2)
        heights = decay * np.cumsum(joined, axis=-2)
        self.histogram = heights[..., -1, :]
        seen = heights[..., :-1, :] + PRIOR
        return np.log(BINS * (seen * here).sum(-1) / seen.sum(-1))


@final
@dataclass
class Watch:
    """One score of a stream, and the evidence that its distribution has changed.

    Args:
        start: the bag of calibration samples.
        bag: the same with the stream.
        bets: against the p-values of the stream.
    """

    start: Bag
    bag: Bag
    bets: Bets

    @classmethod
    def of(cls, start: Bag) -> Watch:
        """Before the stream begins.

        Args:
            start: the bag of calibration samples.
        """
        return cls(start, Bag(**vars(start)), Bets.of())

    @property
    def evidence(self) -> float:
        """The log of the capital that the bets have made."""
        total = np.logaddexp.reduce(self.bets.awake)
        return float(np.logaddexp(total, self.bets.asleep))

    def update(self, scores: Floats, rng: np.random.Generator) -> Floats:
        """The evidence after each of the next inputs, (inputs,)."""
        parts = _parts(scores)
        return np.concatenate([self.bets.update(self.bag.p_values(part, rng)) for part in parts])

    @classmethod
    def merged(cls, watches: Sequence[Watch]) -> Watch:
        """Of replicas: the bags together, and the largest capital divided by their number."""
        start = watches[0].start
        counts = start.counts + sum(watch.bag.counts - start.counts for watch in watches)
        best = max(watches, key=lambda watch: watch.evidence).bets
        steps, loss = sum(watch.bets.steps for watch in watches), math.log(len(watches))
        bets = Bets(steps, best.asleep - loss, best.awake - loss, best.histogram)
        return cls(start, Bag(start.edges, start.breaks, counts), bets)


def _parts(values: Floats) -> list[Floats]:
    """Pieces that fit into memory and do not underflow."""
    edges = range(MOST_AT_ONCE, values.shape[-1], MOST_AT_ONCE)
    return np.array_split(values, edges, axis=-1)


def _edge_ranks(count: int, most: int) -> Ints:
    """The ranks of calibration scores as edges: half evenly, half ever closer to the top."""
    if count <= most:
        return np.arange(count)
    even = count * np.arange(1, most // 2 + 1) / (most // 2 + 1)
    tail = count - np.geomspace(1, count / 2, most - most // 2)
    return np.unique(np.concatenate([even, tail]).astype(np.int64))
