"""Lipschitz facts: how far a trained encoder is from the constant 1 that its penalty aims at."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from density_softmax.errors import UserError
from density_softmax.nn.backbones.resffn import ResFFN, ResidualBlock
from density_softmax.nn.backbones.resnet import (
    BasicBlock,
    Bottleneck,
    CifarResNet,
    ResNet,
    SubsampleAndPad,
)
from density_softmax.nn.backbones.wide_resnet import PreActivationBlock, WideResNet
from density_softmax.nn.lipschitz.linearization import Linearization, left_singular_vectors

__all__ = ["lower_bound", "operator_norm", "upper_bound"]

# Between dense layers, so many units have so few on/off patterns that all of them are tried.
MAX_PATTERN_UNITS = 12
# Operators on at most so many inputs are written out and decomposed.
MAX_DENSE_INPUTS = 256
# Relative accuracy of the norms of larger operators, and what they are raised by.
TOLERANCE = 1e-3

Map = Callable[[Tensor], Tensor]


def lower_bound(encoder: nn.Module, x: Tensor, iterations: int = 20) -> float:
    """The largest ‖∂f/∂x‖₂ on a batch, in evaluation mode: no Lipschitz constant is smaller.

    By power iteration, which approaches the norm of each sample from below.
    """
    f = Linearization(copy.deepcopy(encoder).eval(), x)
    return float(f.pull(left_singular_vectors(f, iterations)).flatten(1).norm(dim=1).max())


def upper_bound(encoder: nn.Module, input_shape: tuple[int, ...]) -> float:
    """A Lipschitz constant of the encoder in evaluation mode, on inputs of `input_shape`.

    AutoLip (Virmaux & Scaman 2018, https://arxiv.org/abs/1805.10965) multiplies the norms of
    linear layers and takes activations for 1; residual branches add up. Linear layers in a row,
    such as a convolution and its batch norm, count as one operator, on images of the size they
    really see. Norms of large operators are found by the Lanczos method, power iteration that
    remembers, and raised by its tolerance.

    An activation of slope between 0 and 1 is the mean of the identity and of a map that does
    not expand, so that ‖W₂ a(W₁ ·)‖ ≤ ½ ‖W₂W₁‖ + ½ ‖W₂‖ ‖W₁‖: the worst directions of the two
    layers need not meet. This rule of Combettes & Pesquet (2020,
    https://arxiv.org/abs/1903.01014) is applied to every run of layers, convolutions included,
    and in residual blocks together with the shortcut. SeqLip proper, the maximum over on/off
    patterns of the activations, is exponential in the number of units. Between dense layers of
    at most 12 units it is computed and the smaller bound taken; elsewhere, and so for all
    convolutions in practice, it is not affordable. Its greedy search for the maximum is not used:
    it can miss the maximum, and then bounds nothing. A WRN-28-10 takes minutes on a CPU.

    Raises:
        UserError: for a module whose constant is not known, or that has none.
    """
    network = copy.deepcopy(encoder).eval().requires_grad_(False)
    for module in network.modules():
        if isinstance(module, _AFFINE):
            _drop_shift(module)
    like = next(network.parameters(), torch.zeros(()))
    return _chain(_pieces(network), like.new_zeros(1, *input_shape))[0]


_AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, _BatchNorm)


def _drop_shift(module: nn.Module) -> None:
    """Make an affine layer linear, which leaves its Lipschitz constant as it is."""
    for name in ("bias", "running_mean"):
        shift = getattr(module, name, None)
        if shift is not None:
            shift.zero_()


@final
@dataclass(frozen=True)
class Linear:
    """A linear map."""

    apply: Map


@final
@dataclass(frozen=True)
class Activation:
    """An entrywise function with slopes between 0 and 1."""


class Piece(ABC):
    """Any other part of a network. Inputs are described by an example, a batch of one."""

    @abstractmethod
    def bound(self, x: Tensor) -> tuple[float, Tensor]:
        """A Lipschitz constant on inputs like `x`, and an example of the outputs."""


Part = Linear | Activation | Piece


@final
@dataclass(frozen=True)
class Run(Piece):
    """Linear maps with activations between them."""

    parts: Sequence[Part]

    def bound(self, x: Tensor) -> tuple[float, Tensor]:
        """The smaller of the averaged bound and, where it is affordable, that of SeqLip."""
        layers = _layers(self.parts)
        if not layers:
            return 1.0, x
        *examples, out = _examples(layers, x)
        bound = _averaged(layers, examples)
        if len(layers) > 1 and max(h.numel() for h in examples[1:]) <= MAX_PATTERN_UNITS:
            bound = min(bound, _seqlip([_matrix(*pair) for pair in zip(layers, examples)]))  # noqa: B905
        return bound, out


@final
@dataclass(frozen=True)
class Residual(Piece):
    """s(x) + b(x) with a linear shortcut s and a run b."""

    shortcut: Sequence[Part]
    branch: Sequence[Part]

    def bound(self, x: Tensor) -> tuple[float, Tensor]:
        """The averaged bound of both together."""
        (shortcut,) = _layers(self.shortcut)
        layers = _layers(self.branch)
        if isinstance(self.branch[-1], Activation):
            layers.append(_identity)
        *examples, out = _examples(layers, x)
        return _averaged(layers, examples, shortcut), out


@final
@dataclass(frozen=True)
class MaxPool(Piece):
    """Maxima over windows: a pixel in n windows moves up to n outputs, by √n in norm."""

    pool: nn.MaxPool2d

    def bound(self, x: Tensor) -> tuple[float, Tensor]:
        """√(windows that a pixel is in)."""
        sides = (self.pool.kernel_size, self.pool.stride, self.pool.dilation)
        pairs = zip(*((n, n) if isinstance(n, int) else n for n in sides), strict=True)
        windows = [
            -(-size // stride) if dilation == 1 else size for size, stride, dilation in pairs
        ]
        return math.sqrt(math.prod(windows)), self.pool(x)


def _chain(parts: Iterable[Part], x: Tensor) -> tuple[float, Tensor]:
    """The product over pieces; linear maps and activations in a row form one piece."""
    bound = 1.0
    for piece in _pieces_of(parts):
        factor, x = piece.bound(x)
        bound *= factor
    return bound, x


def _pieces_of(parts: Iterable[Part]) -> Iterator[Piece]:
    run: list[Part] = []
    for part in parts:
        if isinstance(part, Piece):
            yield from ([Run(run)] if run else [])
            yield part
            run = []
        else:
            run.append(part)
    if run:
        yield Run(run)


def _layers(parts: Iterable[Part]) -> list[Map]:
    """The linear maps between activations, neighbours composed."""
    groups = itertools.groupby(parts, lambda part: isinstance(part, Linear))
    maps = [[part.apply for part in group if isinstance(part, Linear)] for _, group in groups]
    return [_composed(group) for group in maps if group]


def _composed(maps: Sequence[Map]) -> Map:
    return lambda x: functools.reduce(lambda h, apply: apply(h), maps, x)


def _identity(x: Tensor) -> Tensor:
    return x


def _examples(layers: Sequence[Map], x: Tensor) -> list[Tensor]:
    """The input of every layer, and the output of the last."""
    return list(itertools.accumulate(layers, lambda h, apply: apply(h), initial=x))


def _averaged(
    layers: Sequence[Map], examples: Sequence[Tensor], shortcut: Map | None = None
) -> float:
    """Combettes & Pesquet: with a = (I + q)/2, expand all products of layers and activations.

    θ_k = Σ_{i<k} θ_i ‖W_k … W_{i+1}‖ collects the terms of the first k layers by their last q, and
    θ_m / 2^{m−1} bounds the run of m layers. One of its terms, W_m … W_1 / 2^{m−1}, is linear;
    there the shortcut is added inside the norm.
    """
    m, theta = len(layers), [1.0]

    def norm(i: int, k: int) -> float:
        return operator_norm(_composed(layers[i:k]), examples[i])

    def straight(x: Tensor) -> Tensor:
        y = share * _composed(layers)(x)
        return y if shortcut is None else y + shortcut(x)

    share = 2.0 ** (1 - m)
    for k in range(1, m):
        theta.append(sum(theta[i] * norm(i, k) for i in range(k)))
    bent = sum(theta[i] * norm(i, m) for i in range(1, m))
    return operator_norm(straight, examples[0]) + share * bent


def _seqlip(matrices: Sequence[Tensor]) -> float:
    """Π_i max_D ‖Σ_{i+1} Vᵀ_{i+1} D U_i Σ_i‖ over 0/1 diagonals D, with W_i = U_i Σ_i V_iᵀ.

    A layer that has activations on both sides gives √Σ_i to each.
    """
    bound, last = 1.0, len(matrices) - 1
    decompositions = [torch.linalg.svd(matrix, full_matrices=False) for matrix in matrices]
    for i, ((left, s, _), (_, t, right)) in enumerate(itertools.pairwise(decompositions)):
        below = left * (s if i == 0 else s.sqrt())
        above = (t if i + 1 == last else t.sqrt())[:, None] * right
        patterns = torch.tensor(list(itertools.product((0.0, 1.0), repeat=len(left)))).to(left)
        products = above @ (patterns[:, :, None] * below)
        bound *= float(torch.linalg.matrix_norm(products, ord=2).max())
    return bound


def operator_norm(apply: Map, x: Tensor) -> float:
    """‖A‖₂ of a linear map on tensors like `x`, a batch of one."""
    size = x.numel()
    if size <= MAX_DENSE_INPUTS:
        return float(torch.linalg.matrix_norm(_matrix(apply, x), ord=2))

    def gram(v: np.ndarray) -> np.ndarray:
        """AᵀA v."""
        with torch.enable_grad():
            h = torch.from_numpy(v).to(x).view_as(x).requires_grad_()
            y = apply(h)
            (product,) = torch.autograd.grad(y, h, y.detach())
        return product.flatten().double().cpu().numpy()

    start = np.random.default_rng(0).standard_normal(size)
    if not gram(start).any():
        return 0.0
    operator = LinearOperator((size, size), matvec=gram, dtype=np.float64)
    (value,) = eigsh(operator, k=1, v0=start, tol=TOLERANCE, return_eigenvectors=False)
    return math.sqrt(value) * (1 + TOLERANCE)


def _matrix(apply: Map, x: Tensor) -> Tensor:
    """The matrix of a linear map on tensors like `x`, from the images of the unit vectors."""
    basis = torch.eye(x.numel(), dtype=x.dtype, device=x.device)
    return apply(basis.view(-1, *x.shape[1:])).flatten(1).T


@functools.singledispatch
def _pieces(module: nn.Module) -> list[Part]:
    """What a module consists of; its affine layers have lost their shifts already."""
    raise UserError(
        f"no Lipschitz constant of {type(module).__name__} is known: the bound knows linear, "
        "convolution, batch norm, pooling and activation layers, nn.Sequential, and this "
        "package's residual networks"
    )


_LINEAR: tuple[type[nn.Module], ...] = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d, SubsampleAndPad),
)
_ACTIVATIONS: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Softplus, nn.Tanh, nn.Sigmoid),
)

for kind in _LINEAR:
    _pieces.register(kind, lambda module: [Linear(module)])
for kind in _ACTIVATIONS:
    _pieces.register(kind, lambda module: [Activation()])


@_pieces.register
def _(module: _BatchNorm) -> list[Part]:
    if module.running_var is None:
        raise UserError(
            "a batch norm without running statistics has no Lipschitz constant: its output "
            "depends on the rest of the batch"
        )
    return [Linear(module)]


@_pieces.register
def _(module: nn.LeakyReLU) -> list[Part]:
    if not 0 <= module.negative_slope <= 1:
        raise UserError(f"negative_slope={module.negative_slope}: expected a slope in [0, 1]")
    return [Activation()]


@_pieces.register
def _(module: nn.MaxPool2d) -> list[Part]:
    return [MaxPool(module)]


@_pieces.register
def _(module: nn.Sequential) -> list[Part]:
    return [part for child in module for part in _pieces(child)]


@_pieces.register
def _(module: ResidualBlock) -> list[Part]:
    return [Residual([Linear(_identity)], [Linear(module.linear), Activation()])]


@_pieces.register
def _(module: ResFFN) -> list[Part]:
    return [Linear(module.input), *(part for block in module.blocks for part in _pieces(block))]


@_pieces.register
def _(module: PreActivationBlock) -> list[Part]:
    branch = _activated(module.bn1, nn.Sequential(module.conv1, module.bn2), module.conv2)
    return [Residual(_pieces(module.shortcut), branch)]


@_pieces.register
def _(module: BasicBlock) -> list[Part]:
    branch = _activated(
        nn.Sequential(module.conv1, module.bn1), nn.Sequential(module.conv2, module.bn2)
    )
    return [Residual(_pieces(module.shortcut), branch), Activation()]


@_pieces.register
def _(module: Bottleneck) -> list[Part]:
    branch = _activated(
        nn.Sequential(module.conv1, module.bn1),
        nn.Sequential(module.conv2, module.bn2),
        nn.Sequential(module.conv3, module.bn3),
    )
    return [Residual(_pieces(module.downsample), branch), Activation()]


def _activated(first: Map, *others: Map) -> list[Part]:
    """Linear maps with an activation between each two."""
    return [Linear(first), *(p for other in others for p in (Activation(), Linear(other)))]


def _mean_of_pixels(x: Tensor) -> Tensor:
    return x.mean(dim=(2, 3))


@_pieces.register
def _(module: WideResNet) -> list[Part]:
    groups = _pieces(nn.Sequential(module.group1, module.group2, module.group3))
    return [Linear(module.stem), *groups, *_activated(module.bn, _mean_of_pixels)]


@_pieces.register
def _(module: ResNet) -> list[Part]:
    stem = nn.Sequential(module.conv1, module.bn1, module.activation, nn.MaxPool2d(3, 2, 1))
    groups = nn.Sequential(module.layer1, module.layer2, module.layer3, module.layer4)
    return [*_pieces(stem), *_pieces(groups), Linear(_mean_of_pixels)]


@_pieces.register
def _(module: CifarResNet) -> list[Part]:
    stem = nn.Sequential(module.conv1, module.bn1, module.activation)
    groups = nn.Sequential(module.layer1, module.layer2, module.layer3)
    return [*_pieces(stem), *_pieces(groups), Linear(_mean_of_pixels)]
