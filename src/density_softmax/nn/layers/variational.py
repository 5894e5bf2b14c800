"""Distributions over weights: Gaussian posteriors with their divergences, and dropout."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.errors import UserError
from density_softmax.nn.layers.decay import Undecayed
from density_softmax.nn.layers.surgery import (
    WEIGHT_LAYERS,
    KernelLayer,
    num_channels,
    over_channels,
    replace_layers,
    with_kernel,
)
from density_softmax.training import Estimate, Values
from density_softmax.types import Batch

# Modules without a forward pass of their own code.
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class Variational(nn.Module, ABC):
    """A module with a posterior N(μ, s²), s = softplus(ρ), and a prior N(m₀, s₀²) on weights.

    The loss has the divergence KL = Σ log(s₀/s) + (s² + (μ − m₀)²) / 2s₀² − ½.
    """

    raw_std: nn.Parameter
    prior_std: float

    def start(self, mean: Tensor, std: float, prior_std: float) -> None:
        """Set the prior, and begin with this s for weights of the shape of `mean`."""
        self.raw_std = nn.Parameter(torch.full_like(mean, math.log(math.expm1(std))))
        self.prior_std = prior_std

    @property
    def std(self) -> Tensor:
        """s."""
        return F.softplus(self.raw_std)

    @abstractmethod
    def offset(self) -> Tensor:
        """μ − m₀, of the shape of s or a scalar."""

    def kl(self) -> Tensor:
        """KL(posterior ‖ prior) in nats, summed over all weights of the module."""
        std = self.std
        spread = (std.square() + self.offset().square()) / (2 * self.prior_std**2)
        return (math.log(self.prior_std) - std.log() + spread - 0.5).sum()


@final
class Flipout(Variational, Undecayed):
    """A layer with weights W ~ N(W̄, σ²), drawn anew for each sample of a batch (Wen et al. 2018).

    y_n = W̄ x_n + b + (ΔW (x_n ∘ p_n)) ∘ q_n with ΔW = σ ∘ ε, σ = softplus(ρ) and ε ~ N(0, 1).
    The signs p_n, q_n make the perturbation ΔW ∘ q_n p_nᵀ of each sample a draw from the same
    Gaussian, uncorrelated with those of the others, at the cost of a second product. The bias has
    no posterior, as in uncertainty-baselines. The prior N(W̄, prior_std²) has the posterior's mean:
    the divergence depends on σ only.

    Args:
        layer: the convolution or dense layer whose kernel becomes W̄.
        std: where σ starts.
        prior_std: the prior's standard deviation.
    """

    def __init__(self, layer: KernelLayer, std: float, prior_std: float) -> None:
        super().__init__()
        self.mean = layer
        self.start(layer.weight, std, prior_std)

    def forward(self, x: Tensor) -> Tensor:
        """The output of the mean layer, with another perturbation for each sample."""
        num_inputs, num_outputs = num_channels(self.mean)
        p, q = _random_signs(x, num_inputs), _random_signs(x, num_outputs)
        delta = self.std * torch.randn_like(self.raw_std)
        y: Tensor = self.mean(x)
        flipped = with_kernel(self.mean, x * over_channels(self.mean, p, x), delta)
        return y + flipped * over_channels(self.mean, q, flipped)

    def offset(self) -> Tensor:
        """0, because the prior has the mean of the posterior."""
        return self.raw_std.new_zeros(())

    def undecayed(self) -> tuple[Tensor, ...]:
        """The parameters of the posterior, W̄ and ρ."""
        return self.mean.weight, self.raw_std


def _random_signs(x: Tensor, num_channels: int) -> Tensor:
    """±1 with equal probability, (batch, channels)."""
    return torch.where(torch.rand(x.shape[0], num_channels, device=x.device) < 0.5, -1.0, 1.0)


@final
class AnnealedKL(nn.Module):
    """min(1, t / T) · KL / N, t samples seen of the T that annealing takes (Bowman et al. 2016).

    The step under way counts among those seen, as in uncertainty-baselines: the first step has the
    weight of one step, not 0. N and the samples of the steps before are buffers that stages count,
    so that a resumed run continues from there.

    Args:
        epochs: after how many epochs of training the divergence counts in full.
        batch_size: samples per step.
    """

    num_train: Tensor
    num_seen: Tensor

    def __init__(self, epochs: int, batch_size: int) -> None:
        super().__init__()
        self.epochs, self.batch_size = epochs, batch_size
        self.register_buffer("num_train", torch.zeros((), dtype=torch.int64))
        self.register_buffer("num_seen", torch.zeros((), dtype=torch.int64))

    def forward(self, network: nn.Module) -> Tensor:
        """The term of all posteriors in `network` in the mean loss of a sample."""
        divergences = [m.kl() for m in network.modules() if isinstance(m, Variational)]
        return self.weight() * torch.stack(divergences).sum() / self.num_train

    def weight(self) -> Tensor:
        """min(1, t / T), t being the samples after the step under way."""
        step = self.num_train.clamp_max(self.batch_size)
        return ((self.num_seen + step) / (self.epochs * self.num_train)).clamp_max(1.0)

    def count(self) -> Estimate:
        """The stage before training: N."""
        return Estimate("count", count_samples, self._set)

    def after_step(self) -> Estimate:
        """The estimate after a step of training: t grows by the batch."""
        return Estimate("progress", count_samples, self._advance, on="labels")

    def _set(self, total: Values) -> None:
        self.num_train.copy_(total["count"])
        self.num_seen.zero_()

    def _advance(self, total: Values) -> None:
        self.num_seen.add_(total["count"])


def count_samples(batch: Batch) -> Values:
    """The statistic of an `Estimate` that counts samples.

    Args:
        batch: any batch.
    """
    return {"count": torch.tensor(len(batch.y), device=batch.y.device)}


@final
class MonteCarloDropout(nn.Module):
    """h ⊙ b / (1 − rate) with a new b ~ Bernoulli(1 − rate) for every value, in both modes."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, h: Tensor) -> Tensor:
        """`h` with some values set to 0, unchanged in the mean."""
        return F.dropout(h, self.rate, training=True)


