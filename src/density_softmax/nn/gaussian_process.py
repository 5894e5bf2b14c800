"""A Gaussian process as the last layer, by random Fourier features."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.config import ConfigError
from density_softmax.nn.precision import full_precision
from density_softmax.stages import Values

__all__ = ["RandomFeatureProcess", "orthogonal_frequencies"]


@final
class RandomFeatureProcess(nn.Module):
    """g(z) = βᵀφ(z) with φ(z) = s cos(Ω P z + b), and its variance r φᵀ(r I + ΦᵀΦ)⁻¹φ.

    Ω and b are drawn once: with s = √(2/D) the products φ(z)ᵀφ(z′) approximate the kernel
    exp(−½‖Pz − Pz′‖² / ℓ²) (Rahimi & Recht 2007). β is learned. Φ holds φ of all training data.

    The variance is that of uncertainty-baselines: the Laplace approximation of a Gaussian
    likelihood of variance r, one for all classes, under β ~ N(0, I). Liu et al. 2020 weight the
    outer products φφᵀ by p_c (1 − p_c), which gives a matrix to every class c.
    """

    projection: Tensor
    frequencies: Tensor
    phase: Tensor
    whitening: Tensor

    @dataclass(frozen=True)
    class Config:
        """Defaults are uncertainty-baselines' for CIFAR (`wide_resnet_sngp`).

        Attributes:
            num_features: D, how many random features.
            num_inputs: to how many dimensions P, a fixed random matrix, takes z; null leaves z.
            normalize: standardise Pz over its dimensions by a layer norm with learned gains, which
                uncertainty-baselines calls `gp_input_normalization`.
            length_scale: ℓ. Frequencies have the standard deviation 1/ℓ: 20 is its "stddev=0.05".
                Its own `gp_scale` has no effect behind a layer norm.
            scaled: s = √(2/D) in place of s = 1, which leaves the learning rates of the network
                as they are with a linear layer.
            ridge: r.
        """

        num_features: int = 1024
        num_inputs: int | None = 128
        normalize: bool = True
        length_scale: float = 20.0
        scaled: bool = False
        ridge: float = 1.0

        def __post_init__(self) -> None:
            """Reject a process without features, width or prior."""
            for name in ("num_features", "length_scale", "ridge"):
                if getattr(self, name) <= 0:
                    raise ConfigError(f"{name}={getattr(self, name)}: choose more than 0")
            if self.num_inputs is not None and self.num_inputs < 1:
                raise ConfigError(f"num_inputs={self.num_inputs}: choose 1 or more, or null")

        def build(self, num_features: int, num_classes: int) -> RandomFeatureProcess:
            """An untrained process on vectors of `num_features`."""
            return RandomFeatureProcess(num_features, num_classes, self)

    def __init__(self, num_features: int, num_classes: int, config: Config | None = None) -> None:
        super().__init__()
        config = config or RandomFeatureProcess.Config()
        size, width = config.num_features, config.num_inputs or num_features
        self.ridge = config.ridge
        self.amplitude = math.sqrt(2 / size) if config.scaled else 1.0
        projection = torch.randn(width, num_features) / math.sqrt(width)
        self.register_buffer("projection", projection if config.num_inputs else None)
        self.norm = nn.LayerNorm(width) if config.normalize else nn.Identity()
        frequencies = orthogonal_frequencies(size, width) / config.length_scale
        self.register_buffer("frequencies", frequencies)
        self.register_buffer("phase", 2 * math.pi * torch.rand(size))
        # The covariance (r I + ΦᵀΦ)⁻¹ is VᵀV: a variance ‖Vφ‖² cannot be rounded below zero.
        self.register_buffer("whitening", torch.eye(size) / math.sqrt(self.ridge))
        self.weights = nn.Linear(size, num_classes, bias=False)
        nn.init.xavier_uniform_(self.weights.weight)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, (batch, classes), and their variance, (batch,), in float32."""
        with full_precision(z):
            phi = self.random_features(z)
            variance = self.ridge * F.linear(phi, self.whitening).square().sum(-1)
            return self.weights(phi), variance

    def logits(self, z: Tensor) -> Tensor:
        """The logits alone: the variance is of no use before it is estimated."""
        with full_precision(z):
            logits: Tensor = self.weights(self.random_features(z))
            return logits

    def random_features(self, z: Tensor) -> Tensor:
        """φ(z), (batch, D)."""
        z = z.float()
        z = self.norm(z if self.projection is None else F.linear(z, self.projection))
        return self.amplitude * F.linear(z, self.frequencies, self.phase).cos()

    def covariance(self) -> Tensor:
        """(r I + ΦᵀΦ)⁻¹."""
        return self.whitening.T @ self.whitening

    def sums(self, z: Tensor) -> Values:
        """ΦᵀΦ of a batch."""
        with full_precision(z):
            phi = self.random_features(z).double()
            return {"precision": phi.T @ phi}

    def estimate(self, total: Values) -> None:
        """The covariance from ΦᵀΦ of all data, in float64."""
        precision = total["precision"]
        identity = torch.eye(len(precision), dtype=precision.dtype, device=precision.device)
        L = torch.linalg.cholesky(precision + self.ridge * identity)
        self.whitening.copy_(torch.linalg.solve_triangular(L, identity, upper=False))


def orthogonal_frequencies(num_features: int, num_inputs: int) -> Tensor:
    """Gaussian vectors, orthogonal to each other as far as there is room (Yu et al. 2016).

    Each row is N(0, I) by itself: a uniform direction times a length from chi(num_inputs). Rows
    form blocks of at most `num_inputs`; directions are orthogonal within a block.
    """
    size = min(num_features, num_inputs)
    num_blocks = -(-num_features // size)
    Q, R = torch.linalg.qr(torch.randn(num_blocks, num_inputs, size))
    # Without the signs, directions would depend on how the decomposition is computed.
    directions = (Q * R.diagonal(dim1=-2, dim2=-1).sign()[:, None]).mT.flatten(0, 1)
    lengths = torch.randn(num_features, num_inputs).norm(dim=1, keepdim=True)
    return lengths * directions[:num_features]
