"""Last-layer Laplace: a Gaussian posterior of the head's weights, and what it says of logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from density_softmax.methods.posthoc import Calibrator, PostHocConfig
from density_softmax.nn.softmax.head import nll_of_samples
from density_softmax.training import Estimate, Values
from density_softmax.types import Batch

# Of prior precisions: beyond them the posterior is the prior, or a point.
LOG_BOUNDS = (math.log(1e-4), math.log(1e8))


@final
class LastLayerLaplace(Calibrator):
    """Laplace approximation of the last layer (Kristiadi et al., ICML 2020; Daxberger et al. 2021).

    The weights of the head are Gaussian around the trained ones, with the precision
    N A ⊗ B + τ I (Ritter et al., ICLR 2018): A is the mean of z̃ z̃ᵀ over N training features,
    z̃ = (z, 1), and B that of diag(p) − p pᵀ. Logits are then Gaussian, with variances v(z), and
    p(y | x) ≈ softmax(g(z) / √(1 + π v(z) / 8)), without samples. The prior precision τ minimises
    the NLL of the held-out slice.
    """

    @dataclass(frozen=True)
    class Config(
        PostHocConfig,
        kind="laplace",
        title="Last-layer Laplace",
        rank=25,
        defines=("probs",),
        reads_weights=True,
    ):
        """How the network is trained; nothing else is to choose."""

    config: Config
    rotation: Tensor
    eigenvalues: Tensor
    squares: Tensor
    variances: Tensor

    def setup(self, example: Tensor | None) -> None:
        """Add the posterior, a point before it is estimated."""
        super().setup(example)
        width, num_classes = self.num_features + 1, self.num_classes
        self.register_buffer("rotation", torch.eye(width))
        self.register_buffer("squares", torch.eye(num_classes))
        # N a_i b_j of the eigenvalues a of A and b of B, and 1 / (N a_i b_j + τ).
        self.register_buffer("eigenvalues", torch.zeros(width, num_classes))
        self.register_buffer("variances", torch.zeros(width, num_classes))

    def estimates(self) -> tuple[Estimate, ...]:
        """One pass for A and B, then τ on the held-out slice."""
        prior = Estimate(
            "prior",
            statistics=self._terms,
            finish=self._fit_prior,
            reduce="concat",
            on="features",
            split="heldout",
        )
        return self.features_stage("curvature", self._sums, finish=self._decompose), prior

    def calibrated(self, features: Tensor, logits: Tensor) -> Tensor:
        """g(z) / √(1 + π v(z) / 8)."""
        return _shrunk(logits, self.variance(self.last(features)))

    def variance(self, z: Tensor) -> Tensor:
        """v, the variance of each logit, (batch, classes)."""
        return self._rotated(z).square() @ self.variances @ self.squares.T

    def _rotated(self, z: Tensor) -> Tensor:
        """z̃ in the eigenvectors of A, (batch, features + 1)."""
        return F.pad(z, (0, 1), value=1.0) @ self.rotation

    def _sums(self, z: Tensor, y: Tensor) -> Values:
        p = self.head.raw(z.float()).double().softmax(-1)
        extended = F.pad(z, (0, 1), value=1.0)
        fisher = p.sum(0).diag() - p.T @ p
        return {"count": z.new_tensor(len(z)), "outer": extended.T @ extended, "fisher": fisher}

    def _decompose(self, total: Values) -> None:
        a, rotation = torch.linalg.eigh(total["outer"] / total["count"])
        b, vectors = torch.linalg.eigh(total["fisher"])  # N times B
        self.rotation.copy_(rotation)
        self.squares.copy_(vectors.square())
        self.eigenvalues.copy_(torch.outer(a.clamp_min(0), b.clamp_min(0)))

    def _terms(self, batch: Batch) -> Values:
        z = self.last(batch.x)
        return {"squares": self._rotated(z).square(), "logits": self.head.raw(z), "y": batch.y}

    def _fit_prior(self, total: Values) -> None:
        from scipy.optimize import minimize_scalar

        def cost(log_precision: float) -> float:
            self.variances.copy_(1 / (self.eigenvalues + math.exp(log_precision)))
            variance = total["squares"] @ self.variances @ self.squares.T
            return nll_of_samples(_shrunk(total["logits"], variance), total["y"]).mean().item()

        best = minimize_scalar(cost, bounds=LOG_BOUNDS, method="bounded")
        cost(best.x)


def _shrunk(logits: Tensor, variance: Tensor) -> Tensor:
    """The probit approximation of the mean softmax, as logits."""
    return logits / (1 + math.pi / 8 * variance).sqrt()
