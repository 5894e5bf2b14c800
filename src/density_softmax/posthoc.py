"""Uncertainty for a classifier that is already trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.data.loaders import as_source
from density_softmax.engine import EngineConfig, fit
from density_softmax.errors import UserError
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.execution import seeded
from density_softmax.nn.taps import CallRecorder
from density_softmax.recipes.attach import closed_form


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
    unless `config.head` asks for the head stage; without it the predicted classes stay, too. It
    is put into evaluation mode.

    Args:
        model: any classifier with a linear head.
        head: the name of its last linear layer, e.g. "fc".
        train: what it was trained on: a DataLoader, a Dataset or a pair (inputs, labels).
        calibration: in-domain data that it was not trained on, in the same form.
        layers: names of shallow layers for a density to read, e.g. ["layer1", "layer2"]. They
            see corruptions that the last features hide; those have a density of their own, and
            the classifier's energy is added: both see foreign classes. Without any layer, the
            density of the last features is all.
        config: everything in detail, `layers` included: density, scale, head stage. Its
            `representation` is None: encoder and head are trained.
        seed: decides every random draw.
        engine: devices, processes and precision.
        progress: draw progress bars.
    """
    if isinstance(layers, str):
        raise UserError(f'layers="{layers}" is one name: pass a list, layers=["{layers}"]')
    if config is not None and config.representation is not None:
        raise UserError("config.representation would train the model again: pass None for it")
    sources = as_source(train), as_source(calibration)
    encoder, config = Headless(model, head), config or closed_form(tuple(layers))
    if (precision := encoder.head.weight.dtype) != torch.float32:
        raise UserError(f"the model computes in {precision}: pass model.float()")
    device = next(model.parameters()).device
    with seeded(seed, device):
        method = _around_checked(encoder, config, next(sources[0].read([[0]], device)).x)
    fit(method, *sources, seed=seed, engine=engine, progress=progress)
    return method


def _around_checked(
    encoder: Headless, config: DensitySoftmax.Config, example: Tensor
) -> DensitySoftmax:
    """`around`, whose only pass also tells whether the head gives what the model returns."""

    def read(name: str, inputs: Any, output: Any) -> Any:
        if name != encoder.head_name or not inputs:  # of which Headless tells
            return output
        _check_linear(encoder, inputs[0], output)
        return output.clone()  # what follows the head may overwrite it

    recorder = CallRecorder(("", encoder.head_name), read)
    with recorder.recording(encoder.model):
        method = around(encoder, config, example)
    outputs = recorder.pop()
    _check_head(encoder, outputs[encoder.head_name], outputs[""])
    return method


def around(encoder: Headless, config: DensitySoftmax.Config, example: Tensor) -> DensitySoftmax:
    """An unfitted method that shares its head with the trained model.

    Args:
        encoder: the trained model, as an encoder.
        config: the settings of the method.
        example: a batch of inputs, (batch, ...).
    """
    method = DensitySoftmax(encoder, encoder.head.out_features, config, example)
    method.head.linear = encoder.head
    return method


def _check_linear(encoder: Headless, z: Tensor, logits: Any) -> None:
    """Refuse a head that is more than W z + b, which is all that is taken from it.

    Called while the model runs: precision and a parametrised W are those of the pass.
    """
    expected = F.linear(z, encoder.head.weight, encoder.head.bias)
    alike = isinstance(logits, Tensor) and logits.shape == expected.shape
    if not alike or not expected.allclose(logits, atol=1e-3 * expected.abs().max().item()):
        raise UserError(
            f"the layer '{encoder.head_name}' ({type(encoder.head).__name__}) does not return "
            "W z + b: a subclass or a hook changes it; attach needs a plain linear head"
        )


def _check_head(encoder: Headless, logits: Tensor, answer: Any) -> None:
    """Refuse a head whose outputs order the classes otherwise than what the model returns.

    A softmax or a temperature behind the head changes no order. Of models that do not return a
    tensor, `logits` is compared, if there is such a thing.
    """
    answer = getattr(answer, "logits", answer)
    if not isinstance(answer, Tensor):
        return
    difference = None
    if answer.shape != logits.shape:
        difference = f"that gives shape {tuple(logits.shape)}, the model {tuple(answer.shape)}"
    elif (_in_order_of(logits, answer).diff() < -1e-5 * answer.abs().max()).any():
        difference = "it orders the classes otherwise"
    if difference:
        linear = [n for n, m in encoder.model.named_modules() if isinstance(m, nn.Linear)]
        raise UserError(
            f"the model does not answer with its layer '{encoder.head_name}': {difference}; "
            f"linear layers are: {', '.join(linear)}"
        )


def _in_order_of(keys: Tensor, values: Tensor) -> Tensor:
    return values.gather(-1, keys.argsort(-1))
