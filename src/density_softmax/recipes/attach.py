"""Density-Softmax without a gradient: what `attach` does to a trained network."""

from __future__ import annotations

from dataclasses import replace

from density_softmax.errors import UserError
from density_softmax.methods.base import MethodConfig
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.densities import GaussianDensity
from density_softmax.nn.softmax.scale import QuantileScale


def closed_form(layers: tuple[str, ...]) -> DensitySoftmax.Config:
    """Gaussians of the layers and of the last features, and class-aware experts, in closed form.

    Experts and their sums, quantile, budget and tail were chosen on a CIFAR-10 ResNet-20 and on
    sentence vectors, by held-out data, by four corruptions and by OOD data that no benchmark here
    reports on (docs/how-it-works.md).

    Args:
        layers: names of the layers to read; if there are none, only the last features are used.
    """
    return DensitySoftmax.Config(
        representation=None,
        density=GaussianDensity.Config(),
        layers=layers,
        classes=True,
        energy=True,
        scale=QuantileScale.Config(),
        head=None,
    )


def divided_by_layer(config: MethodConfig) -> DensitySoftmax.Config:
    """The same settings, with predictions that tell what each layer contributes.

    Args:
        config: settings of Density-Softmax with layers, a Gaussian of them and class-aware experts.
    """
    match config:
        case DensitySoftmax.Config(layers=(_, *_), classes=True, density=GaussianDensity.Config()):
            return replace(config, by_layer=True)
    raise UserError(
        "by_layer: only Density-Softmax with layers, a Gaussian density and class-aware experts, "
        "as attach has them, can tell what a layer contributes"
    )