def add_dropout(network: nn.Module, rate: float) -> list[str]:
    """Put dropout after the first weight layer of every block; returns the names of the layers.

    Blocks are the innermost modules with code of their own that hold weight layers: the residual
    blocks of a ResNet, whose dropout is thus that of Zagoruyko & Komodakis 2016. A network
    without blocks, such as an MLP in `nn.Sequential`, gets dropout after every weight layer, which
    is before all but the first (Gal & Ghahramani 2016).

    Args:
        network: changed in place.
        rate: the probability of setting a value to 0.
    """
    if any(isinstance(module, MonteCarloDropout) for module in network.modules()):
        raise UserError(f"{type(network).__name__} has dropout already: pass a new encoder")
    weighted = [m for m in network.modules() if isinstance(m, WEIGHT_LAYERS)]
    if not weighted:
        raise UserError(
            f"{type(network).__name__} has no linear layer and no convolution to put dropout after"
        )
    followed = {layers[0] for layers in _layers_of_blocks(network)} or set(weighted)

    def rule(name: str, layer: nn.Module) -> nn.Module | None:
        if layer not in followed:
            return None
        return nn.Sequential(OrderedDict(layer=layer, dropout=MonteCarloDropout(rate)))

    return replace_layers(network, rule)


def add_training_dropout(network: nn.Module, rate: float) -> list[str]:
    """Put dropout that evaluation leaves out before the second weight layer of every block.

    That is where the wide ResNets of DUE and DDU have it, behind the batch norm and the activation
    between their convolutions. Returns the names of the layers.

    Args:
        network: changed in place; blocks are those of `add_dropout`.
        rate: the probability of setting a value to 0.
    """
    preceded = {layers[1] for layers in _layers_of_blocks(network) if len(layers) > 1}
    if not preceded:
        raise UserError(
            f"{type(network).__name__} has no block with two weight layers to put dropout between"
        )

    def rule(name: str, layer: nn.Module) -> nn.Module | None:
        if layer not in preceded:
            return None
        dropped = nn.Sequential(OrderedDict(dropout=nn.Dropout(rate), layer=layer))
        return dropped.train(layer.training)

    return replace_layers(network, rule)


def _layers_of_blocks(network: nn.Module) -> list[list[KernelLayer]]:
    """The weight layers of every block, in the order of their definition."""
    layers = {
        module: [child for child in module.children() if isinstance(child, WEIGHT_LAYERS)]
        for module in network.modules()
        if module is not network and not isinstance(module, CONTAINERS)
    }
    blocks = {module: found for module, found in layers.items() if found}
    innermost = (b for b in blocks if not any(m in blocks for m in b.modules() if m is not b))
    return [blocks[block] for block in innermost]
