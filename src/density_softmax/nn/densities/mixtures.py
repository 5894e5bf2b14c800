"""A Gaussian for every class, mixed by the shares of the classes."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from density_softmax.errors import UserError
from density_softmax.nn.densities.base import (
    DensityConfig,
    channel_squares,
    class_sums,
    log_height,
    mean_and_variance,
)
from density_softmax.nn.densities.gaussian import ClosedFormDensity
from density_softmax.training import Values

# Entries of all class covariances together: 8 gigabytes in float32.
LARGEST = 2**31


def whitening(covariance: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """A triangular W with W (Σ + δ D) Wᵀ = I, and the smallest δ that allows one.

    D holds the variances of the features over all the data, 1 where there is none, so that δ
    means the same for features of any scale. A δ is judged on C = D^(−½) Σ D^(−½): a W
    that is used in float32 needs every eigenvalue of C + δI above half of float32's epsilon. δ
    is 0 if that is so already, and otherwise the first that works of epsilon · 1, 2, 4, ...

    Args:
        covariance: Σ, (features, features).
        variance: of each feature over all the data, (features,).
    """
    eps = torch.finfo(torch.float32).eps
    unit = torch.where(variance > 0, variance, 1.0).sqrt()
    C = covariance / unit / unit[:, None]
    identity = torch.eye(len(C), dtype=C.dtype, device=C.device)
    delta = 0.0
    # Shifted by the bound, a matrix has a Cholesky factor just if all eigenvalues are above it.
    while torch.linalg.cholesky_ex(C + (delta - eps / 2) * identity).info:
        delta = 2 * delta or eps
    L = torch.linalg.cholesky_ex(C + delta * identity).L
    W = torch.linalg.solve_triangular(L, identity, upper=False)
    return W / unit, torch.tensor(delta)


class ClassMixture(ClosedFormDensity, ABC):
    """log p(z) = logsumexp_c(log π_c + log N(z; m_c, Σ_c)), π_c the share of class c.

    A class that has no sample has π_c = 0 and takes no part.
    """

    center: Tensor
    log_weight: Tensor

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.register_buffer("center", torch.zeros(num_features))
        # log π_c plus the log height of the class's Gaussian.
        height = log_height(torch.eye(num_features)) - torch.tensor(num_classes).log()
        self.register_buffer("log_weight", height.repeat(num_classes))


@final
class GaussianMixtureDensity(ClassMixture):
    """A class mixture with a full covariance for every class.

    W_c whitens class c, and all of them are one matrix product.
    """

    whitening: Tensor
    offset: Tensor

    @dataclass(frozen=True)
    class Config(DensityConfig, kind="gaussian_mixture"):
        """Attributes: `tied` gives all classes one covariance, that within classes."""

        tied: bool = False

        def build(self, num_features: int, num_classes: int) -> ClassMixture:
            """An unfitted mixture of a Gaussian per class."""
            member = TiedMixtureDensity if self.tied else GaussianMixtureDensity
            return member(num_features, num_classes)

    def __init__(self, num_features: int, num_classes: int) -> None:
        if num_classes * num_features**2 > LARGEST:
            raise UserError(
                f"{num_classes} covariances of {num_features} features take "
                f"{4 * num_classes * num_features**2 / 1e9:.0f} GB: set the density's tied=true"
            )
        super().__init__(num_features, num_classes)
        self.register_buffer("whitening", torch.eye(num_features).repeat(num_classes, 1, 1))
        self.register_buffer("offset", torch.zeros(num_classes, num_features))

    def log_prob_of_floats(self, z: Tensor) -> Tensor:
        """logsumexp_c(log π_c + log N(z; m_c, Σ_c))."""
        y = F.linear(z - self.center, self.whitening.flatten(0, 1), self.offset.flatten())
        squared = y.unflatten(-1, self.offset.shape).square().sum(-1)
        return (self.log_weight - 0.5 * squared).logsumexp(-1)

    def amounts(self, z: Tensor) -> list[Tensor]:
        """½ of the squares that add up to the distance from the likeliest class."""
        W, offset = self.whitening.double(), self.offset.double()
        y = F.linear(z - self.center, W.flatten(0, 1), offset.flatten()).unflatten(-1, offset.shape)
        likeliest = (self.log_weight - 0.5 * y.square().sum(-1)).argmax(-1)
        found = torch.empty_like(z)
        for c in likeliest.unique().tolist():
            rows = likeliest == c
            found[rows] = 0.5 * channel_squares(W[c], y[rows, c])
        return [found]

    def sums(self, z: Tensor, y: Tensor) -> Values:
        """Counts, sums and sums of outer products of every class."""
        classes = [z[y == c] for c in range(self.num_classes)]
        return {
            **class_sums(z, y, self.num_classes),
            "outer": torch.stack([v.T @ v for v in classes]),
        }

    def estimate(self, total: Values) -> None:
        """Share, mean and covariance of every class."""
        count, sums, outer = total["count"], total["sum"], total["outer"]
        center, variance = mean_and_variance(count.sum(), sums.sum(0), outer.sum(0).diagonal())
        self.center.copy_(center)
        self.log_weight.fill_(-torch.inf)
        for c in count.nonzero()[:, 0].tolist():
            mean = sums[c] / count[c]
            W, _ = whitening(outer[c] / count[c] - torch.outer(mean, mean), variance)
            self.whitening[c] = W
            self.offset[c] = W @ (self.center - mean)
            self.log_weight[c] = (count[c] / count.sum()).log() + log_height(W)


@final
class TiedMixtureDensity(ClassMixture):
    """A class mixture whose Gaussians share the covariance within classes.

    In whitened coordinates y = W(z − center) the classes' scores are linear, as in linear
    discriminant analysis: s_c = log π_c + w_c·y − ½‖w_c‖². With c the class of the highest,
    log p(z) = log p(z, c) − log p(c | z), where p(c | z) is the softmax of the scores: no
    difference of large squares appears.
    """

    whitening: Tensor
    location: Tensor
    intercept: Tensor

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__(num_features, num_classes)
        self.register_buffer("whitening", torch.eye(num_features))
        self.register_buffer("location", torch.zeros(num_classes, num_features))
        self.register_buffer("intercept", torch.zeros(num_classes))

    def log_prob_of_floats(self, z: Tensor) -> Tensor:
        """log p(z, c) − log p(c | z) with c the likeliest class."""
        y = F.linear(z - self.center, self.whitening)
        scores = F.linear(y, self.location, self.intercept)
        c = scores.argmax(-1)
        joint = self.log_weight[c] - 0.5 * (y - self.location[c]).square().sum(-1)
        return joint - scores.log_softmax(-1).amax(-1)

    def amounts(self, z: Tensor) -> list[Tensor]:
        """½ of the squares that add up to the distance from the likeliest class."""
        W, location = self.whitening.double(), self.location.double()
        y = F.linear(z - self.center, W)
        likeliest = F.linear(y, location, self.intercept.double()).argmax(-1)
        return [0.5 * channel_squares(W, y - location[likeliest])]

    def sums(self, z: Tensor, y: Tensor) -> Values:
        """Counts and sums of every class, and one sum of outer products."""
        return {**class_sums(z, y, self.num_classes), "outer": z.T @ z}

    def estimate(self, total: Values) -> None:
        """Shares and means of the classes, and the covariance within them."""
        count, sums, outer = total["count"], total["sum"], total["outer"]
        center, variance = mean_and_variance(count.sum(), sums.sum(0), outer.diagonal())
        self.center.copy_(center)
        means = sums / count.clamp_min(1)[:, None]
        W, _ = whitening((outer - means.T @ sums) / count.sum(), variance)
        self.whitening.copy_(W)
        # A class without samples has weight log 0, wherever it is.
        self.location.copy_(torch.where(count[:, None] > 0, means - self.center, 0.0) @ W.T)
        share = (count / count.sum()).log()
        self.intercept.copy_(share - 0.5 * self.location.double().square().sum(-1))
        self.log_weight.copy_(share + log_height(W))
