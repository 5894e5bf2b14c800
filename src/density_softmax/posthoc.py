"""Uncertainty for a classifier that is already trained."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.data.sources import ArraySource
from density_softmax.engine import EngineConfig, fit, start
from density_softmax.engine.calibration import (
    cross_validate,
    judge,
    predict_features,
    read_rows,
    scores,
)
from density_softmax.engine.fit import inspected
from density_softmax.engine.progress import Bars
from density_softmax.errors import CalibrationWarning, UserError
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.methods.posthoc import PostHocConfig
from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.execution import seeded
from density_softmax.nn.softmax.head import Head
from density_softmax.nn.taps import CallRecorder
from density_softmax.recipes.attach import closed_form
from density_softmax.serve.card import thresholds_of
from density_softmax.types import Calibration, Source

# What `attach` attaches if nothing else is asked for.
DEFAULT = "density_softmax"


def attach(
    model: nn.Module,
    *,
    head: str,
    train: Any,
    calibration: Any,
    layers: Sequence[str] = (),
    method: str | MethodConfig = DEFAULT,
    seed: int = 0,
    engine: EngineConfig | None = None,
    progress: bool = True,
) -> Method:
    """Density-Softmax around a trained model, without back-propagation through it.

    One pass over the training data gives all features; the density is fitted to them, and the
    scale and the temperature to the calibration data. The model's own weights stay as they are
    unless the settings ask for the head stage; without it the predicted classes stay as well. It
    is put into evaluation mode. Any other post-hoc method is attached in the same way.

    Calibration data that would make the result void are refused: training samples, too few,
    inputs on another scale, labels that contradict the model. What weakens it is a
    `CalibrationWarning`. `summary()` of the result tells what was found and what it changed.

    Args:
        model: any classifier with a linear head.
        head: the name of its last linear layer, e.g. "fc".
        train: what it was trained on: a DataLoader, a Dataset or a pair (inputs, labels).
        calibration: in-domain data that it was not trained on, in the same form.
        layers: names of shallow layers for a density to read, e.g. ["layer1", "layer2"]. They
            see corruptions that the last features hide; those have a density of their own, and
            the classifier's energy is added: both see OOD classes. If no layers are given, only the
            last features are used.
        method: another post-hoc method by its name, such as "knn", or the settings of one in
            detail, `layers` included. These must not train the network: `descent` is None, of
            Density-Softmax `representation`.
        seed: decides every random draw.
        engine: devices, processes and precision.
        progress: draw progress bars, and print NLL and ECE before and after.
    """
    encoder, config = Headless(model, head), posthoc_config(method, layers)
    check_kind(encoder)
    sources = inspected(encoder.head.out_features, train, calibration)
    device = next(model.parameters()).device
    with seeded(seed, device):
        example = next(sources["train"].read([[0]], device)).x
        attached = around_checked(encoder, config, example)
    options: dict[str, Any] = {"seed": seed, "engine": engine, "progress": progress}
    fit_calibrated(attached, encoder, sources, layers=layers_of(config) or (), **options)
    return attached


def posthoc_kinds() -> list[str]:
    """The kinds of all methods that `attach` can build, in the order of tables."""
    found = [kind for kind, each in MethodConfig.members.items() if issubclass(each, PostHocConfig)]
    return sorted([*found, DEFAULT], key=lambda kind: MethodConfig.members[kind].rank)


def posthoc_config(method: str | MethodConfig, layers: Sequence[str] = ()) -> MethodConfig:
    """The settings of a post-hoc method for a network that is trained.

    Args:
        method: its kind, or its settings.
        layers: names of layers to read, by a method that reads layers.
    """
    if isinstance(layers, str):
        raise UserError(f'layers="{layers}" is one name: pass a list, layers=["{layers}"]')
    if isinstance(method, str):
        return _default_config(method, tuple(layers))
    if not isinstance(method, DensitySoftmax.Config | PostHocConfig):
        known = ", ".join(posthoc_kinds())
        raise UserError(f"method: no settings of a post-hoc method; there are: {known}")
    name = "descent" if isinstance(method, PostHocConfig) else "representation"
    if getattr(method, name) is not None:
        raise UserError(f"method: its {name} would train the model again: pass {name}=None")
    if layers and layers_of(method) != tuple(layers):
        raise UserError("layers: they are a part of the settings that method= has; name them there")
    return method


def _default_config(kind: str, layers: tuple[str, ...]) -> MethodConfig:
    known = posthoc_kinds()
    if kind not in known:
        close = difflib.get_close_matches(kind, known, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise UserError(f"unknown post-hoc method '{kind}'; {hint}there are: {', '.join(known)}")
    if kind == DEFAULT:
        return closed_form(layers)
    member = MethodConfig.members[kind]
    assert issubclass(member, PostHocConfig)
    config = member(descent=None)
    if not layers:
        return config
    if layers_of(config) is None:
        raise UserError(f"'{kind}' reads the last features alone: omit layers")
    return replace(config, layers=layers)  # type: ignore[call-arg]


def layers_of(config: MethodConfig) -> tuple[str, ...] | None:
    """The layers that a method reads; None if it cannot read any.

    Args:
        config: its settings.
    """
    found: tuple[str, ...] | None = getattr(config, "layers", None)
    return found


def fit_calibrated(
    method: Method,
    encoder: Headless,
    sources: Mapping[str, Source],
    *,
    layers: Sequence[str] = (),
    seed: int = 0,
    engine: EngineConfig | None = None,
    progress: bool = True,
) -> None:
    """Judge the data, fit a method around a trained network, and measure what that changed.

    The network runs once over both sets; everything else is computed from its features.

    Args:
        method: unfitted, of any kind that does not train the encoder.
        encoder: the trained network, which the method is built around.
        sources: the data it was trained on, `train`, and those to calibrate on, `heldout`.
        layers: names of the layers that the method reads, for the record.
        seed: decides every random draw.
        engine: devices, processes and precision.
        progress: draw progress bars, and print what was measured.
    """
    engine = engine or EngineConfig()
    fabric = start(engine)
    shown = progress and fabric.is_global_zero
    fabric.to_device(method)
    with Bars(shown) as bars:
        read = partial(read_rows, fabric, method, logits=encoder.logits, config=engine, bars=bars)
        rows = {split: read(source=s, name=f"features {split}") for split, s in sources.items()}
    weaknesses = judge(rows, method.num_classes)
    for weakness in weaknesses:
        warnings.warn(weakness, CalibrationWarning, stacklevel=3)
    heldout = ArraySource(rows["heldout"]["z"], rows["heldout"]["y"])
    # The head may be trained again.
    before = scores(encoder.logits(heldout.x.to(fabric.device)).softmax(-1).cpu(), heldout.y)
    features = {"train": ArraySource(rows["train"]["z"], rows["train"]["y"]), "heldout": heldout}
    splits = sources["train"], sources["heldout"]
    options: dict[str, Any] = {"seed": seed, "engine": engine, "progress": progress}
    fit(method, *splits, fabric=fabric, features=features, **options)
    method.calibration = Calibration(
        head=encoder.head_name,
        layers=tuple(layers),
        num_train=len(features["train"]),
        num_calibration=len(heldout),
        temperature=_temperature(method),
        before=before,
        warnings=tuple(weaknesses),
        **_measured(method, heldout, seed, engine.predict_batch_size),
    )
    if shown:
        print(f"attached to {encoder.head_name}: {method.calibration.change()}")


def _measured(method: Method, heldout: ArraySource, seed: int, batch_size: int) -> dict[str, Any]:
    """The scores of a fitted method, and thresholds for its epistemic uncertainty."""
    probs = cross_validate(method, heldout.x, heldout.y, seed, batch_size)
    epistemic = predict_features(method, heldout.x, batch_size).epistemic
    return {"after": scores(probs, heldout.y), "thresholds": thresholds_of(epistemic.numpy())}


def _temperature(method: Method) -> float | None:
    """That of the head, in methods that have one."""
    heads = [module for module in method.modules() if isinstance(module, Head)]
    return heads[0].temperature.item() if heads else None


def check_kind(encoder: Headless) -> None:
    """Refuse a head whose outputs are not the logits of a softmax in single precision.

    Args:
        encoder: the trained model.
    """
    head = encoder.head
    if head.weight.dtype != torch.float32:
        raise UserError(f"the model computes in {head.weight.dtype}: pass model.float()")
    if head.weight.is_meta:
        raise UserError("the model is on the device meta, without weights: load them first")
    if head.out_features == 1:
        raise UserError(
            f"the head '{encoder.head_name}' returns a single logit, of a sigmoid: replace it by "
            f"two = nn.Linear({head.in_features}, 2) whose first row and bias are 0 and whose "
            "second are those of the head; its softmax is the same model"
        )


def around_checked(encoder: Headless, config: MethodConfig, example: Tensor) -> Method:
    """`around`, whose only pass also tells whether the head gives what the model returns.

    Args:
        encoder: the trained model, as an encoder.
        config: the settings of the method.
        example: a batch of inputs, (batch, ...).
    """

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


def around(encoder: Headless, config: MethodConfig, example: Tensor) -> Method:
    """An unfitted method that shares its head with the trained model.

    Args:
        encoder: the trained model, as an encoder.
        config: the settings of the method.
        example: a batch of inputs, (batch, ...).
    """
    method = config.build(encoder, encoder.head.out_features, example)
    assert isinstance(method.head, Head)
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
    """Refuse a head whose outputs rank the classes differently from the model's.

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
        difference = "its outputs rank the classes differently from the model's"
    if difference:
        linear = [n for n, m in encoder.model.named_modules() if isinstance(m, nn.Linear)]
        raise UserError(
            f"the model does not answer with its layer '{encoder.head_name}': {difference}; "
            f"linear layers are: {', '.join(linear)}"
        )


def _in_order_of(keys: Tensor, values: Tensor) -> Tensor:
    return values.gather(-1, keys.argsort(-1))
