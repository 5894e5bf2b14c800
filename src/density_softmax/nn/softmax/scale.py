"""From typicality to factors in (0, 1] on the logits: modules whose constants are buffers.

Every scale is monotone in the log density. Those that can reach 1 on typical data and 0 far
away keep both halves of Theorem 1; `max` and `range` are the paper's and its code's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn

from density_softmax.config import ConfigError, Family
from density_softmax.nn.execution import Derived, at_least_float32, full_precision
from density_softmax.nn.softmax.budget import FOLDS, all_rows, cross_scaled, sharpest_decay
from density_softmax.nn.softmax.head import fit_temperature
from density_softmax.training import folds

# From the indices of some samples to the log densities of all, (samples,): what these are divided
# by and compared with comes from the given ones alone.
LogProb = Callable[[Tensor], Tensor]
# No budget pays for more than a temperature of e² times the best one.
LARGEST_LOG_TEMPERATURE = 2.0


class Scale(nn.Module, ABC):
    """log p(z) ↦ factor in (0, 1].

    Attributes:
        fitted_on: which data the constants come from.
    """

    fitted_on: ClassVar[Literal["train", "heldout"]] = "train"

    def forward(self, log_prob: Tensor) -> Tensor:
        """The factor of each sample; never 0, so that it stays in (0, 1]."""
        with full_precision(log_prob):
            factor = self.log_factor(at_least_float32(log_prob)).exp()
            return factor.clamp(torch.finfo(torch.float32).tiny, 1.0)

    @abstractmethod
    def log_factor(self, log_prob: Tensor) -> Tensor:
        """The logarithm of the factor, before the factor is clamped to (0, 1]."""

    def fit(self, log_prob: LogProb, logits: Tensor, y: Tensor) -> float:
        """Set the constants from in-domain data; returns the temperature that goes with them.

        Args:
            log_prob: the log densities of all samples, from constants of those that it is given.
            logits: at temperature 1, (samples, classes).
            y: the classes, (samples,).
        """
        return 1.0


class ScaleConfig(Family, ABC):
    """The family of scales."""

    @abstractmethod
    def build(self) -> Scale:
        """A scale whose constants are not yet fitted."""


@final
class ConstantScale(Scale):
    """The same factor for every input: a temperature, which ignores the density."""

    @dataclass(frozen=True)
    class Config(ScaleConfig, kind="constant"):
        """The factor; 1 leaves the softmax as it is."""

        factor: float = 1.0

        def __post_init__(self) -> None:
            if not 0 < self.factor <= 1:
                raise ConfigError(f"factor={self.factor}: choose one above 0 and up to 1")

        def build(self) -> ConstantScale:
            """A scale that needs no fitting."""
            return ConstantScale(self.factor)

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.constant = math.log(factor)

    def log_factor(self, log_prob: Tensor) -> Tensor:
        """The same for every sample."""
        return torch.full_like(log_prob, self.constant)


@final
class TemperatureScale(Scale):
    """The factor 1 for every input: temperature scaling, the control without a density.

    A decay that may cost some in-domain likelihood is to be compared with a temperature that may:
    with a budget, it is the highest whose held-out NLL stays within that of the best one.
    """

    fitted_on = "heldout"

    @dataclass(frozen=True)
    class Config(ScaleConfig, kind="temperature"):
        """The budget.

        Attributes:
            budget: the share of the held-out NLL that may be given up in-domain.
        """

        budget: float = 0.0

        def __post_init__(self) -> None:
            _check_budget(self.budget)

        def build(self) -> TemperatureScale:
            """A scale of which only the temperature is fitted."""
            return TemperatureScale(self.budget)

    def __init__(self, budget: float = 0.0) -> None:
        super().__init__()
        self.budget = budget

    def log_factor(self, log_prob: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(log_prob)

    def fit(self, log_prob: LogProb, logits: Tensor, y: Tensor) -> float:
        """The temperature alone."""
        best = fit_temperature(logits, y)
        if self.budget == 0:
            return best
        scaled = cross_scaled(logits, y)
        everywhere = torch.ones(len(y), dtype=torch.float64, device=logits.device)
        decay = sharpest_decay(everywhere, scaled, y, self.budget, LARGEST_LOG_TEMPERATURE)
        return best * math.exp(decay)


@final
class MaxScale(Scale):
    """exp(log p − max log p): Algorithm 2 in the log domain."""

    largest: Tensor

    @dataclass(frozen=True)
    class Config(ScaleConfig, kind="max"):
        """No settings."""

        def build(self) -> MaxScale:
            """An unfitted scale."""
            return MaxScale()

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros(()))

    def log_factor(self, log_prob: Tensor) -> Tensor:
        """log p − max log p over the training data."""
        return log_prob - self.largest

    def fit(self, log_prob: LogProb, logits: Tensor, y: Tensor) -> float:
        """The largest training log density."""
        self.largest.copy_(log_prob(all_rows(y)).max())
        return 1.0


@final
class RangeScale(Scale):
    """exp(low + (high − low)(log p − min)/(max − min)): the rule of the paper's code."""

    smallest: Tensor
    largest: Tensor

    @dataclass(frozen=True)
    class Config(ScaleConfig, kind="range"):
        """The range of log factors on the training data.

        Attributes:
            low: that of the least likely training sample (CIFAR-10: −.55).
            high: that of the likeliest (CIFAR-10: −.45).
            averaged: give every input the mean factor of the training data, which shows how much
                of the rule is a constant temperature.
        """

        low: float = -0.55
        high: float = -0.45
        averaged: bool = False

        def __post_init__(self) -> None:
            if not self.low < self.high <= 0:
                raise ConfigError(f"scale range [{self.low}, {self.high}]: need low < high <= 0")

        @property
        def middle(self) -> float:
            """The factor half-way through the range, exp(½(low + high)).

            The mean over the training data lies in the range too, above the middle where a few
            unlikely samples set its lower end: .63 in place of .61 on CIFAR-10.
            """
            return math.exp((self.low + self.high) / 2)

        def build(self) -> Scale:
            """An unfitted scale."""
            return AveragedRangeScale(self) if self.averaged else RangeScale(self)

    def __init__(self, config: Config | None = None) -> None:
        super().__init__()
        config = config or RangeScale.Config()
        self.low, self.high = config.low, config.high
        self.register_buffer("smallest", torch.zeros(()))
        self.register_buffer("largest", torch.ones(()))

    def log_factor(self, log_prob: Tensor) -> Tensor:
        """The log density, moved linearly into the range."""
        width = (self.largest - self.smallest).clamp_min(torch.finfo(torch.float32).eps)
        share = (log_prob - self.smallest) / width
        return self.low + (self.high - self.low) * share

    def fit(self, log_prob: LogProb, logits: Tensor, y: Tensor) -> float:
        """The extremes of the training log density."""
        found = log_prob(all_rows(y))
        # Finite where the density underflowed: all other samples are then at the top of the range.
        self.smallest.copy_(found.min().clamp_min(torch.finfo(torch.float32).min))
        self.largest.copy_(found.max())
        return 1.0


