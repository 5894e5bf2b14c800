"""Spectral normalisation: layers whose operator norm is shrunk to a bound, only when above it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from density_softmax.errors import UserError
from density_softmax.nn.backbones.base import measure_width
from density_softmax.nn.execution import full_precision
from density_softmax.nn.layers.surgery import replace_layers
from density_softmax.nn.taps import CallRecorder

# Power iteration before training ends when a step changes the norm by less than this share of it.
# What is left converges in the first steps of training.
TOLERANCE = 1e-4
MAX_ITERATIONS = 1000


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
    shapes = _image_shapes(network, example)

    def rule(name: str, layer: nn.Module) -> nn.Module | None:
        if isinstance(layer, nn.Linear):
            return SpectralLinear(layer, bound, (layer.in_features,), num_iterations)
        if isinstance(layer, nn.Conv2d) and name in shapes:
            return SpectralConv2d(layer, bound, shapes[name], num_iterations)
        if norms and isinstance(layer, _BatchNorm):
            return SpectralBatchNorm(layer, bound)
        return None

    return replace_layers(network, rule)


def fold(network: nn.Module) -> list[str]:
    """Replace bounded layers by plain ones of the same function in evaluation mode.

    Args:
        network: changed in place.

    Returns:
        The names of the replaced layers.
    """

    def rule(name: str, layer: nn.Module) -> nn.Module | None:
        return layer.folded() if isinstance(layer, (Spectral, SpectralBatchNorm)) else None

    return replace_layers(network, rule)


class Spectral(nn.Module, ABC):
    """A layer x ↦ A x + b with W · min(1, c / ‖A‖) in place of its weight W (Miyato et al. 2018).

    A is the linear map that the layer applies, not its kernel written as a matrix. In training
    mode every pass improves the leading right singular vector by v ← AᵀAv / ‖AᵀAv‖. The norm is
    ‖Av‖, whose gradient is that of uᵀAv with u = Av / ‖Av‖: u need not be kept. In evaluation
    mode the norm is constant, and is measured once when that mode begins.

    Args:
        layer: the plain layer, whose parameters become this layer's.
        bound: c.
        shape: of one input, without the batch.
        num_iterations: power iterations per training step.
    """

    plain: ClassVar[type[nn.Module]]
    settings: ClassVar[tuple[str, ...]]
    weight: Tensor
    v: Tensor
    norm: Tensor

    def __init__(
        self, layer: Any, bound: float, shape: tuple[int, ...], num_iterations: int = 1
    ) -> None:
        super().__init__(**self._settings(layer))
        self.weight, self.bias, self.training = layer.weight, layer.bias, layer.training
        self.bound, self.num_iterations = bound, num_iterations
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

    @abstractmethod
    def affine(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The plain layer with this weight and bias."""

    def forward(self, x: Tensor) -> Tensor:
        """A x + b with the bounded weight."""
        return self.affine(x, self.bounded_weight(), self.bias)

    def bounded_weight(self) -> Tensor:
        """W · min(1, c / ‖A‖), equal to W to the last bit where ‖A‖ ≤ c."""
        norm = self._iterated() if self.training else self.norm
        return self.weight / (norm / self.bound).clamp_min(1)

    def train(self, mode: bool = True) -> Spectral:
        """Set the mode; the norm that evaluation uses is measured when it begins."""
        super().train(mode)
        if not mode:
            self.norm.copy_(self._measured())
        return self

    def folded(self) -> nn.Module:
        """A plain layer with the bounded weight."""
        layer = self.plain(**self._settings(self))
        weight = self.weight.detach() / (self._measured() / self.bound).clamp_min(1)
        layer.weight, layer.training = nn.Parameter(weight), self.training
        layer.register_parameter("bias", cast("nn.Parameter | None", self.bias))
        return layer

    @classmethod
    def _settings(cls, layer: nn.Module) -> dict[str, Any]:
        """The arguments that construct a layer of the same shape, without memory for its weight."""
        return {"device": "meta", **{name: getattr(layer, name) for name in cls.settings}}

    def _image(self, v: Tensor) -> Tensor:
        """A v."""
        return self.affine(v, self.weight, None)

    @torch.no_grad()
    def _measured(self) -> Tensor:
        """‖Av‖ of the present weights."""
        with full_precision(self.weight):
            return torch.linalg.vector_norm(self._image(self.v))

    def _iterated(self) -> Tensor:
        """The norm, differentiable in W, after the power iterations of a training step."""
        with full_precision(self.weight):
            v = self.v
            for _ in range(self.num_iterations):
                v, _ = self._improved(v)
            norm = torch.linalg.vector_norm(self._image(v))
        self.v.copy_(v)
        self.norm.copy_(norm.detach())
        return norm

    def _improved(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """AᵀAv / ‖AᵀAv‖, or v itself where A is zero, and ‖Av‖."""
        with torch.enable_grad():
            start = v.detach().requires_grad_()
            image = self._image(start)
        # Aᵀ by differentiation: correct for any stride, padding and size.
        u = image.detach()
        (w,) = torch.autograd.grad(image, start, u)
        length = torch.linalg.vector_norm(w)
        return torch.where(length > 0, w / length, v), torch.linalg.vector_norm(u)


@final
class SpectralLinear(Spectral, nn.Linear):
    """A linear layer with ‖W‖ ≤ c."""

    plain, settings = nn.Linear, ("in_features", "out_features")

    def affine(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """W x + b."""
        return F.linear(x, weight, bias)


@final
class SpectralConv2d(Spectral, nn.Conv2d):
    """A convolution whose norm, on images of the size it was built for, is at most c.

    Padding and stride count: a kernel written as a matrix can differ from its convolution by a
    factor of up to the root of the kernel's area.
    """

    plain = nn.Conv2d
    settings = (
        *("in_channels", "out_channels", "kernel_size", "stride"),
        *("padding", "dilation", "groups", "padding_mode"),
    )

    def affine(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """W ∗ x + b."""
        return self._conv_forward(x, weight, bias)


@final
class SpectralBatchNorm(_BatchNorm):
    """γ · min(1, c / max_i |γ_i / σ_i|) in place of γ (van Amersfoort et al. 2021, DUE).

    As a diagonal map a batch norm has the norm max_i |γ_i / σ_i| (Gouk et al. 2021, Eq. 28), with
    σ² = variance + ε from the running statistics. As in DUE this holds in training too, where the
    bound is that of evaluation with the current weights.

    Args:
        layer: the plain batch norm, whose parameters and statistics become this layer's.
        bound: c.
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
def _image_shapes(network: nn.Module, example: Tensor | None) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs of convolutions by name, the largest if there are several."""
    names = tuple(n for n, module in network.named_modules() if isinstance(module, nn.Conv2d))
    if names and example is None:
        raise UserError(
            f"the spectral norm of the convolution '{names[0]}' depends on the size of its "
            "images: pass example=, a batch of inputs"
        )
    shapes: dict[str, tuple[int, ...]] = {}

    def read(name: str, inputs: Any, output: Any) -> None:
        shapes[name] = max(shapes.get(name, ()), tuple(inputs[0].shape[1:]))

    if names and example is not None:
        with CallRecorder(names, read).recording(network):
            measure_width(network, example)
    return shapes


def _share(source: _BatchNorm, target: _BatchNorm) -> None:
    """Give a batch norm the parameters and running statistics of another."""
    target.weight, target.bias = source.weight, source.bias
    for name, buffer in source.named_buffers():
        target.register_buffer(name, buffer)
