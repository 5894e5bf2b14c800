"""What is computed again for every input although it never changes, computed once.

Five folds, none of which changes the function: spectral normalisations into their weights, batch
norms into the layers before them, the networks of a flow into half as many with all that is around
them, Gaussian experts into one, and the constants of a scale into those of a line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from density_softmax.deploy.graph import trace
from density_softmax.nn.densities import Density, FlowDensity, GaussianDensity
from density_softmax.nn.densities.flows import AffineCoupling
from density_softmax.nn.execution import full_precision
from density_softmax.nn.layers.surgery import replace_layers
from density_softmax.nn.lipschitz import spectral
from density_softmax.nn.softmax.scale import QuantileScale, RangeScale
from density_softmax.nn.softmax.typicality import Typicality, in_columns
from density_softmax.training import Stage

__all__ = [
    "FOLDS",
    "FoldedScale",
    "FusedFlow",
    "FusedGaussians",
    "fold_all",
    "fold_batch_norms",
    "fold_scales",
    "fold_spectral_norms",
    "fuse_flows",
    "fuse_gaussians",
]

aten = torch.ops.aten
LAYERS = (
    *(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default),
    *(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding),
    aten.linear.default,
)
FUSIONS: dict[type[nn.Module], Callable[[Any, Any], nn.Module]] = {
    nn.Conv1d: fuse_conv_bn_eval,
    nn.Conv2d: fuse_conv_bn_eval,
    nn.Conv3d: fuse_conv_bn_eval,
    nn.Linear: fuse_linear_bn_eval,
}
FLOAT = torch.finfo(torch.float32)
FoldableScale = RangeScale | QuantileScale
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fold_all(network: nn.Module, example: Tensor) -> dict[str, int]:
    """Every fold on a network in evaluation mode, in place; how many layers each of them took."""
    return {name: len(fold(network, example)) for name, fold in FOLDS.items()}


@torch.no_grad()
def fold_spectral_norms(network: nn.Module, example: Tensor) -> list[str]:
    """Write bounded weights in place of what computes them, ours and torch's parametrisations."""
    names = spectral.fold(network)
    for name, layer in network.named_modules():
        if parametrize.is_parametrized(layer):
            for tensor in list(layer.parametrizations):
                parametrize.remove_parametrizations(layer, tensor, leave_parametrized=True)
            names.append(name)
    return names


@torch.no_grad()
def fold_batch_norms(network: nn.Module, example: Tensor) -> list[str]:
    """Fold a batch norm into the convolution or linear layer whose output nothing else reads.

    Which that is, the traced graph says, hooks and whatever else a model does included.
    """
    if not any(isinstance(module, NORMS) for module in network.modules()):
        return []
    folded = []
    for layer_name, norm_name in _foldable_pairs(network, example):
        layer, norm = network.get_submodule(layer_name), network.get_submodule(norm_name)
        # Subclasses may compute something else, and hooks belong to the module they are on.
        plain = type(layer) in FUSIONS and type(norm) in NORMS
        if plain and not _is_hooked(layer) and not _is_hooked(norm):
            network.set_submodule(layer_name, FUSIONS[type(layer)](layer, norm))
            network.set_submodule(norm_name, nn.Identity())
            folded.append(norm_name)
    return folded


def fuse_flows(network: nn.Module, example: Tensor) -> list[str]:
    """Let every RealNVP compute in as few operations as it can."""

    def rule(name: str, layer: nn.Module) -> nn.Module | None:
        if not isinstance(layer, FlowDensity):
            return None
        couplings = _couplings(layer)
        # The only coupling of one dimension has constants in place of networks.
        networks = all(isinstance(coupling.scale, nn.Sequential) for coupling in couplings)
        return FusedFlow(layer) if couplings and networks else None

    return replace_layers(network, rule)


@torch.no_grad()
def fuse_gaussians(network: nn.Module, example: Tensor) -> list[str]:
    """Let all experts of a typicality that are Gaussians be one matrix product."""

    def rule(name: str, layer: nn.Module) -> nn.Module | None:
        if not isinstance(layer, Typicality):
            return None
        kinds = {type(density) for density in layer.densities.values()}
        return FusedGaussians(layer) if kinds == {GaussianDensity} else None

    return replace_layers(network, rule)


def fold_scales(network: nn.Module, example: Tensor) -> list[str]:
    """Let every scale with more constants than one be a few operations on a line."""

    def rule(name: str, layer: nn.Module) -> nn.Module | None:
        return FoldedScale(layer) if isinstance(layer, FoldableScale) else None

    return replace_layers(network, rule)


