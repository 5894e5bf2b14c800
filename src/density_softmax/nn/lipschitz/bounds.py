"""Bounds on the Lipschitz constant of an encoder: from below on data, from above everywhere."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from density_softmax.errors import UserError
from density_softmax.nn.lipschitz.linearization import Linearization, left_singular_vectors

# Dense layers with at most so many units between them have few enough on/off patterns to try all.
MAX_PATTERN_UNITS = 12
# Operators on at most so many inputs are written out and decomposed.
MAX_DENSE_INPUTS = 256
# Relative accuracy of the norms of larger operators, which are raised by it.
TOLERANCE = 1e-3

Map = Callable[[Tensor], Tensor]


class Bounded(nn.Module, ABC):
    """A network, or a block of one, that reports a Lipschitz constant of its own."""

    @abstractmethod
    def lipschitz_bound(self, x: Tensor) -> tuple[float, Tensor]:
        """A Lipschitz constant on inputs like `x`, (1, ...), and an example of the outputs.

        `upper_bound` calls it in evaluation mode, after it has set the shifts of all affine
        layers to zero.
        """


class LinearMap(nn.Module):
    """Marks a layer as linear, so that bounds compose it with the linear layers next to it."""


AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, _BatchNorm)
LINEAR = (
    *(*AFFINE, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Identity),
    *(nn.Dropout, nn.Dropout2d, LinearMap),
)
# Entrywise functions with slopes between 0 and 1.
ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh, nn.Softplus, nn.Tanh, nn.Sigmoid)
OPAQUE = (Bounded, nn.MaxPool2d)  # bounded by themselves, without their neighbours


def lower_bound(encoder: nn.Module, x: Tensor, iterations: int = 20) -> float:
    """The largest ‖∂f/∂x‖₂ on a batch, in evaluation mode: no Lipschitz constant is smaller.

    The Lanczos method approaches the norm of each sample from below.

    Args:
        encoder: f; it stays as it is.
        x: (batch, ...).
        iterations: of that method.
    """
    f = Linearization(copy.deepcopy(encoder).eval(), x)
    return float(f.pull(left_singular_vectors(f, iterations)).flatten(1).norm(dim=1).max())


def upper_bound(encoder: nn.Module, input_shape: tuple[int, ...]) -> float:
    """A Lipschitz constant of the encoder in evaluation mode.

    AutoLip (Virmaux & Scaman 2018, https://arxiv.org/abs/1805.10965) multiplies the norms of
    linear layers and takes activations for 1; residual branches add up. Linear layers in a row,
    such as a convolution and its batch norm, count as one operator, on images of the size they
    really see. Norms of large operators come from the Lanczos method, and are raised by its
    tolerance.

    An activation of slope between 0 and 1 is the mean of the identity and of a map that does
    not expand, so that ‖W₂ a(W₁ ·)‖ ≤ ½ ‖W₂W₁‖ + ½ ‖W₂‖ ‖W₁‖: the worst directions of the two
    layers need not meet. This rule of Combettes & Pesquet (2020,
    https://arxiv.org/abs/1903.01014) is applied to every run of layers, and in residual blocks
    together with the shortcut. SeqLip proper, the maximum over on/off patterns of the activations,
    is exponential in the number of units: the smaller bound is taken between dense layers of at
    most 12 units. Its greedy search can miss the maximum and is not used. A WRN-28-10 takes
    minutes on a CPU.

    Args:
        encoder: layers of torch, or anything `Bounded`; it stays as it is.
        input_shape: of one input, without the batch.

    Raises:
        UserError: for a module whose constant is not known, or that has none.
    """
    network = copy.deepcopy(encoder).eval().requires_grad_(False)
    for module in network.modules():
        for name in ("bias", "running_mean") if isinstance(module, AFFINE) else ():
            shift = getattr(module, name, None)
            if shift is not None:
                shift.zero_()
    like = next(network.parameters(), torch.zeros(()))
    return chain_bound([network], like.new_zeros(1, *input_shape))[0]


def chain_bound(modules: Iterable[nn.Module], x: Tensor) -> tuple[float, Tensor]:
    """A Lipschitz constant of modules one after another, and an example of the outputs.

    The product over modules that bound themselves and over the runs of linear layers and
    activations between them.

    Args:
        modules: in the order in which they run.
        x: an example of the inputs, (1, ...).
    """
    bound = 1.0
    for opaque, group in itertools.groupby(_leaves(modules), lambda m: isinstance(m, OPAQUE)):
        for step in ([module] for module in group) if opaque else [list(group)]:
            factor, x = _opaque_bound(step[0], x) if opaque else _run_bound(step, x)
            bound *= factor
    return bound, x


def residual_bound(
    shortcut: nn.Module, branch: Iterable[nn.Module], x: Tensor
) -> tuple[float, Tensor]:
    """A Lipschitz constant of s(x) + b(x), and an example of the outputs.

    Args:
        shortcut: s, linear.
        branch: b, linear layers and activations in the order in which they run.
        x: an example of the inputs, (1, ...).
    """
    (straight,) = _linear_maps(_leaves([shortcut]))
    layers = list(_leaves(branch))
    maps = _linear_maps(layers)
    if isinstance(layers[-1], ACTIVATIONS):
        maps.append(nn.Identity())
    *examples, out = _examples(maps, x)
    return _averaged(maps, examples, straight), out


def _operator_norm(apply: Map, x: Tensor) -> float:
    """‖A‖₂ of a linear map on tensors like `x`, a batch of one."""
    from scipy.sparse.linalg import LinearOperator, eigsh

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


def _leaves(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Modules of which a bound is known, with those inside of `nn.Sequential`."""
    for module in modules:
        if isinstance(module, nn.Sequential):
            yield from _leaves(module)
        else:
            _check(module)
            yield module


def _check(module: nn.Module) -> None:
    if isinstance(module, _BatchNorm) and module.running_var is None:
        raise UserError(
            "a batch norm without running statistics has no Lipschitz constant: its output "
            "depends on the rest of the batch"
        )
    if isinstance(module, nn.LeakyReLU) and not 0 <= module.negative_slope <= 1:
        raise UserError(f"negative_slope={module.negative_slope}: expected a slope in [0, 1]")
    if not isinstance(module, (*LINEAR, *ACTIVATIONS, *OPAQUE)):
        raise UserError(
            f"no Lipschitz constant of {type(module).__name__} is known: the bound knows linear, "
            "convolution, batch norm, pooling and activation layers, nn.Sequential, and this "
            "package's residual networks"
        )


def _opaque_bound(module: nn.Module, x: Tensor) -> tuple[float, Tensor]:
    if isinstance(module, Bounded):
        return module.lipschitz_bound(x)
    assert isinstance(module, nn.MaxPool2d)
    # A pixel in n windows moves up to n of the maxima, by √n in norm.
    sides = (module.kernel_size, module.stride, module.dilation)
    pairs = zip(*((n, n) if isinstance(n, int) else n for n in sides), strict=True)
    windows = [-(-size // stride) if dilation == 1 else size for size, stride, dilation in pairs]
    return math.sqrt(math.prod(windows)), module(x)


def _run_bound(run: Sequence[nn.Module], x: Tensor) -> tuple[float, Tensor]:
    """The smaller of the averaged bound and, where it is affordable, that of SeqLip."""
    maps = _linear_maps(run)
    if not maps:
        return 1.0, x
    *examples, out = _examples(maps, x)
    bound = _averaged(maps, examples)
    if len(maps) > 1 and max(h.numel() for h in examples[1:]) <= MAX_PATTERN_UNITS:
        bound = min(bound, _seqlip([_matrix(*pair) for pair in zip(maps, examples, strict=True)]))
    return bound, out


def _linear_maps(layers: Iterable[nn.Module]) -> list[Map]:
    """The linear maps between activations, neighbours composed."""
    groups = itertools.groupby(layers, lambda layer: isinstance(layer, ACTIVATIONS))
    return [_composed(list(group)) for activation, group in groups if not activation]


def _composed(maps: Sequence[Map]) -> Map:
    return lambda x: functools.reduce(lambda h, apply: apply(h), maps, x)


def _examples(maps: Sequence[Map], x: Tensor) -> list[Tensor]:
    """The input of every map, and the output of the last."""
    return list(itertools.accumulate(maps, lambda h, apply: apply(h), initial=x))


def _averaged(
    maps: Sequence[Map], examples: Sequence[Tensor], shortcut: Map | None = None
) -> float:
    """Combettes & Pesquet: with a = (I + q)/2, expand all products of maps and activations.

    θ_k = Σ_{i<k} θ_i ‖W_k … W_{i+1}‖ collects the terms of the first k maps by their last q, and
    θ_m / 2^{m−1} bounds the run of m maps. One of its terms, W_m … W_1 / 2^{m−1}, is linear;
    there the shortcut is added inside the norm.
    """
    m, theta = len(maps), [1.0]
    share = 2.0 ** (1 - m)

    def norm(i: int, k: int) -> float:
        return _operator_norm(_composed(maps[i:k]), examples[i])

    def straight(x: Tensor) -> Tensor:
        y = share * _composed(maps)(x)
        return y if shortcut is None else y + shortcut(x)

    for k in range(1, m):
        theta.append(sum(theta[i] * norm(i, k) for i in range(k)))
    bent = sum(theta[i] * norm(i, m) for i in range(1, m))
    return _operator_norm(straight, examples[0]) + share * bent


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


def _matrix(apply: Map, x: Tensor) -> Tensor:
    """The matrix of a linear map on tensors like `x`, from the images of the unit vectors."""
    basis = torch.eye(x.numel(), dtype=x.dtype, device=x.device)
    return apply(basis.view(-1, *x.shape[1:])).flatten(1).T
