"""Spectral normalisation: layers whose operator norm is shrunk to a bound, only when above it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from density_softmax.errors import UserError
from density_softmax.nn.backbones.base import measure_width
from density_softmax.nn.execution import full_precision
from density_softmax.nn.layers.surgery import replace_layers

__all__ = ["Spectral", "SpectralBatchNorm", "SpectralConv2d", "SpectralLinear", "constrain", "fold"]

# Power iteration before training ends when a step changes the norm by less than this share of it.
# What is left converges in the first steps of training.
TOLERANCE = 1e-4
MAX_ITERATIONS = 1000

L = TypeVar("L", nn.Linear, nn.Conv2d)


def constrain(
    network: nn.Module,
    bound: float,
    example: Tensor | None = None,
    num_iterations: int = 1,
    norms: bool = False,
) -> list[str]:
    """Keep the spectral norm of every linear layer and 2-d convolution of a network within a bound.

    Args:
        network: changed in place; its layers keep their names and their weights.
        bound: the largest norm, c in W · min(1, c / ‖A‖).
        example: a batch of inputs. The norm of a convolution depends on the size of its images,
            so the network runs once to learn them; without convolutions none is needed.
        num_iterations: power iterations per training step.
        norms: bound batch norms, too.

    Returns:
        The names of the bounded layers.
    """
    if bound <= 0 or num_iterations < 1:
        raise UserError(
            f"spectral bound {bound} with {num_iterations} power iterations: "
            "choose a positive bound and at least one iteration"
        )
    shapes = _input_shapes(network, example)

    def rule(name: str, layer: nn.Module) -> nn.Module | None:
        if isinstance(layer, nn.Linear):
            return SpectralLinear(layer, bound, num_iterations)
        if isinstance(layer, nn.Conv2d) and layer in shapes:
            return SpectralConv2d(layer, bound, shapes[layer], num_iterations)
        if norms and isinstance(layer, _BatchNorm):
            return SpectralBatchNorm(layer, bound)
        return None

    return replace_layers(network, rule)


def fold(network: nn.Module) -> list[str]:
    """Replace bounded layers by plain ones of the same function in evaluation mode."""

    def rule(name: str, layer: nn.Module) -> nn.Module | None:
        return layer.folded() if isinstance(layer, (Spectral, SpectralBatchNorm)) else None

    return replace_layers(network, rule)


class Spectral(nn.Module, ABC):
    """A layer x ↦ A x + b with W · min(1, c / ‖A‖) in place of its weight W (Miyato et al. 2018).

    A is the linear map that the layer applies, not its kernel written as a matrix. In training
    mode every pass improves the leading right singular vector by v ← AᵀAv / ‖AᵀAv‖. The norm is
    ‖Av‖, whose gradient is that of uᵀAv with u = Av / ‖Av‖: u need not be kept. In evaluation
    mode nothing moves, so the norm is measured when that mode begins and costs nothing after.
    """

    weight: Tensor
    v: Tensor
    norm: Tensor

    def __init__(self, bound: float, num_iterations: int, **settings: Any) -> None:
        super().__init__(**settings, device="meta")
        self.bound, self.num_iterations = bound, num_iterations

    @abstractmethod
    def image(self, v: Tensor) -> Tensor:
        """A v."""

    @abstractmethod
    def folded(self) -> nn.Module:
        """A plain layer with the bounded weight."""

    def bounded_weight(self) -> Tensor:
        """W · min(1, c / ‖A‖), equal to W to the last bit where ‖A‖ ≤ c."""
        norm = self._iterated() if self.training else self.norm
        return self.weight / (norm / self.bound).clamp_min(1)

    def train(self, mode: bool = True) -> Spectral:
        """Set the mode; the norm that evaluation uses is that of the weights it begins with."""
        super().train(mode)
        if not mode:
            self.norm.copy_(self.measured())
        return self

    @torch.no_grad()
    def measured(self) -> Tensor:
        """‖Av‖ of the present weights."""
        with full_precision(self.weight):
            return torch.linalg.vector_norm(self.image(self.v))

    def _begin(self, shape: tuple[int, ...]) -> None:
        """Find v and the norm for inputs of `shape`."""
        v = torch.randn(1, *shape, device=self.weight.device, dtype=self.weight.dtype)
        norm = v.new_zeros(())
        v /= torch.linalg.vector_norm(v)
        for _ in range(MAX_ITERATIONS):
            before = norm
            v, norm = self._improved(v)
            if norm - before <= TOLERANCE * norm:
                break
        self.register_buffer("v", v)
        self.register_buffer("norm", norm)

    def _iterated(self) -> Tensor:
        """The norm, differentiable in W, after the power iterations of a training step."""
        with full_precision(self.weight):
            v = self.v
            for _ in range(self.num_iterations):
                v, _ = self._improved(v)
            norm = torch.linalg.vector_norm(self.image(v))
        self.v.copy_(v)
        self.norm.copy_(norm.detach())
        return norm

    def _improved(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """AᵀAv / ‖AᵀAv‖, or v itself where A is zero, and ‖Av‖."""
        with torch.enable_grad():
            start = v.detach().requires_grad_()
            image = self.image(start)
        # Aᵀ by differentiation: true to any stride, padding and size.
        u = image.detach()
        (w,) = torch.autograd.grad(image, start, u)
        length = torch.linalg.vector_norm(w)
        return torch.where(length > 0, w / length, v), torch.linalg.vector_norm(u)


@final
class SpectralLinear(Spectral, nn.Linear):
    """A linear layer with ‖W‖ ≤ c."""

    def __init__(self, layer: nn.Linear, bound: float, num_iterations: int = 1) -> None:
        super().__init__(bound, num_iterations, **_settings(layer))
        self.weight, self.bias, self.training = layer.weight, layer.bias, layer.training
        self._begin((layer.in_features,))

    def forward(self, x: Tensor) -> Tensor:
        """W x + b."""
        return F.linear(x, self.bounded_weight(), self.bias)

    def image(self, v: Tensor) -> Tensor:
        """W v."""
        return F.linear(v, self.weight)

    def folded(self) -> nn.Linear:
        """A plain linear layer."""
        return _bake(self, nn.Linear(**_settings(self), device="meta"))


@final
class SpectralConv2d(Spectral, nn.Conv2d):
    """A convolution whose norm, on images of the size it was built for, is at most c.

    Padding and stride count: a kernel written as a matrix can differ from its convolution by a
    factor of up to the root of the kernel's area.
    """

    def __init__(
        self, layer: nn.Conv2d, bound: float, image_shape: tuple[int, ...], num_iterations: int = 1
    ) -> None:
        super().__init__(bound, num_iterations, **_settings(layer))
        self.weight, self.bias, self.training = layer.weight, layer.bias, layer.training
        self._begin(image_shape)

    def forward(self, x: Tensor) -> Tensor:
        """W ∗ x + b."""
        return self._conv_forward(x, self.bounded_weight(), self.bias)

    def image(self, v: Tensor) -> Tensor:
        """W ∗ v."""
        return self._conv_forward(v, self.weight, None)

    def folded(self) -> nn.Conv2d:
        """A plain convolution."""
        return _bake(self, nn.Conv2d(**_settings(self), device="meta"))


@final
class SpectralBatchNorm(_BatchNorm):
    """γ · min(1, c / max_i |γ_i / σ_i|) in place of γ (van Amersfoort et al. 2021, DUE).

    As a diagonal map a batch norm has the norm max_i |γ_i / σ_i| (Gouk et al. 2021, Eq. 28), with
    σ² = variance + ε from the running statistics, in training, too, as in DUE: there the bound
    holds for what evaluation would do with the weights of the moment.
    """

    plain: type[_BatchNorm]

    def __init__(self, layer: _BatchNorm, bound: float) -> None:
        if layer.running_var is None or layer.momentum is None:
            raise UserError(
                "the norm of a batch norm is bounded through its running variance: "
                "set track_running_stats=True and a momentum"
            )
        super().__init__(layer.num_features, layer.eps, layer.momentum, layer.affine, device="meta")
        self.plain = layer.plain if isinstance(layer, SpectralBatchNorm) else type(layer)
        self.bound = bound
        self.training = layer.training
        _share(layer, self)

    def forward(self, x: Tensor) -> Tensor:
        """The batch norm of x with the bounded γ."""
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return F.batch_norm(
            *(x, self.running_mean, self.running_var, self.bounded_weight(), self.bias),
            *(self.training, self.momentum or 0.0, self.eps),
        )

    def bounded_weight(self) -> Tensor:
        """γ · min(1, c / max_i |γ_i / σ_i|)."""
        deviation = (cast(Tensor, self.running_var) + self.eps).sqrt()
        weight = self.weight if self.affine else torch.ones_like(deviation)
        return weight / ((weight / deviation).abs().amax() / self.bound).clamp_min(1)

    def folded(self) -> _BatchNorm:
        """A plain batch norm."""
        layer = self.plain(self.num_features, self.eps, self.momentum, device="meta")
        layer.training = self.training
        _share(self, layer)
        layer.weight = nn.Parameter(self.bounded_weight().detach())
        if not self.affine:
            layer.bias = nn.Parameter(torch.zeros_like(layer.weight))
        return layer


@torch.no_grad()
def _input_shapes(network: nn.Module, example: Tensor | None) -> dict[nn.Module, tuple[int, ...]]:
    """The shapes of the images that each convolution sees, the largest if there are several."""
    convolutions = [(n, m) for n, m in network.named_modules() if isinstance(m, nn.Conv2d)]
    shapes: dict[nn.Module, tuple[int, ...]] = {}
    if not convolutions:
        return shapes
    if example is None:
        raise UserError(
            f"the spectral norm of the convolution '{convolutions[0][0]}' depends on the size of "
            "its images: pass example=, a batch of inputs"
        )

    def see(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        shapes[layer] = max(shapes.get(layer, ()), tuple(inputs[0].shape[1:]))

    hooks = [layer.register_forward_pre_hook(see) for _, layer in convolutions]
    try:
        measure_width(network, example)
    finally:
        for hook in hooks:
            hook.remove()
    return shapes


_LINEAR = ("in_features", "out_features")
_CONV2D = (
    *("in_channels", "out_channels", "kernel_size", "stride"),
    *("padding", "dilation", "groups", "padding_mode"),
)


def _settings(layer: nn.Linear | nn.Conv2d) -> dict[str, Any]:
    """What it takes to construct a layer of the same shape."""
    names = _LINEAR if isinstance(layer, nn.Linear) else _CONV2D
    return {name: getattr(layer, name) for name in names}


def _bake(layer: SpectralLinear | SpectralConv2d, plain: L) -> L:
    """`plain` with the bounded weight of `layer`."""
    weight = layer.weight.detach() / (layer.measured() / layer.bound).clamp_min(1)
    plain.weight, plain.training = nn.Parameter(weight), layer.training
    plain.register_parameter("bias", cast("nn.Parameter | None", layer.bias))
    return plain


def _share(source: _BatchNorm, target: _BatchNorm) -> None:
    """Let a batch norm have the parameters and running statistics of another."""
    target.weight, target.bias = source.weight, source.bias
    for name, buffer in source.named_buffers():
        target.register_buffer(name, buffer)