@final
class AveragedRangeScale(Scale):
    """The mean factor of the range scale for every input, a temperature in place of the density."""

    mean: Tensor

    def __init__(self, config: RangeScale.Config) -> None:
        super().__init__()
        self.range = RangeScale(config)
        self.register_buffer("mean", torch.ones(()))

    def log_factor(self, log_prob: Tensor) -> Tensor:
        """The same for every sample."""
        return self.mean.log().expand_as(log_prob)

    def fit(self, log_prob: LogProb, logits: Tensor, y: Tensor) -> float:
        """The range, then the mean over the training data."""
        temperature = self.range.fit(log_prob, logits, y)
        self.mean.copy_(self.range(log_prob(all_rows(y))).mean())
        return temperature


@final
class QuantileScale(Scale):
    """A decay in the surprise u = max(0, (q − log p) / IQR): exp(−c·t(u) − f·t(v)).

    t(u) = ((1+u)^a − 1)/a. The shapes are a = 1, exponential, exp(−c·u); a → 0, power, (1+u)^(−c);
    and a = ¼ between them.

    q and IQR are a quantile and the interquartile range of held-out log densities: data above q
    keep the factor 1 exactly. The temperature is that of temperature scaling, and the decay c the
    sharpest that held-out data can afford: in-domain likelihood alone says little about how fast
    to lose confidence elsewhere, but it says what a decay costs. Affordable is a decay whose NLL,
    plus two standard errors of the difference, is at most `budget` above that of temperature
    scaling, relative to the latter. So that this holds on fresh data, each sample is judged by
    constants and a temperature of other samples; few samples have a large standard error, and
    vouch only for a small decay. A temperature refitted to the decay would win some of the cost
    back by sharpening all that looks typical, shifted data included. `steepest` bounds c.

    v is the surprise beyond twice that of the least likely held-out sample. That costs in-domain
    data nothing, so its decay f is a constant: it leads to the uniform prediction where c is too
    small to. Begun at the least likely held-out sample, it would cost fresh samples a fifth of the
    budget where there are few.

    For the same budget a slower tail spends more of it on mild surprises, which is where corrupted
    images are. With a > 0 the factor outruns any polynomial growth of the logits far away; the
    power tail does so only if c + f > ½, where log p falls quadratically and the logits grow
    linearly.
    """

    fitted_on = "heldout"
    threshold: Tensor
    spread: Tensor
    farthest: Tensor
    decay: Tensor

    @dataclass(frozen=True)
    class Config(ScaleConfig, kind="quantile"):
        """The rule by which the constants are set.

        Attributes:
            quantile: q, the share of typical data that is treated as surprising.
            budget: the share of the held-out NLL that may be given up in-domain.
            tail: the shape of the decay.
            steepest: the most that a surprise of one interquartile range takes off log factors.
            far: f, the decay far beyond all held-out data.
        """

        quantile: float = 0.1
        budget: float = 0.03
        tail: Literal["stretched", "exponential", "power"] = "stretched"
        steepest: float = 1.0
        far: float = 0.5

        def __post_init__(self) -> None:
            if not 0 < self.quantile < 1:
                raise ConfigError(f"quantile={self.quantile}: choose one between 0 and 1")
            _check_budget(self.budget)
            if self.steepest <= 0:
                raise ConfigError(f"steepest={self.steepest}: choose a number above 0")
            if self.far < 0:
                raise ConfigError(f"far={self.far}: choose 0 or more")

        def build(self) -> QuantileScale:
            """An unfitted scale."""
            return QuantileScale(self)

    def __init__(self, config: Config | None = None) -> None:
        super().__init__()
        config = config or QuantileScale.Config()
        self.quantile, self.budget, self.tail = config.quantile, config.budget, config.tail
        self.far = config.far
        # c such that a surprise of 1 takes `steepest` off the log factor.
        self.largest_decay = config.steepest / self._stretch(torch.ones(())).item()
        self.register_buffer("threshold", torch.zeros(()))
        self.register_buffer("spread", torch.ones(()))
        self.register_buffer("farthest", torch.zeros(()))
        self.register_buffer("decay", torch.zeros(()))
        self._levels_and_decays = Derived(partial(_levels_and_decays, self.far))

    def surprise(self, log_prob: Tensor) -> Tensor:
        """How many interquartile ranges the log density lies below the quantile."""
        return self._below(self.threshold, log_prob)

    def log_factor(self, log_prob: Tensor) -> Tensor:
        """−c t(u) − f t(v)."""
        levels, decays = self._levels_and_decays(self.threshold, self.farthest, self.decay)
        # Both at once: a pair in the last dimension.
        return self._stretch(self._below(levels, log_prob.unsqueeze(-1))) @ decays

    def fit(self, log_prob: LogProb, logits: Tensor, y: Tensor) -> float:
        """The decay by cross-fitting, then quantiles and temperature of all samples."""
        stretched = torch.zeros(len(y), dtype=torch.float64, device=logits.device)
        for inside, outside in folds(len(y), FOLDS, device=y.device):
            found = log_prob(inside)
            self._set_quantiles(found[inside])
            stretched[outside] = self._stretch(self.surprise(found[outside])).double()
        scaled = cross_scaled(logits, y)
        self.decay.fill_(sharpest_decay(stretched, scaled, y, self.budget, self.largest_decay))
        self._set_quantiles(log_prob(all_rows(y)))
        return fit_temperature(logits, y)

    def _set_quantiles(self, log_prob: Tensor) -> None:
        levels = log_prob.new_tensor([self.quantile, 0.25, 0.75]).double()
        low, lower, upper = torch.quantile(log_prob.double(), levels)
        self.threshold.copy_(low)
        self.spread.copy_((upper - lower).clamp_min(torch.finfo(torch.float32).eps))
        farthest = 2 * log_prob.min().double() - low
        self.farthest.copy_(farthest.clamp_min(torch.finfo(torch.float32).min))

    def _below(self, level: Tensor, log_prob: Tensor) -> Tensor:
        below = (level - log_prob) / self.spread
        # Finite where the density underflowed, because no decay times infinity is NaN.
        return below.clamp(0.0, torch.finfo(torch.float32).max)

    def _stretch(self, surprise: Tensor) -> Tensor:
        if self.tail == "exponential":
            return surprise
        if self.tail == "power":
            return surprise.log1p()
        return ((1 + surprise) ** 0.25 - 1) / 0.25


def _levels_and_decays(
    far: float, threshold: Tensor, farthest: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    """Below what u and v begin, (2,), and −c and −f, (2,)."""
    return torch.stack([threshold, farthest]), -torch.stack([decay, torch.full_like(decay, far)])


def _check_budget(budget: float) -> None:
    if budget < 0:
        raise ConfigError(f"budget={budget}: choose 0 or more, a share of the held-out NLL")
