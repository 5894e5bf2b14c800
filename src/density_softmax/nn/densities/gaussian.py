"""Gaussian densities in closed form, from sums over one pass through the data."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from density_softmax.config import ConfigError
from density_softmax.nn.densities.base import (
    Density,
    DensityConfig,
    channel_squares,
    class_sums,
    log_height,
    mean_and_variance,
)
from density_softmax.nn.execution import Derived
from density_softmax.training import Estimate, Stage, Values
from density_softmax.types import Batch

# Features with a smaller norm have no direction.
SMALLEST_NORM = 1e-12
# The most that W m may be for W(z − m) to be computed as W z − W m: what float32 rounds then stays
# below a ten-thousandth of a standard deviation.
LARGEST_OFFSET = 2.0**7
# Shrinkages to choose from, besides none; the first is the least that float32 can use.
SHRINKAGES = tuple(2.0**-exponent for exponent in range(23, -1, -1))


class ClosedFormDensity(Density, ABC):
    """A density whose maximum-likelihood estimate is a function of sums over the data.

    It needs no standardiser: what whitens the features also puts them on one scale.
    The sums are float64, where products of float32 features are exact: what a mean far from zero
    then cancels is below the rounding of the features themselves. Covariances are the
    maximum-likelihood ones: divided by the number of samples, not by one less.
    """

    def stages(self) -> tuple[Stage, ...]:
        """One pass."""
        once = Estimate("density", self._statistics, self.estimate, on="features", mergeable=True)
        return (once,)

    def _statistics(self, batch: Batch) -> Values:
        return self.sums(batch.x.double(), batch.y)

    @abstractmethod
    def sums(self, z: Tensor, y: Tensor) -> Values:
        """The sums over a batch of features and labels."""

    @abstractmethod
    def estimate(self, total: Values) -> None:
        """Write the buffers from the sums over all data."""


class WhitenedDensity(ClosedFormDensity, ABC):
    """A density on whitened features, whose covariance is shrunk as held-out features ask for.

    With D the variances of the features over all the data and C = D^(−½) Σ D^(−½) = Q diag(λ) Qᵀ,
    the covariance is Σ(s) = D^½ ((1 − s) C + s I) D^½ and W = diag((1 − s) λ + s)^(−½) Qᵀ D^(−½).
    The shrinkage s is the one under which held-out features are most likely: nearly 0 for many
    samples, nearly 1 for fewer samples than features, where Σ has no inverse. `least_shrinkage`
    bounds it from below.

    Attributes:
        center: what is subtracted before whitening, (features,).
        whitening: W, (features, features).
        spectrum: λ, (features,).
        shrinkage: s, ().
        log_height: log|W| − ½ d log 2π, ().
    """

    center: Tensor
    whitening: Tensor
    spectrum: Tensor
    shrinkage: Tensor
    log_height: Tensor

    def __init__(self, num_features: int, least_shrinkage: float = 0.0) -> None:
        super().__init__()
        self.least_shrinkage = least_shrinkage
        self.register_buffer("center", torch.zeros(num_features))
        self.register_buffer("whitening", torch.eye(num_features))
        self.register_buffer("spectrum", torch.ones(num_features))
        self.register_buffer("shrinkage", torch.zeros(()))
        self.register_buffer("log_height", log_height(self.whitening))
        self._offset = Derived(whitened_center)

    def whitened(self, z: Tensor) -> Tensor:
        """W(z − m), (batch, features), in one operation where float32 allows it."""
        offset = self._offset(self.center, self.whitening)
        if offset is None:
            return F.linear(z - self.center, self.whitening)
        return F.linear(z, self.whitening, offset)

    def stages(self) -> tuple[Stage, ...]:
        """One pass over training features for Σ, one over held-out features for s."""
        choose = Estimate("shrinkage", self._squares, self.shrink, on="features", split="heldout")
        return (*super().stages(), choose)

    @abstractmethod
    def roots(self, z: Tensor) -> tuple[Tensor, ...]:
        """What the experts are sums of squares of, side by side (batch, roots)."""

    @abstractmethod
    def weights(self) -> tuple[Tensor, Tensor]:
        """How squares add up to the experts, (roots, experts), and what is added; both buffers."""

    def experts_of_floats(self, z: Tensor) -> Tensor:
        """Weighted sums of squares, (batch, experts)."""
        gather, height = self.weights()
        return torch.addmm(height, torch.cat(self.roots(z), dim=-1).square(), gather)

    @abstractmethod
    def residuals(self, z: Tensor, y: Tensor) -> Tensor:
        """What Σ is the covariance of, for features and their labels, (batch, features)."""

    def whiten(self, covariance: Tensor, variance: Tensor) -> None:
        """Write W, its height and λ for the smallest s that float32 can use.

        Args:
            covariance: Σ, (features, features).
            variance: D, (features,).
        """
        unit = torch.where(variance > 0, variance, 1.0).sqrt()
        spectrum, Q = torch.linalg.eigh(covariance / unit / unit[:, None])
        spectrum = spectrum.clamp_min(0.0)
        least = float(SHRINKAGES[0] if spectrum[0] < SHRINKAGES[0] else 0.0)
        shrunk = _shrunk(spectrum, least)
        self.whitening.copy_(Q.T / unit / shrunk.sqrt()[:, None])
        self.spectrum.copy_(spectrum)
        self.shrinkage.fill_(least)
        log_unit = 0.5 * len(unit) * math.log(2 * math.pi) + unit.log().sum()
        self.log_height.copy_(-0.5 * shrunk.log().sum() - log_unit)

    def _squares(self, batch: Batch) -> Values:
        """The sums of squares along the rows of W."""
        residuals = self.residuals(batch.x.double(), batch.y)
        squares = (residuals @ self.whitening.double().T).square().sum(0)
        return {"squares": squares, "count": squares.new_tensor(len(residuals))}

    def shrink(self, total: Values) -> None:
        """Take the s with the highest held-out likelihood −½ Σ_i (log λ_i(s) + v_i / λ_i(s))."""
        spectrum, before = self.spectrum.double(), self.shrinkage.item()
        unshrunk = _shrunk(spectrum, before)
        v = total["squares"] / total["count"] * unshrunk  # held-out variances along Q
        # Features that never vary, as dead units, are likeliest without any variance.
        alive = (spectrum > SHRINKAGES[0]) | (v > SHRINKAGES[0])

        def cost(s: float) -> float:
            shrunk = _shrunk(spectrum, s)
            return (shrunk.log() + v / shrunk)[alive].sum().item()

        least = max(before, self.least_shrinkage)
        self.shrink_to(min({least, *(s for s in SHRINKAGES if s > least)}, key=cost))

    def shrink_to(self, s: float) -> None:
        """Shrink what `estimate` wrote, by s or by the least that float32 can use."""
        spectrum, before = self.spectrum.double(), self.shrinkage.item()
        s = max(s, before)
        ratio = _shrunk(spectrum, before) / _shrunk(spectrum, s)
        self.whitening.mul_(ratio.sqrt()[:, None])
        self.log_height.add_(0.5 * ratio.log().sum())
        self.shrinkage.fill_(s)


def directions(z: Tensor) -> Tensor:
    """z / ‖z‖, and 0 where z is.

    Args:
        z: (batch, features).
    """
    return z / torch.linalg.vector_norm(z, dim=-1, keepdim=True).clamp_min(SMALLEST_NORM)


def whitened_center(center: Tensor, whitening: Tensor) -> Tensor | None:
    """−W m, (features,), or None if W z − W m would cancel; m is (features,), W square."""
    if torch.compiler.is_compiling():  # no graph can decide by values
        return None
    offset = -(whitening.double() @ center.double())
    large = whitening.dtype == torch.float32 and offset.abs().max() > LARGEST_OFFSET
    return None if large else offset.to(whitening.dtype)


def _shrunk(spectrum: Tensor, s: float) -> Tensor:
    """(1 − s) λ + s."""
    return (1 - s) * spectrum + s


@final
class GaussianDensity(WhitenedDensity):
    """log N(z; m, Σ) = log|W| − ½ d log 2π − ½ ‖W(z − m)‖² with W Σ Wᵀ = I.

    Prediction is one matrix product.
    """

    @dataclass(frozen=True)
    class Config(DensityConfig, kind="gaussian"):
        """One Gaussian for all classes, full covariance.

        Attributes:
            least_shrinkage: of the covariance. Held-out data ask for little, and then features
                that move against their correlation are improbable however little they move.
        """

        least_shrinkage: float = 0.0

        def __post_init__(self) -> None:
            if not 0 <= self.least_shrinkage <= 1:
                raise ConfigError(f"least_shrinkage={self.least_shrinkage}: choose one from 0 to 1")

        def build(self, num_features: int, num_classes: int) -> GaussianDensity:
            """An unfitted Gaussian on vectors of `num_features`; classes make no difference."""
            return GaussianDensity(num_features, self.least_shrinkage)

    halves: Tensor

    def __init__(self, num_features: int, least_shrinkage: float = 0.0) -> None:
        super().__init__(num_features, least_shrinkage)
        self.register_buffer("halves", torch.full((num_features, 1), -0.5), persistent=False)

    def log_prob_of_floats(self, z: Tensor) -> Tensor:
        """log N(z; m, Σ)."""
        (y,) = self.roots(z)
        return self.log_height - 0.5 * y.square().sum(-1)

    def roots(self, z: Tensor) -> tuple[Tensor]:
        """W(z − m)."""
        return (self.whitened(z),)

    def weights(self) -> tuple[Tensor, Tensor]:
        """−½ of each square, and log|W| − ½ d log 2π."""
        return self.halves, self.log_height

    def amounts(self, z: Tensor) -> list[Tensor]:
        """½ of the squares that add up to ‖W(z − m)‖²."""
        W = self.whitening.double()
        return [0.5 * channel_squares(W, F.linear(z - self.center, W))]

    def sums(self, z: Tensor, y: Tensor) -> Values:
        """Count, sum and sum of outer products."""
        return {"count": z.new_tensor(len(z)), "sum": z.sum(0), "outer": z.T @ z}

    def estimate(self, total: Values) -> None:
        """Mean and covariance."""
        count, outer = total["count"], total["outer"]
        mean, variance = mean_and_variance(count, total["sum"], outer.diagonal())
        self.center.copy_(mean)
        self.whiten(outer / count - torch.outer(mean, mean), variance)

    def residuals(self, z: Tensor, y: Tensor) -> Tensor:
        """z − m."""
        return z - self.center


@final
class ClassAwareDensity(WhitenedDensity):
    """Gaussians of the classes on directions u = z / ‖z‖, and how much they explain of u.

    Its two experts, with y = W(u − m) and W whitening within classes, whose covariance is one:

    - log p(u) = log|W| − ½ d log 2π − ½ min_c ‖y − w_c‖², the density of the nearest class, as in
      Mahalanobis++ (Mueller & Hein, ICML 2025);
    - log p(u) − log q(u), where q is one Gaussian for all classes: the relative Mahalanobis
      distance (Ren et al. 2021), high just where the direction is that of a class.

    W is turned so that the first coordinates hold all differences between class means, with
    variances b_i between classes. q has the variances 1 + b_i there and 1 elsewhere, so one product
    gives both. With c the nearest class,
    log p − log q = ½ Σ_i (y_i²/(1 + b_i) − (y_i − w_ci)² + log(1 + b_i)), over these coordinates.

    Directions forget the norm of z, and both experts are bounded. So it is no member of the family
    of densities: it stands beside one of z itself, which falls without bound.

    Args:
        num_features: the width of z.
        num_classes: how many classes there are.
    """

    class_aware = True
    expert_names = ("nearest", "relative")
    mean: Tensor
    share: Tensor
    location: Tensor
    intercept: Tensor
    gather: Tensor
    height: Tensor

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__(num_features)
        self.num_classes = num_classes
        self.num_turned = min(num_features, num_classes - 1)
        self.register_buffer("mean", torch.zeros(num_classes, num_features))
        self.register_buffer("share", torch.full((num_classes,), 1 / num_classes))
        self.register_buffer("location", torch.zeros(num_classes, self.num_turned))
        self.register_buffer("intercept", torch.zeros(num_classes))
        # What counts in each of the experts: squares of y − w_c and of y, and 1.
        self.register_buffer("gather", torch.zeros(num_features + self.num_turned, 2))
        self.register_buffer("height", torch.zeros(2))

    def log_prob_of_floats(self, z: Tensor) -> Tensor:
        """The log density of the nearest class."""
        return self.experts_of_floats(z)[:, 0]

    def roots(self, z: Tensor) -> tuple[Tensor, ...]:
        """y − w_c where class means differ, the other coordinates of y, and the first of y."""
        y = self.whitened(directions(z))
        turned, rest = y[:, : self.num_turned], y[:, self.num_turned :]
        nearest = F.linear(turned, self.location, self.intercept).argmax(-1)
        return turned - F.embedding(nearest, self.location), rest, turned

    def weights(self) -> tuple[Tensor, Tensor]:
        """What counts in the density of the nearest class, and in the ratio."""
        return self.gather, self.height

    def amounts(self, z: Tensor) -> list[Tensor]:
        """Of the distance from the nearest class, and of that minus the one from all data."""
        W, n = self.whitening.double(), self.num_turned
        y = F.linear(directions(z) - self.center, W)
        location = self.location.double()
        nearest = F.linear(y[:, :n], location, self.intercept.double()).argmax(-1)
        own = 0.5 * channel_squares(W, y - F.pad(location[nearest], (0, y.shape[1] - n)))
        unexplained = (2 * self.gather[len(W) :, 1]).double().sqrt()  # (1 + b_i)^(−½)
        turn = F.pad(unexplained, (0, len(W) - n), value=1.0)
        return [own, own - 0.5 * channel_squares(turn[:, None] * W, y * turn)]

    def sums(self, z: Tensor, y: Tensor) -> Values:
        """Counts and sums of every class, and one sum of outer products, of directions."""
        u = directions(z)
        return {**class_sums(u, y, self.num_classes), "outer": u.T @ u}

    def estimate(self, total: Values) -> None:
        """Shares and means of the classes, and the covariance within them."""
        count, sums, outer = total["count"], total["sum"], total["outer"]
        center, variance = mean_and_variance(count.sum(), sums.sum(0), outer.diagonal())
        means = torch.where(count[:, None] > 0, sums / count.clamp_min(1)[:, None], center)
        self.center.copy_(center)
        self.mean.copy_(means)
        self.share.copy_(count / count.sum())
        # Class means are fitted to the same samples: each takes a degree of freedom.
        freedom = count.sum() - (count > 0).sum()
        self.gather.zero_()  # W is not turned yet
        self.whiten((outer - means.T @ sums) / freedom.clamp_min(1), variance)

    def residuals(self, z: Tensor, y: Tensor) -> Tensor:
        """The direction minus the mean of its class."""
        return directions(z) - self.mean[y]

    def shrink(self, total: Values) -> None:
        """Take s from held-out data, once: the rows of a turned W are no longer those of λ."""
        if not self.gather.any():
            super().shrink(total)

    def shrink_to(self, s: float) -> None:
        """Shrink what `estimate` wrote, then turn W to where the class means differ."""
        super().shrink_to(s)
        W = self.whitening.double()
        location = (self.mean - self.center).double() @ W.T
        _, root, V = torch.linalg.svd(self.share.double().sqrt()[:, None] * location)
        between = F.pad(root.square(), (0, self.num_turned))[: self.num_turned]
        location = (location @ V.T)[:, : self.num_turned]
        self.whitening.copy_(V @ W)
        self.location.copy_(location)
        self.intercept.copy_(-0.5 * location.square().sum(-1))
        self.intercept[self.share == 0] = -torch.inf
        self.gather.copy_(self._gather(1 / (1 + between)))
        self.height.copy_(torch.stack([self.log_height.double(), 0.5 * between.log1p().sum()]))

    def _gather(self, unexplained: Tensor) -> Tensor:
        """How the squares of y − w_c, of the other coordinates, and of y add up to the experts."""
        distance = -0.5 * torch.ones_like(unexplained)
        rest = -0.5 * unexplained.new_ones(len(self.whitening) - self.num_turned)
        first = torch.cat([distance, rest, torch.zeros_like(unexplained)])
        second = torch.cat([distance, torch.zeros_like(rest), 0.5 * unexplained])
        return torch.stack([first, second], dim=-1)
