"""Fits of calibration maps with more parameters than a temperature, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from density_softmax.nn.softmax.head import fit_temperature
from density_softmax.training import folds

Array = NDArray[np.float64]
Objective = Callable[[Array], tuple[float, Array]]

# Strengths of the penalty, from one that hardly leaves temperature scaling to almost none.
STRENGTHS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
NUM_FOLDS = 3
# With more classes a fit takes long, and one fold is left out.
MANY_CLASSES = 100
MAX_STEPS = 50
# The smallest temperature that a weight of 0 at every distance may leave.
SMALLEST_TEMPERATURE = 1e-2


def fit_mixture(likelihoods: Tensor) -> Tensor:
    """The weights on the simplex that maximise Σ_i log Σ_m w_m q_im, (components,).

    Args:
        likelihoods: q, what each component gives to the true class, (samples, components). The
            search begins with all weight on the first.
    """
    from scipy.optimize import minimize

    q = likelihoods.double().cpu().numpy().clip(np.finfo(np.float64).tiny)

    def cost(w: Array) -> tuple[float, Array]:
        mixed = (q @ w).clip(np.finfo(np.float64).tiny)
        return -float(np.log(mixed).mean()), -(q / mixed[:, None]).mean(0)

    start = np.eye(q.shape[1])[0]
    sums_to_one = {"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like}
    found = minimize(
        cost, start, jac=True, method="SLSQP", bounds=[(0, 1)] * len(start), constraints=sums_to_one
    )
    weights = found.x.clip(0) / found.x.clip(0).sum()
    best = weights if cost(weights)[0] <= cost(start)[0] else start
    return torch.from_numpy(best)


class Affine(NamedTuple):
    """logits ↦ W logits + b, with W a matrix, (classes, classes), or its diagonal, (classes,)."""

    weight: Tensor
    bias: Tensor


def fit_affine(logits: Tensor, y: Tensor, *, diagonal: bool) -> Affine:
    """The map that minimises NLL + λ ‖(W, b) − (I / T, 0)‖², with T that of temperature scaling.

    λ has the lowest NLL in cross-validation, from strong to weak until it rises: with few samples
    the map stays near temperature scaling. On the samples its NLL is never above that one's.

    Args:
        logits: (samples, classes).
        y: the true classes, (samples,).
        diagonal: whether W is diagonal.
    """
    inputs, labels = logits.double().cpu().numpy(), y.cpu().numpy()
    width, inverse = inputs.shape[1], 1 / fit_temperature(logits, y)
    # A gradient by W is a sum over samples: W − I / T stays in their span.
    few = not diagonal and len(inputs) < width
    basis = np.linalg.svd(inputs, full_matrices=False)[2] if few else np.eye(width)
    samples = _Samples(inputs * inverse, inputs @ basis.T if few else inputs, labels)
    start = np.zeros((2 if diagonal else len(basis) + 1, width))
    theta = _descend(_penalised(samples, _strength(samples, start)), start)
    weight = inverse + theta[0] if diagonal else inverse * np.eye(width) + theta[:-1].T @ basis
    return Affine(torch.from_numpy(weight), torch.from_numpy(theta[-1]))


class _Samples(NamedTuple):
    """What a change of a map is fitted to.

    Attributes:
        base: logits before the change, (samples, classes).
        inputs: what the change multiplies, (samples, width).
        labels: (samples,).
    """

    base: Array
    inputs: Array
    labels: Array

    def at(self, rows: Tensor) -> _Samples:
        """Some of them."""
        return _Samples(*(part[rows.numpy()] for part in self))


def _strength(samples: _Samples, start: Array) -> float:
    """The λ with the lowest NLL on samples that were left out."""
    number, width = samples.base.shape
    if number < 2 * NUM_FOLDS:
        return STRENGTHS[0]
    divided = folds(number, NUM_FOLDS)[: NUM_FOLDS if width <= MANY_CLASSES else 1]
    parts = [(samples.at(inside), samples.at(outside)) for inside, outside in divided]
    thetas, best, lowest = [start] * len(parts), STRENGTHS[0], np.inf
    for strength in STRENGTHS:
        pairs = list(zip(parts, thetas, strict=True))
        thetas = [_descend(_penalised(inside, strength), theta) for (inside, _), theta in pairs]
        found = zip(parts, thetas, strict=True)
        value = sum(_nll(out, theta)[0] * len(out.labels) for (_, out), theta in found)
        if value >= lowest:
            break
        best, lowest = strength, value
    return best


def _penalised(samples: _Samples, strength: float) -> Objective:
    def cost(theta: Array) -> tuple[float, Array]:
        value, gradient = _nll(samples, theta)
        total = value + strength * float(np.square(theta).sum())
        return total, gradient + 2 * strength * theta

    return cost


def _nll(samples: _Samples, theta: Array) -> tuple[float, Array]:
    """The mean NLL of a map and its gradient; θ is the change of Wᵀ, or of its diagonal, and b."""
    base, inputs, labels = samples
    diagonal = len(theta) == 2
    change = inputs * theta[0] if diagonal else inputs @ theta[:-1]
    value, slope = _cross_entropy(base + change + theta[-1], labels)
    upper = (slope * inputs).sum(0, keepdims=True) if diagonal else inputs.T @ slope
    return value, np.vstack([upper, slope.sum(0)])


def _cross_entropy(logits: Array, labels: Array) -> tuple[float, Array]:
    """The mean NLL and its derivative by the logits, (samples, classes)."""
    rows = np.arange(len(labels))
    shifted = logits - logits.max(1, keepdims=True)
    exponentials = np.exp(shifted)
    sums = exponentials.sum(1)
    slope = exponentials / sums[:, None]
    slope[rows, labels] -= 1
    return float((np.log(sums) - shifted[rows, labels]).mean()), slope / len(labels)


def _descend(cost: Objective, start: Array, bounds: Any = None) -> Array:
    from scipy.optimize import minimize

    def flat(theta: Array) -> tuple[float, Array]:
        value, gradient = cost(theta.reshape(start.shape))
        return value, gradient.ravel()

    options: dict[str, Any] = {"bounds": bounds, "options": {"maxiter": MAX_STEPS}}
    found = minimize(flat, start.ravel(), jac=True, method="L-BFGS-B", **options)
    best: Array = found.x.reshape(start.shape)
    return best


def fit_temperature_weights(logits: Tensor, y: Tensor, distances: Tensor) -> Tensor:
    """The w ≥ 0 for which T = w_0 + Σ_l w_l d_l minimises the NLL of softmax(logits / T).

    Args:
        logits: (samples, classes).
        y: the true classes, (samples,).
        distances: d, (samples, layers).

    Returns:
        (1 + layers,).
    """
    outputs, labels = logits.double().cpu().numpy(), y.cpu().numpy()
    terms = np.column_stack([np.ones(len(labels)), distances.double().cpu().numpy()])

    def cost(w: Array) -> tuple[float, Array]:
        temperature = (terms @ w)[:, None]
        value, slope = _cross_entropy(outputs / temperature, labels)
        by_temperature = -(slope * outputs / np.square(temperature)).sum(1)
        return value, terms.T @ by_temperature

    start = np.zeros(terms.shape[1])
    start[0] = fit_temperature(logits, y)
    bounds = [(SMALLEST_TEMPERATURE, None), *[(0, None)] * (len(start) - 1)]
    return torch.from_numpy(_descend(cost, start, bounds))
