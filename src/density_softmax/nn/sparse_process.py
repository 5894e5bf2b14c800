"""Sparse variational Gaussian processes on features, one per class, defined by GPyTorch."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple, final

import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn

from density_softmax.errors import UserError
from density_softmax.nn.precision import full_precision

__all__ = ["Marginals", "SparseProcess"]

# On the diagonal of k(U, U) and of the prior variance: GPyTorch's own for float32.
JITTER = 1e-4
# Rounding may push a variance below zero.
MIN_VARIANCE = 1e-6


class Marginals(NamedTuple):
    """The normal distributions of all f_c(z), each alone.

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
    evaluated here. L⁻¹ is a buffer: in evaluation mode nothing moves, so it is computed when that
    mode begins and costs nothing after.
    """

    whitening: Tensor

    def __init__(self, num_features: int, num_classes: int, num_inducing: int) -> None:
        super().__init__()
        self.model = build_model(num_features, num_classes, num_inducing)
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
        """Begin with the cluster means of some features, and with their mean distance for ℓ."""
        num_inducing, distinct = len(self.inducing_points), len(z.unique(dim=0))
        if not z.isfinite().all() or distinct < max(2, num_inducing):
            raise UserError(
                f"{num_inducing} inducing points cannot be found among the features of {len(z)} "
                f"training samples, {distinct} of them distinct and "
                f"{int(z.isfinite().all(1).sum())} finite: choose fewer, or give more data"
            )
        clusters = KMeans(num_inducing, n_init=1, random_state=0).fit(z.double().cpu().numpy())
        self.inducing_points.copy_(torch.as_tensor(clusters.cluster_centers_))
        self.model.covar_module.base_kernel.initialize(lengthscale=torch.pdist(z).mean())
        self._whiten()

    def train(self, mode: bool = True) -> SparseProcess:
        """Set the mode; L⁻¹ in evaluation is that of the parameters it begins with."""
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
            a = whitening @ self._kernel(squared_distances(self.inducing_points, z.float()))
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
        covariance = self._kernel(squared_distances(points, points)) + JITTER * eye
        # The variant that does not raise: numbers that are none end as a loss that is none.
        root, _ = torch.linalg.cholesky_ex(covariance)
        return torch.linalg.solve_triangular(root, eye, upper=False).float()

    @torch.no_grad()
    def _whiten(self) -> None:
        self.whitening.copy_(self._inverse_root())


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """‖a_i − b_j‖², (len(a), len(b)), from products of what is left without the mean of `a`."""
    center = a.mean(0)
    a, b = a - center, b - center
    squares = a.square().sum(1)[:, None] + b.square().sum(1)
    return (squares - 2 * a @ b.mT).clamp_min(0)


def build_model(num_features: int, num_classes: int, num_inducing: int) -> Any:
    """GPyTorch's model of independent processes that share their inducing points."""
    gpytorch = import_gpytorch()
    base: Any = gpytorch.models.ApproximateGP
    classes = torch.Size([num_classes])

    class Processes(base):  # type: ignore[misc]
        def __init__(self) -> None:
            variational = gpytorch.variational
            q = variational.CholeskyVariationalDistribution(num_inducing, batch_shape=classes)
            points = torch.randn(num_inducing, num_features)
            strategy = variational.VariationalStrategy(self, points, q, jitter_val=JITTER)
            # Else GPyTorch draws the first m by itself, in each process another one.
            strategy.variational_params_initialized.fill_(1)
            super().__init__(
                variational.IndependentMultitaskVariationalStrategy(strategy, num_classes)
            )
            self.mean_module = gpytorch.means.ConstantMean(batch_shape=classes)
            self.covar_module = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.RBFKernel(batch_shape=classes), batch_shape=classes
            )

        def forward(self, z: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(z), self.covar_module(z)
            )

    return Processes()


def import_gpytorch() -> Any:
    """The GPyTorch library, if it is installed."""
    try:
        return importlib.import_module("gpytorch")
    except ModuleNotFoundError:
        raise UserError(
            "DUE needs the GPyTorch library: pip install density-softmax[baselines]"
        ) from None
