"""Variants of a network by replacing its layers, never by writing the network again."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from density_softmax.errors import UserError

__all__ = ["WEIGHT_LAYERS", "replace_layers"]

# Layers that map channels (dimension 1 of their weight) to channels (dimension 0).
WEIGHT_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

Rule = Callable[[str, nn.Module], nn.Module | None]


def replace_layers(network: nn.Module, rule: Rule) -> list[str]:
    """Put `rule(name, layer)` in the place of every layer for which it is not None.

    The network changes in place; the names of the replaced layers are returned. A layer that
    stands in several places is replaced by one and the same new layer in all of them. What a
    replacement contains is not visited again.
    """
    if rule("", network) is not None:
        raise UserError(
            f"{type(network).__name__} itself would have to be replaced: wrap it in nn.Sequential"
        )
    chosen: dict[nn.Module, nn.Module] = {}
    places: list[tuple[str, nn.Module]] = []
    for name, layer in network.named_modules(remove_duplicate=False):
        inside = any(name.startswith(f"{place}.") for place, _ in places)
        if name == "" or inside:
            continue
        new = chosen[layer] if layer in chosen else rule(name, layer)
        if new is not None:
            chosen[layer] = new
            places.append((name, new))
    for name, new in places:
        network.set_submodule(name, new)
    return [name for name, _ in places]
