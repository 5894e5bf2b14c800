"""Jacobian products of an encoder, v ↦ Jv and u ↦ Jᵀu with J = ∂f/∂x, from one forward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class _Phase:
    """Whether the backward pass under way computes products, or the gradient of a loss."""

    products = False


@final
class Linearization:
    """z = f(x) on a batch, and products with the Jacobian of every sample.

    The forward pass is an ordinary one: products change neither the gradient of a loss on `z` nor
    running statistics, and all of them share the noise of dropout. On the way back, two kinds of
    layers differ from torch's:

    - Batch norm in training mode, unless `freeze_norm` is off. Its statistics depend on all
      samples: ∂z_i/∂x_j ≠ 0 for i ≠ j, and a sample has no Jacobian of its own. In products the
      statistics of the batch count as constants, so that y = γ (x − m) / s + β has derivative
      γ / s, as in evaluation mode, without a second forward pass.
    - Convolutions. Torch differentiates Jᵀu by the weights with a convolution whose kernel is as
      large as the image. The kernel of the ordinary weight gradient computes the same; with it
      the step of a WRN-28-10 takes four fifths of the time.

    A layer without a second derivative, such as `SyncBatchNorm`, raises torch's error.

    Args:
        encoder: the network, or any differentiable function of a batch.
        x: the inputs, (batch, ...).
        freeze_norm: take the statistics of batch norms for constants in products.
    """

    def __init__(
        self, encoder: Callable[[Tensor], Tensor], x: Tensor, freeze_norm: bool = True
    ) -> None:
        self._phase = _Phase()
        self._transpose: tuple[Tensor, Tensor] | None = None
        with torch.enable_grad(), _Replacing(self._phase, freeze_norm):
            self.x = x.detach().requires_grad_()
            # A copy: the first layer may work in place.
            self.z = encoder(self.x.clone())

    def pull(self, u: Tensor, create_graph: bool = False) -> Tensor:
        """Jᵀu of every sample, shaped like x; with a graph, it can be differentiated again."""
        with self._products():
            (pulled,) = torch.autograd.grad(
                self.z, self.x, u, retain_graph=True, create_graph=create_graph
            )
        return pulled

    def push(self, v: Tensor, create_graph: bool = False) -> Tensor:
        """Jv of every sample, shaped like z: the derivative by u of ⟨Jᵀu, v⟩, linear in u."""
        if self._transpose is None:
            u = torch.zeros_like(self.z, requires_grad=True)
            self._transpose = u, self.pull(u, create_graph=True)
        u, pulled = self._transpose
        with self._products():
            (pushed,) = torch.autograd.grad(
                pulled, u, v, retain_graph=True, create_graph=create_graph
            )
        return pushed

    def forget_pushes(self) -> None:
        """Free the graph that `push` keeps for its next call."""
        self._transpose = None

    @contextlib.contextmanager
    def _products(self) -> Iterator[None]:
        self._phase.products = True
        try:
            with torch.enable_grad():
                yield
        finally:
            self._phase.products = False


def left_singular_vectors(f: Linearization, iterations: int) -> Tensor:
    """Unit vectors u like z by the Lanczos method: ‖Jᵀu‖ rises to the spectral norm of J.

    Of all Jv with v in the span of v₁, JᵀJv₁, (JᵀJ)²v₁, …, the longest for its v decides, v₁ being
    drawn at random. Power iteration computes the same products, and takes the last v of the span.

    Args:
        f: the linearised encoder.
        iterations: products with J, the dimension of the span.
    """
    basis, images = [per_sample_unit(torch.randn_like(f.x)).flatten(1)], []
    for number in range(1, iterations + 1):
        images.append(f.push(basis[-1].view_as(f.x)).flatten(1))
        if number < iterations:
            basis.append(_orthogonal_unit(f.pull(images[-1].view_as(f.z)).flatten(1), basis))
    f.forget_pushes()
    spanned = torch.stack(images, -1)
    # A network that has diverged shall end in a loss that is no number, not in an error here.
    _, weights = torch.linalg.eigh((spanned.mT @ spanned).nan_to_num(posinf=0.0))
    return per_sample_unit((spanned @ weights[..., -1:]).view_as(f.z))


def _orthogonal_unit(v: Tensor, basis: Sequence[Tensor]) -> Tensor:
    """The part of v at right angles to an orthonormal basis as a unit vector; 0 if it is rounding.

    Args:
        v: (batch, size).
        basis: each (batch, size).
    """
    B, before = torch.stack(list(basis), 1), v.norm(dim=1, keepdim=True)
    for _ in range(2):  # the second time removes what rounding left in the first
        v = v - ((B @ v[..., None]).mT @ B).squeeze(1)
    is_new = v.norm(dim=1, keepdim=True) > before * torch.finfo(v.dtype).eps ** 0.5
    return torch.where(is_new, F.normalize(v, dim=1), 0.0)


def per_sample_unit(v: Tensor) -> Tensor:
    """Every sample divided by its norm; zero stays zero.

    Args:
        v: (batch, ...).
    """
    return F.normalize(v.flatten(1), dim=1).view_as(v)


class _Replacing(TorchFunctionMode):
    """A context in which networks run with our convolutions and batch norms instead of torch's."""

    def __init__(self, phase: _Phase, freeze_norm: bool) -> None:
        super().__init__()
        self.phase = phase
        convolutions = (torch.conv1d, torch.conv2d, torch.conv3d)
        self.ours: dict[Any, Callable[..., Tensor | None]]
        self.ours = dict.fromkeys(convolutions, self._convolution)
        if freeze_norm:
            self.ours[F.batch_norm] = self._batch_norm

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = self.ours[func](*args, **kwargs) if func in self.ours else None
        return func(*args, **kwargs) if result is None else result

    def _convolution(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | str | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Tensor | None:
        """Ours, or None where the arguments are of a rarer kind."""
        if isinstance(padding, str) or input.ndim != weight.ndim:
            return None
        size = weight.ndim - 2
        stride, padding, dilation = (
            [n] * size if isinstance(n, int) else list(n) for n in (stride, padding, dilation)
        )
        geometry = (stride, padding, dilation, False, [0] * size, groups)
        return _Convolution.apply(input, weight, bias, geometry, self.phase)

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor | None:
        """Ours in training mode; torch refuses a single value, which has no variance."""
        if not training or input.numel() == input.shape[1]:
            return None
        running = running_mean, running_var
        return _BatchNorm.apply(input, weight, bias, running, momentum, eps, self.phase)


class _Convolution(torch.autograd.Function):
    """y = W ∗ x + b. A product takes the gradient by x alone."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Any, phase: _Phase
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry, ctx.phase = geometry, phase
        return torch.ops.aten.convolution(x, weight, bias, *geometry)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        if ctx.phase.products:
            by_x = _ConvolutionTranspose.apply(gradient, x, weight, ctx.geometry, ctx.phase)
            return by_x, None, None, None, None
        gradients = torch.ops.aten.convolution_backward(
            gradient, x, weight, [len(weight)], *ctx.geometry, ctx.needs_input_grad[:3]
        )
        return *gradients, None, None


class _ConvolutionTranspose(torch.autograd.Function):
    """Wᵀg, the gradient of a convolution by its input x, of which only the shape matters."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor, geometry: Any, phase: _Phase
    ) -> Tensor:
        ctx.save_for_backward(gradient, weight)
        ctx.geometry, ctx.phase = geometry, phase
        return torch.ops.aten.convolution_backward(
            gradient, x, weight, None, *geometry, [True, False, False]
        )[0]

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        gradient, weight = ctx.saved_tensors
        by_gradient = torch.ops.aten.convolution(v, weight, None, *ctx.geometry)
        if ctx.phase.products or not ctx.needs_input_grad[2]:
            return by_gradient, None, None, None, None
        by_weight = torch.ops.aten.convolution_backward(
            gradient, v, weight, None, *ctx.geometry, [False, True, False]
        )[1]
        return by_gradient, None, by_weight, None, None


class _BatchNorm(torch.autograd.Function):
    """y = γ (x − m) / s + β in training mode. In a product m and s are constants."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running: tuple[Tensor | None, Tensor | None],
        momentum: float,
        eps: float,
        phase: _Phase,
    ) -> Tensor:
        y, mean, inverse = torch.native_batch_norm(x, weight, bias, *running, True, momentum, eps)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.eps, ctx.phase = eps, phase
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight, mean, inverse = ctx.saved_tensors
        if ctx.phase.products:
            factor = inverse if weight is None else weight * inverse
            by_x = gradient * factor.view(1, -1, *[1] * (x.ndim - 2))
            return by_x, *[None] * 6
        statistics = (None, None, mean, inverse, True, ctx.eps)
        gradients = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, *statistics, ctx.needs_input_grad[:3]
        )
        return *gradients, *[None] * 4
