"""Dropout that is active in both modes, and where in a network it belongs."""

from __future__ import annotations

from collections import OrderedDict
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.errors import UserError
from density_softmax.nn.surgery import WEIGHT_LAYERS, replace_layers

__all__ = ["MonteCarloDropout", "add_dropout"]

# They call their parts in a row, or leave it to their owner: no code of their own.
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@final
class MonteCarloDropout(nn.Module):
    """h ⊙ b / (1 − rate) with a fresh b ~ Bernoulli(1 − rate) for every value, in both modes."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, h: Tensor) -> Tensor:
        """What is left of `h`, the same in the mean."""
        return F.dropout(h, self.rate, training=True)

    def extra_repr(self) -> str:
        """The rate, where the network is printed."""
        return f"rate={self.rate}"


def add_dropout(network: nn.Module, rate: float) -> list[str]:
    """Put dropout behind the first weight layer of every block; returns the names of the layers.

    Blocks are the innermost modules with code of their own that hold weight layers: the residual
    blocks of a ResNet, whose dropout is thus that of Zagoruyko & Komodakis 2016. A network
    without any, such as an MLP in `nn.Sequential`, has dropout behind all weight layers, which
    is before all but the first (Gal & Ghahramani 2016). The network changes in place.
    """
    if any(isinstance(module, MonteCarloDropout) for module in network.modules()):
        raise UserError(f"{type(network).__name__} has its dropout already: pass a fresh encoder")
    weighted = [m for m in network.modules() if isinstance(m, WEIGHT_LAYERS)]
    if not weighted:
        raise UserError(
            f"{type(network).__name__} has no linear layer and no convolution to put dropout behind"
        )
    places = set(_first_layers_of_blocks(network) or weighted)

    def rule(name: str, layer: nn.Module) -> nn.Module | None:
        if layer not in places:
            return None
        return nn.Sequential(OrderedDict(layer=layer, dropout=MonteCarloDropout(rate)))

    return replace_layers(network, rule)


def _first_layers_of_blocks(network: nn.Module) -> list[nn.Module]:
    first = {
        module: next((m for m in module.children() if isinstance(m, WEIGHT_LAYERS)), None)
        for module in network.modules()
        if module is not network and not isinstance(module, CONTAINERS)
    }
    blocks = {module: layer for module, layer in first.items() if layer is not None}
    innermost = (b for b in blocks if not any(m in blocks for m in b.modules() if m is not b))
    return [blocks[block] for block in innermost]
