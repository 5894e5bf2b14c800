"""Gaussian processes as last layers: by random Fourier features, and by inducing points."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.config import ConfigError
from density_softmax.errors import UserError
from density_softmax.nn.execution import full_precision
from density_softmax.training import Values

# On the diagonal of k(U, U) and of the prior variance: GPyTorch's own for float32.
JITTER = 1e-4
# Rounding may push a variance below zero.
MIN_VARIANCE = 1e-6


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
            num_inputs: to how many dimensions P, a fixed random matrix, takes z; null leaves z, as
                a `gp_input_dim` of −1 does in uncertainty-baselines.
            normalize: standardise Pz over its dimensions by a layer norm with learned gains, which
                uncertainty-baselines calls `gp_input_normalization`. The norm forgets how long z
                is: the variance no longer grows with the distance from the data in all directions.
            length_scale: ℓ. Frequencies have the standard deviation 1/ℓ: 20 is its "stddev=0.05".
            scaled: s = √(2/D) in place of s = 1, which leaves the learning rates of the network
                as they are with a linear layer.
            ridge: r.
        """

        num_features: int = 1024
        num_inputs: int | None = None
        normalize: bool = False
        length_scale: float = 20.0
        scaled: bool = False
        ridge: float = 1.0

        def __post_init__(self) -> None:
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
        frequencies = _orthogonal_frequencies(size, width) / config.length_scale
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
        """The logits alone, as long as the variance is not estimated."""
        with full_precision(z):
            logits: Tensor = self.weights(self.random_features(z))
            return logits

    def random_features(self, z: Tensor) -> Tensor:
        """φ(z), (batch, D)."""
        z = z.float()
        z = self.norm(z if self.projection is None else F.linear(z, self.projection))
        return self.amplitude * F.linear(z, self.frequencies, self.phase).cos()

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


def _orthogonal_frequencies(num_features: int, num_inputs: int) -> Tensor:
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


class Marginals(NamedTuple):
    """The marginal normal distributions of all f_c(z).

    Attributes:
        mean: (batch, classes).
        variance: (batch, classes).
    """

    mean: Tensor
    variance: Tensor