FOLDS: dict[str, Callable[[nn.Module, Tensor], list[str]]] = {
    "spectral norms": fold_spectral_norms,
    "batch norms": fold_batch_norms,
    "flows": fuse_flows,
    "Gaussian experts": fuse_gaussians,
    "scales": fold_scales,
}


@final
class FusedFlow(Density):
    """The log density of a RealNVP as h + Σ s − ½ ‖t‖², one product per layer of s and t together.

    The first layer of a coupling is that of both its networks, side by side; the others are
    block-diagonal. Half of the work of a hidden layer is on zeros, but the layers are so small that
    calls are what costs. h holds what does not depend on the input. Σ s − ½ ‖t‖² is one product of
    all s and t² with ones and halves; which half of t is which makes no difference to it.
    """

    @torch.no_grad()
    def __init__(self, density: FlowDensity) -> None:
        super().__init__()
        couplings = _couplings(density)
        self.halves = density.flow.halves
        self.layers = [self._store(i, coupling) for i, coupling in enumerate(couplings)]
        self.standardize, num_features = density.standardize, sum(self.halves)
        mean, scale = density.mean, density.scale.double()
        height = -num_features / 2 * math.log(2 * math.pi) - density.log_volume.double()
        ones = scale.new_ones(sum(self.halves[1 - i % 2] for i in range(len(couplings))))
        signs = torch.cat([ones, scale.new_full((num_features,), -0.5)])
        if self.standardize:
            self.register_buffer("mean", mean.clone())
            self.register_buffer("inverse_scale", (1 / scale).float())
        self.register_buffer("height", height.float())
        self.register_buffer("signs", signs.float())

    def log_prob_of_floats(self, z: Tensor) -> Tensor:
        """h + Σ s − ½ ‖t‖²."""
        own = fast_buffers(self)
        if self.standardize:
            z = (z - own["mean"]) * own["inverse_scale"]
        kept, moved = z.split_with_sizes(self.halves, dim=-1)
        terms = []
        for layers in self.layers:
            raw, shift = condition([(own[b], own[w]) for b, w in layers], kept).chunk(2, dim=-1)
            s = raw.tanh()
            kept, moved = torch.addcmul(shift, s.exp(), moved), kept
            terms.append(s)
        terms += [kept * kept, moved * moved]
        return torch.addmv(own["height"], torch.cat(terms, dim=-1), own["signs"])

    def stages(self) -> tuple[Stage, ...]:
        """None: it was fitted before."""
        return ()

    def _store(self, number: int, coupling: AffineCoupling) -> list[tuple[str, str]]:
        """Keep the layers of both networks as one; the names of their biases and weights."""
        scale, shift = (
            [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
            for network in (coupling.scale, coupling.shift)
        )
        names = []
        for depth, (first, second) in enumerate(zip(scale, shift, strict=True)):
            weights = first.weight.t(), second.weight.t()
            weight = torch.block_diag(*weights) if depth else torch.cat(weights, dim=1)
            bias = torch.cat([first.bias, second.bias])
            names.append((f"bias{number}_{depth}", f"weight{number}_{depth}"))
            for name, value in zip(names[-1], (bias, weight), strict=True):
                self.register_buffer(name, value.contiguous())
        return names


def condition(layers: list[tuple[Tensor, Tensor]], h: Tensor) -> Tensor:
    """Both networks of a coupling, from their biases and weights."""
    *hidden, (bias, weight) = layers
    for inner_bias, inner_weight in hidden:
        h = torch.addmm(inner_bias, h, inner_weight).relu_()
    return torch.addmm(bias, h, weight)


@final
class FusedGaussians(nn.Module):
    """Σ_i w_i (ℓ_i − c_i) of Gaussians ℓ_i and the energy as h − ‖A(z − m)‖² + w log Σ exp g(z).

    The rows of A are those of all the √(w_i/2) W_i, each in the columns that its expert reads; h
    holds what does not depend on the input.
    """

    def __init__(self, typicality: Typicality) -> None:
        super().__init__()
        begin = min(columns.start for columns in typicality.columns)
        self.columns = slice(begin, max(columns.stop for columns in typicality.columns))
        width = self.columns.stop - begin
        weight = typicality.weight.double()
        center, blocks, height = torch.zeros(width), [], -weight @ typicality.center.double()
        gaussians = zip(typicality.densities.values(), typicality.columns, weight, strict=False)
        for gaussian, columns, share in gaussians:
            assert isinstance(gaussian, GaussianDensity)
            own = slice(columns.start - begin, columns.stop - begin)
            block = torch.zeros(len(gaussian.center), width, dtype=torch.float64)
            block[:, own] = (share / 2).sqrt() * gaussian.whitening.double()
            blocks.append(block)
            center[own] = gaussian.center
            height += share * gaussian.log_height.double()
        self.register_buffer("center", center)
        self.register_buffer("whitening", torch.cat(blocks).float())
        self.register_buffer("height", height.float())
        self.register_buffer("energy", weight[-1].float() if typicality.energy else None)

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """The typicality of each sample."""
        own = fast_buffers(self)
        with full_precision(features):
            z = in_columns(features, self.columns).float()
            y = F.linear(z - own["center"], own["whitening"])
            found = own["height"] - y.square().sum(-1)
            energy = own["energy"]
            return found if energy is None else torch.addcmul(found, energy, logits.logsumexp(-1))


@final
class FoldedScale(nn.Module):
    """A scale as exp(tail(a + b (log p − c))), where the line is two operations.

    The line of a quantile scale is its surprise u, or 1 + u where the tail needs that. Without c it
    would be one operation, which loses all digits where log densities differ by little.
    """

    @torch.no_grad()
    def __init__(self, scale: FoldableScale) -> None:
        super().__init__()
        self.tail = scale.tail if isinstance(scale, QuantileScale) else None
        decay = scale.decay.double() if isinstance(scale, QuantileScale) else torch.zeros(())
        decay = 4 * decay if self.tail == "stretched" else decay
        intercept, slope, origin = _line(scale)
        self.register_buffer("intercept", intercept.float())
        self.register_buffer("slope", slope.float())
        self.register_buffer("origin", origin.float())
        self.register_buffer("top", decay.float() if self.tail == "stretched" else torch.zeros(()))
        self.register_buffer("decay", -decay.float())

    def forward(self, log_prob: Tensor) -> Tensor:
        """The factor of each sample, in (0, 1]."""
        own = fast_buffers(self)
        log_factor = torch.addcmul(own["intercept"], log_prob - own["origin"], own["slope"])
        if self.tail is not None:
            log_factor = torch.addcmul(own["top"], self._stretch(log_factor), own["decay"])
        return log_factor.exp().clamp(FLOAT.tiny, 1.0)

    def _stretch(self, line: Tensor) -> Tensor:
        """u, log(1 + u) or (1 + u)^¼; finite where the density underflowed."""
        if self.tail == "exponential":
            return line.clamp(0.0, FLOAT.max)
        line = line.clamp(1.0, FLOAT.max)
        return line.log() if self.tail == "power" else line.pow(0.25)


def _line(scale: FoldableScale) -> tuple[Tensor, Tensor, Tensor]:
    """a, b and c of a + b (log p − c)."""
    if isinstance(scale, RangeScale):
        smallest = scale.smallest.double()
        slope = (scale.high - scale.low) / (scale.largest - smallest).clamp_min(FLOAT.eps)
        return torch.tensor(scale.low), slope, smallest
    first = 0.0 if scale.tail == "exponential" else 1.0
    return torch.tensor(first), -1 / scale.spread.double(), scale.threshold


def fast_buffers(module: nn.Module) -> dict[str, Any]:
    """The buffers of a module; to find one as an attribute takes as long as to use it."""
    return module._buffers


def _couplings(density: FlowDensity) -> list[AffineCoupling]:
    return [layer for layer in density.flow.couplings if isinstance(layer, AffineCoupling)]


def _foldable_pairs(network: nn.Module, example: Tensor) -> list[tuple[str, str]]:
    """Names of layers and of the batch norms that alone read what they give."""
    program = trace(network, example)
    signature = program.graph_signature
    owners = {
        name: target.rpartition(".")[0]
        for mapping in (signature.inputs_to_parameters, signature.inputs_to_buffers)
        for name, target in mapping.items()
    }
    pairs = []
    for norm in program.graph.nodes:
        if norm.target is aten.batch_norm.default:
            layer, mean = norm.args[0], norm.args[3]
            if layer.target in LAYERS and len(layer.users) == 1 and _once(layer.args[1], mean):
                pairs.append((owners[layer.args[1].name], owners[mean.name]))
    return pairs


def _once(*weights: Any) -> bool:
    """Whether these are stored tensors that the graph reads in one place each."""
    return all(
        isinstance(weight, Node) and weight.op == "placeholder" and len(weight.users) == 1
        for weight in weights
    )


def _is_hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
