"""Ablations of Density-Softmax: lists of variants, each a few changes to a recipe."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from density_softmax.config import ConfigError, to_dict
from density_softmax.errors import choices
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.backbones.base import BackboneConfig
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.nn.densities import DensityConfig
from density_softmax.nn.softmax.scale import QuantileScale, RangeScale, ScaleConfig
from density_softmax.recipes.recipe import Recipe

Variant = Mapping[str, Any]  # changes to the recipe: JSON values by path

UNCHANGED: Variant = {}
NO_PENALTY: Variant = {"method.penalty": "none"}

# Appendix "Additional ablation study" of the paper has these coefficients and 0.
COEFFICIENTS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)

# For recipes that read none: layers from shallow to deep, by the kind of the encoder.
LAYERS = {
    "wide_resnet": ("group1", "group2"),
    "resnet": ("layer1", "layer2"),
    "cifar_resnet": ("layer1", "layer2"),
}


def _penalty_weights(recipe: Recipe) -> tuple[Variant, ...]:
    """The coefficient λ of the penalty from 0 to 1, with and without the head stage."""
    weights = [NO_PENALTY, *({"method.penalty.weight": weight} for weight in COEFFICIENTS)]
    return tuple(
        {**head, **weight}
        for head, weight in itertools.product((UNCHANGED, _other_head(recipe)), weights)
    )


def _components(recipe: Recipe) -> tuple[Variant, ...]:
    """With and without the penalty, the density and the head stage."""
    blind = _without_density(recipe)
    return (NO_PENALTY, blind, {**NO_PENALTY, **blind}, _other_head(recipe))


def _scales(recipe: Recipe) -> tuple[Variant, ...]:
    """Every rule by which log densities become factors."""
    kinds = _others(ScaleConfig.members, _config(recipe).scale.kind)
    return tuple({"method.scale": kind} for kind in kinds)


def _densities(recipe: Recipe) -> tuple[Variant, ...]:
    """Every type of density, with the settings that are its own."""
    kinds = _others(DensityConfig.members, _config(recipe).density.kind)
    tied = {"method.density": "gaussian_mixture", "method.density.tied": True}
    return (*({"method.density": kind} for kind in kinds), tied)


def _layers(recipe: Recipe) -> tuple[Variant, ...]:
    """Layers that a density reads, with and without the last features and the energy."""
    own = _config(recipe).layers
    first, second = own if len(own) == 2 else _two_layers(recipe.encoder)
    experts = itertools.product(([first], [first, second]), (True, False), (True, False))
    return (
        *(_reading([], True, energy) for energy in (True, False)),
        *(_reading(*choice) for choice in experts),
    )


def _two_layers(encoder: BackboneConfig) -> tuple[str, str]:
    """A shallow layer of an encoder and a deeper one."""
    if isinstance(encoder, ResFFN.Config):
        return "blocks.0", f"blocks.{max(1, encoder.depth // 2 - 1)}"
    if encoder.kind not in LAYERS:
        raise ConfigError(
            f"no layers are listed for the encoder '{encoder.kind}'; name two by "
            '--set \'method.layers=["NAME", "NAME"]\''
        )
    return LAYERS[encoder.kind]


def _forms(recipe: Recipe) -> tuple[Variant, ...]:
    """The paper's method beside the recipe's: RealNVP on raw last features alone, and a head stage.

    The scale is that of the paper's code, `range`; its mean factor for all inputs, which shows what
    of it a constant temperature explains; or that of the paper's text, `max`.
    """
    config = _config(recipe)
    head = _other_head(recipe) if config.head is None else UNCHANGED
    # Not again where it is the recipe's own, which may have another range.
    own = isinstance(config.scale, RangeScale.Config)
    code = UNCHANGED if own else {"method.scale": "range"}
    constant = {**code, "method.scale.averaged": True}
    density = {"method.density": "realnvp", "method.density.standardize": False}
    common = {**_reading([], True, False), "method.classes": False, **density, **head}
    return tuple({**common, **scale} for scale in (code, constant, {"method.scale": "max"}))


def _reading(names: list[str], last: bool, energy: bool) -> Variant:
    """What the densities read, said in full: a recipe may have a choice of its own."""
    return {"method.layers": names, "method.last": last, "method.energy": energy}


ABLATIONS: dict[str, Callable[[Recipe], tuple[Variant, ...]]] = {
    "lambda": _penalty_weights,
    "components": _components,
    "scales": _scales,
    "densities": _densities,
    "layers": _layers,
    "forms": _forms,
}


def find_variants(ablation: str, recipe: Recipe) -> tuple[Variant, ...]:
    """The variants that an ablation compares, the recipe as it is among them.

    Args:
        ablation: a name in `ABLATIONS`.
        recipe: of Density-Softmax.
    """
    if ablation not in ABLATIONS:
        raise ConfigError(f"unknown ablation '{ablation}'; {choices(ablation, ABLATIONS)}")
    return (UNCHANGED, *ABLATIONS[ablation](recipe))


def _config(recipe: Recipe) -> DensitySoftmax.Config:
    if not isinstance(recipe.method, DensitySoftmax.Config):
        raise ConfigError(f"ablations are of density_softmax, not of '{recipe.method.kind}'")
    return recipe.method


def _other_head(recipe: Recipe) -> Variant:
    """Without the head stage if the recipe has one, else with that of the method's defaults."""
    default = DensitySoftmax.Config().head
    assert default is not None
    return {"method.head": to_dict(default) if _config(recipe).head is None else None}


def _without_density(recipe: Recipe) -> Variant:
    """A scale that does not look at the density; where it had a budget, a temperature has it."""
    scale = _config(recipe).scale
    if isinstance(scale, QuantileScale.Config):
        return {"method.scale": "temperature", "method.scale.budget": scale.budget}
    return {"method.scale": "constant"}


def _others(kinds: Mapping[str, type], own: str) -> list[str]:
    """All kinds but the recipe's own, which may have settings of its own there."""
    return [kind for kind in kinds if kind != own]
