"""The contract of every density p(z; α) on features, and the statistics that fits share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.config import Family
from density_softmax.errors import UserError
from density_softmax.nn.execution import at_least_float32, full_precision
from density_softmax.training import Stage, Values
from density_softmax.types import Batch

# The latents' standard deviation at the start. A sample t deviations out in every direction has
# r² = H t² σ², and NatPN's evidence exp(½ H log 2 − ½ r²) is above 1 while t σ < √log 2 ≈ 0.83.
# With σ = 1 samples beyond that begin with no evidence, hence no gradient, and many never return;
# with ¼ this holds to t = 3.3.
INITIAL_SCALE = 0.25


class Density(nn.Module, ABC):
    """A density on feature vectors that knows how it is fitted.

    Attributes:
        class_aware: whether it tells the classes apart.
        expert_names: of the numbers that `experts` gives for a sample; empty for a density that
            gives one, which has the name of the density.
    """

    class_aware: ClassVar[bool] = False
    expert_names: ClassVar[tuple[str, ...]] = ("",)

    def log_prob(self, z: Tensor) -> Tensor:
        """log p(z; α), (batch,), in float32 or more whatever the network computes in."""
        with full_precision(z):
            return self.log_prob_of_floats(at_least_float32(z))

    def experts(self, z: Tensor) -> Tensor:
        """What typicality may sum, (batch, experts): log p(z; α) and, in some densities, more."""
        with full_precision(z):
            return self.experts_of_floats(at_least_float32(z))

    def experts_of_floats(self, z: Tensor) -> Tensor:
        """The experts of features in float32 or float64, the log density first."""
        return self.log_prob_of_floats(z).unsqueeze(-1)

    def amounts(self, z: Tensor) -> list[Tensor] | None:
        """Of each expert ℓ, what the channels add to −ℓ, (batch, features) each, but a constant.

        Args:
            z: features in float64, (batch, features).

        Returns:
            None if the density is no function of sums over channels, which is the default.
        """
        return None

    @abstractmethod
    def log_prob_of_floats(self, z: Tensor) -> Tensor:
        """log p(z; α) of features in float32 or float64, (batch,)."""

    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """How α is found, from training features."""


class DensityConfig(Family, ABC, package="density_softmax.nn.densities"):
    """The family of densities."""

    @abstractmethod
    def build(self, num_features: int, num_classes: int) -> Density:
        """An unfitted density on vectors of `num_features` that come from `num_classes`."""


def moments(z: Tensor) -> Values:
    """Sums over a batch that `mean_and_variance` takes, in float64.

    Args:
        z: (batch, features).
    """
    z = z.double()
    return {"count": z.new_tensor(len(z)), "sum": z.sum(0), "squares": z.square().sum(0)}


def mean_and_variance(count: Tensor, total: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each feature from its sums; a variance is 0 where nothing varies.

    Args:
        count: the number of samples, ().
        total: Σ z, (features,).
        squares: Σ z², (features,).

    Raises:
        UserError: if no density can be fitted to such data.
    """
    num_features = len(total)
    if count < 2:
        raise UserError(f"training samples: {int(count)}; a density needs at least two")
    mean, second = total / count, squares / count
    if not second.isfinite().all():
        broken = int((~second.isfinite()).sum())
        raise UserError(
            f"{broken} of {num_features} features are NaN or infinite on training data: "
            "the encoder has diverged; lower its learning rate"
        )
    variance = second - mean.square()
    # A variance below rounding is 0: dividing by it would invent information.
    varies = variance > torch.finfo(torch.float32).eps ** 2 * second
    if not varies.any():
        raise UserError(
            f"all {num_features} features are constant on training data: the encoder says "
            "nothing about its inputs; train it longer or with another learning rate"
        )
    return mean, torch.where(varies, variance, 0.0)


def class_sums(z: Tensor, y: Tensor, num_classes: int) -> dict[str, Tensor]:
    """Counts and sums of every class.

    Args:
        z: (batch, features).
        y: the classes, (batch,).
        num_classes: how many there are.
    """
    legal = (y >= 0) & (y < num_classes)
    if not legal.all():
        raise UserError(
            f"label {int(y[~legal][0])}: the density knows classes 0 to {num_classes - 1}"
        )
    member = F.one_hot(y, num_classes).to(z)
    return {"count": member.sum(0), "sum": member.T @ z}


def log_height(whitener: Tensor) -> Tensor:
    """log|W| − ½ d log 2π, the log density of N(0, (WᵀW)⁻¹) at 0, for triangular W.

    Args:
        whitener: W, (features, features).
    """
    return whitener.diagonal().log().sum() - 0.5 * len(whitener) * math.log(2 * math.pi)


def channel_squares(whitening: Tensor, y: Tensor) -> Tensor:
    """‖y‖² with y = W d as a sum of squares, one for each channel of d, (batch, features).

    Among all turns of whitened coordinates these are the ones whose i-th is most like d_i: they
    are C^(−½) D^(−½) d, with the variances D and the correlations C of Σ = (WᵀW)⁻¹ (corr-max,
    Garthwaite & Koch, Australian & New Zealand Journal of Statistics 2016).

    Args:
        whitening: W, (features, features), in float64.
        y: whitened residuals, (batch, features), in float64.
    """
    return (y @ channel_turn(whitening).T).square()


def channel_turn(whitening: Tensor) -> Tensor:
    """The turn of W d by which `channel_squares` squares it, (features, features).

    Args:
        whitening: W, (features, features), in float64.
    """
    W = whitening
    inverse = torch.linalg.inv(W)
    deviation = inverse.square().sum(1).sqrt()
    precision = deviation * (W.T @ W) * deviation[:, None]
    values, V = torch.linalg.eigh(precision)
    root = V * values.clamp_min(0).sqrt() @ V.T
    return root / deviation @ inverse


@final
class Latent(nn.Module):
    """u = BatchNorm(W z), in float32: at first every direction has mean 0 and deviation ¼.

    W has no bias, which the batch norm would remove.

    Args:
        num_features: the width of z.
        num_latent: the width of u.
    """

    def __init__(self, num_features: int, num_latent: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_latent, bias=False)
        self.norm = nn.BatchNorm1d(num_latent)
        nn.init.constant_(self.norm.weight, INITIAL_SCALE)

    def forward(self, z: Tensor) -> Tensor:
        """The latent vectors of a batch of features, (batch, latent)."""
        h = self.linear(z)
        with full_precision(h):
            return self._normalized(h.float())

    def _normalized(self, h: Tensor) -> Tensor:
        if not self.training or len(h) > 1:
            return self.norm(h)
        # A last batch of one sample has no variance: it is normalised as in evaluation.
        n = self.norm
        return F.batch_norm(h, n.running_mean, n.running_var, n.weight, n.bias, eps=n.eps)

    def moments(self, batch: Batch) -> Values:
        """The contribution of a batch of features to the statistics of W z."""
        return moments(self.linear(batch.x))

    def set_moments(self, total: Values) -> None:
        """Let evaluation mode standardise by the moments of a whole split."""
        mean, variance = mean_and_variance(total["count"], total["sum"], total["squares"])
        for buffer, value in ((self.norm.running_mean, mean), (self.norm.running_var, variance)):
            assert buffer is not None  # the norm keeps statistics
            buffer.copy_(value)