@final
class SparseProcess(nn.Module):
    """f_c ~ GP(μ_c, s_c exp(−‖z − z′‖² / (2 ℓ_c²))), known at inducing points U that all c share.

    With k(U, U) = L Lᵀ, f_c(U) = μ_c + L v, q(v) = N(m, S Sᵀ) (Hensman et al. 2015, whitened) and
    A = L⁻¹ k(U, z),

        q(f_c(z)) = N(μ_c + Aᵀm, s_c − AᵀA + AᵀS SᵀA).

    `model` is GPyTorch's: its kernel, its whitened strategy, its parameters. GPyTorch's own
    posterior, `model(z)`, is the same to rounding, but it does not export, copies features and
    inducing points for every class, and takes ten times as long for a step. So the equation is
    evaluated here. L⁻¹ is a buffer, computed once when evaluation mode begins.

    Args:
        num_features: the width of z.
        num_classes: the number of processes.
        num_inducing: the number of points U.
    """

    whitening: Tensor

    def __init__(self, num_features: int, num_classes: int, num_inducing: int) -> None:
        super().__init__()
        self.model = _gpytorch_model(num_features, num_classes, num_inducing)
        self.register_buffer("whitening", torch.zeros(num_classes, num_inducing, num_inducing))
        self._whiten()

    @property
    def inducing_points(self) -> nn.Parameter:
        """U, (inducing, features)."""
        return self.model.variational_strategy.base_variational_strategy.inducing_points

    @property
    def length_scale(self) -> Tensor:
        """ℓ_c, (classes, 1, 1)."""
        return self.model.covar_module.base_kernel.lengthscale

    @torch.no_grad()
    def initialize(self, z: Tensor) -> None:
        """Set U to the cluster means of features z, and ℓ to the mean distance between them."""
        num_inducing, distinct = len(self.inducing_points), len(z.unique(dim=0))
        if not z.isfinite().all() or distinct < max(2, num_inducing):
            raise UserError(
                f"{num_inducing} inducing points cannot be found among the features of {len(z)} "
                f"training samples, {distinct} of them distinct and "
                f"{int(z.isfinite().all(1).sum())} finite: choose fewer, or give more data"
            )
        from sklearn.cluster import KMeans

        clusters = KMeans(num_inducing, n_init=1, random_state=0).fit(z.double().cpu().numpy())
        self.inducing_points.copy_(torch.as_tensor(clusters.cluster_centers_))
        self.model.covar_module.base_kernel.initialize(lengthscale=torch.pdist(z).mean())
        self._whiten()

    def train(self, mode: bool = True) -> SparseProcess:
        """Set the mode; L⁻¹ is computed when evaluation begins."""
        begins = self.training and not mode
        super().train(mode)
        if begins:
            self._whiten()
        return self

    def forward(self, z: Tensor) -> Marginals:
        """q(f_c(z)) = N(μ + Aᵀm, s − AᵀA + AᵀS SᵀA), in float32."""
        with full_precision(z):
            whitening = self._inverse_root() if self.training else self.whitening
            mean, root = self._variational()
            a = whitening @ self._kernel(_squared_distances(self.inducing_points, z.float()))
            explained = a.square().sum(1) - (root.mT @ a).square().sum(1)
            prior = self.model.covar_module.outputscale[:, None] + JITTER
            shift = self.model.mean_module.constant[:, None]
            variance = (prior - explained).clamp_min(MIN_VARIANCE)
            return Marginals((shift + (mean[:, None] @ a).squeeze(1)).mT, variance.mT)

    def kl(self) -> Tensor:
        """KL(q(v) ‖ N(0, 1)) = ½ (‖S‖² + ‖m‖² − dim v) − Σ log |S_ii|, over all classes."""
        mean, root = self._variational()
        log_det = root.diagonal(dim1=-2, dim2=-1).abs().log().sum()
        return (root.square().sum() + mean.square().sum() - mean.numel()) / 2 - log_det

    def _variational(self) -> tuple[Tensor, Tensor]:
        """m, (classes, inducing), and S, lower triangular."""
        q = self.model.variational_strategy.base_variational_strategy._variational_distribution
        return q.variational_mean, q.chol_variational_covar.tril()

    def _kernel(self, squares: Tensor) -> Tensor:
        """s exp(−½ ‖·‖² / ℓ²) of every class, (classes, *squares)."""
        scale = self.model.covar_module.outputscale[:, None, None].to(squares)
        return scale * (-0.5 * squares / self.length_scale.to(squares).square()).exp()

    def _inverse_root(self) -> Tensor:
        """L⁻¹, found in float64: float32 would not take k(U, U) for positive definite."""
        points = self.inducing_points.double()
        eye = torch.eye(len(points), dtype=points.dtype, device=points.device)
        covariance = self._kernel(_squared_distances(points, points)) + JITTER * eye
        # The variant that does not raise: NaNs end in a loss that is NaN.
        root, _ = torch.linalg.cholesky_ex(covariance)
        return torch.linalg.solve_triangular(root, eye, upper=False).float()

    @torch.no_grad()
    def _whiten(self) -> None:
        self.whitening.copy_(self._inverse_root())


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """‖a_i − b_j‖², (len(a), len(b)), from products of vectors without the mean of `a`."""
    center = a.mean(0)
    a, b = a - center, b - center
    squares = a.square().sum(1)[:, None] + b.square().sum(1)
    return (squares - 2 * a @ b.mT).clamp_min(0)


def _gpytorch_model(num_features: int, num_classes: int, num_inducing: int) -> Any:
    """GPyTorch's model of independent processes that share their inducing points."""
    try:
        gpytorch: Any = importlib.import_module("gpytorch")
    except ModuleNotFoundError:
        raise UserError(
            "DUE needs the GPyTorch library: pip install density-softmax[baselines]"
        ) from None
    kernels, variational = gpytorch.kernels, gpytorch.variational
    shape = torch.Size([num_classes])

    class Processes(gpytorch.models.ApproximateGP):  # type: ignore[misc]
        def __init__(self) -> None:
            q = variational.CholeskyVariationalDistribution(num_inducing, batch_shape=shape)
            points = torch.randn(num_inducing, num_features)
            strategy = variational.VariationalStrategy(self, points, q, jitter_val=JITTER)
            # Else GPyTorch draws the first m by itself, in each process another one.
            strategy.variational_params_initialized.fill_(1)
            super().__init__(
                variational.IndependentMultitaskVariationalStrategy(strategy, num_classes)
            )
            self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
            rbf = kernels.RBFKernel(batch_shape=shape)
            self.covar_module = kernels.ScaleKernel(rbf, batch_shape=shape)

        def forward(self, z: Tensor) -> Any:
            mean, covariance = self.mean_module(z), self.covar_module(z)
            return gpytorch.distributions.MultivariateNormal(mean, covariance)

    return Processes()
