"""Uncertainty for a classifier that is already trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from density_softmax.data.sources import as_source
from density_softmax.engine import EngineConfig, fit
from density_softmax.methods import DensitySoftmax
from density_softmax.nn.headless import Headless
from density_softmax.recipes.closed_form import closed_form
from density_softmax.types import Source

__all__ = ["attach"]


def attach(
    model: nn.Module,
    *,
    head: str,
    train: Any,
    calibration: Any,
    layers: Sequence[str] = (),
    config: DensitySoftmax.Config | None = None,
    seed: int = 0,
    engine: EngineConfig | None = None,
    progress: bool = True,
) -> DensitySoftmax:
    """Density-Softmax around a trained model, without back-propagation through it.

    One pass over the training data gives all features; the density is fitted to them, and the
    scale and the temperature to the calibration data. The model's own weights stay as they are
    unless `config.head` asks for the head stage; without it the predicted classes stay, too.

    Args:
        model: any classifier with a linear head.
        head: the name of its last linear layer, e.g. "fc".
        train: what it was trained on: a DataLoader, a Dataset or a pair (inputs, labels).
        calibration: in-domain data that it was not trained on, in the same form.
        layers: names of shallow layers for a density to read, e.g. ["layer1", "layer2"]. They
            see corruptions that the last features hide; those have a density of their own, and
            the classifier's energy is added: both see foreign classes. Without any layer, the
            density of the last features is all.
        config: everything in detail, `layers` included: density, scale, head stage.
        seed: decides every random draw.
        engine: devices, processes and precision.
        progress: draw progress bars.
    """
    sources = as_source(train), as_source(calibration)
    config = config or closed_form(tuple(layers))
    method = around(Headless(model, head), config, first_input(sources[0], model))
    fit(method, *sources, seed=seed, engine=engine, progress=progress)
    return method


def around(encoder: Headless, config: DensitySoftmax.Config, example: Tensor) -> DensitySoftmax:
    """An unfitted method that shares its head with the trained model."""
    method = DensitySoftmax(encoder, encoder.head.out_features, config, example)
    method.head.linear = encoder.head
    return method


def first_input(source: Source, model: nn.Module) -> Tensor:
    """One sample, on the model's device, to measure widths with."""
    parameter = next(model.parameters(), torch.zeros(()))
    return next(source.read([[0]], parameter.device)).x
