"""Uncertainty for a classifier that is already trained."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn

from density_softmax.data.loaders import as_source
from density_softmax.data.sources import ArraySource, batches, halves
from density_softmax.decide.conformal import Ranks
from density_softmax.decide.policy import Policy
from density_softmax.engine import EngineConfig, fit, start
from density_softmax.engine.calibration import (
    cross_validate,
    judge,
    predict_features,
    read_rows,
    scores,
)
from density_softmax.engine.fit import inspected
from density_softmax.engine.passes import rows_at_once
from density_softmax.engine.progress import Bars
from density_softmax.engine.unfinished import remove_files
from density_softmax.errors import CalibrationWarning, UserError
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.methods.posthoc import PostHocConfig
from density_softmax.nn.backbones.headless import Headless, unwrapped
from density_softmax.nn.execution import seeded
from density_softmax.nn.finding import NUM_PROBED, device_of, find_head, probe, shallow_layers
from density_softmax.nn.softmax.head import Head
from density_softmax.recipes.attach import closed_form, divided_by_layer
from density_softmax.types import NUM_DIGESTS, Calibration, Inputs, Source

if TYPE_CHECKING:
    from sklearn.base import ClassifierMixin

    from density_softmax.estimators.scaled import DensityScaledClassifier

# What `attach` attaches if nothing else is asked for.
DEFAULT = "density_softmax"


@overload
def attach(
    model: nn.Module,
    *,
    train: Any,
    calibration: Any,
    head: str | None = ...,
    layers: Sequence[str] | None = ...,
    by_layer: bool = ...,
    method: str | MethodConfig = ...,
    policy: Mapping[str, Any] | None = ...,
    seed: int = ...,
    engine: EngineConfig | None = ...,
    directory: str | Path | None = ...,
    progress: bool = ...,
) -> Method: ...


@overload
def attach(
    model: ClassifierMixin,
    *,
    train: Any,
    calibration: Any,
    seed: int = ...,
    progress: bool = ...,
) -> DensityScaledClassifier: ...


def attach(
    model: nn.Module | ClassifierMixin,
    *,
    train: Any = None,
    calibration: Any = None,
    head: str | None = None,
    layers: Sequence[str] | None = None,
    by_layer: bool = False,
    method: str | MethodConfig = DEFAULT,
    policy: Mapping[str, Any] | None = None,
    seed: int = 0,
    engine: EngineConfig | None = None,
    directory: str | Path | None = None,
    progress: bool = True,
) -> Method | DensityScaledClassifier:
    """Density-Softmax around a trained model, without back-propagation through it.

    One pass over the training data gives all features; the density is fitted to them, and the
    scale and the temperature to the calibration data. The model's own weights stay as they are
    unless the settings ask for the head stage; without it the predicted classes stay as well. It
    is put into evaluation mode. Any other post-hoc method is attached in the same way.

    Calibration data that would make the result void are refused: training samples, too few,
    inputs on another scale, labels that contradict the model. What weakens it is a
    `CalibrationWarning`. `summary()` of the result tells what was found and what it changed.

    A scikit-learn classifier becomes a fitted `DensityScaledClassifier`, whose density reads the
    columns that the classifier reads; `train` and `calibration` are pairs (X, y).

    Args:
        model: any classifier that gives one answer per input.
        train: what it was trained on: a DataLoader, a Dataset or a pair (inputs, labels).
        calibration: in-domain data that it was not trained on, in the same form.
        head: the name of its last linear layer, e.g. "fc". By default the layer whose output is
            the model's answer is found by running the model on a few training samples. If that
            layer does not return W z + b, its inputs and the model's own logits are read.
        layers: names of shallow layers for a density to read, e.g. ["layer1", "layer2"]. They
            see corruptions that the last features hide; those have a density of their own, and
            the classifier's energy is added: both see OOD classes. By default they are chosen by
            the kind of network; with (), only the last features are used.
        by_layer: tell what each layer contributes to an input's score, for a monitor to name the
            layer that moved. It adds some small operations to every prediction.
        method: another post-hoc method by its name, such as "knn", or the settings of one in
            detail, `layers` included. These must not train the network: `descent` is None, of
            Density-Softmax `representation`.
        policy: what to promise, as arguments of `Policy.fit`, such as {"coverage": 0.95}. Half of
            the calibration samples then sets temperature and scale, and the other half fits
            `policy` of the result: samples that did both would make promises too good.
        seed: decides every random draw.
        engine: devices, processes, precision, and how many inputs are computed at a time.
        directory: for large data, where features are kept while they are computed: those above
            `engine.feature_memory` are mapped files, and a killed call continues when it is made
            again. The files are removed at the end.
        progress: draw progress bars, and print NLL and ECE before and after.
    """
    _check_given(train, calibration)
    if not isinstance(model, nn.Module):
        network = {"head": head, "layers": layers, "method": method, "policy": policy}
        _refuse(**network, by_layer=by_layer or None, engine=engine, directory=directory)
        from density_softmax.estimators.scaled import attach_to_classifier

        return attach_to_classifier(model, train, calibration, seed=seed, progress=progress)
    posthoc_config(method, layers or ())  # refused before the data are read
    source = as_source(train)
    encoder, chosen, example = found_in(model, source, head, layers)
    config = posthoc_config(method, _read_by(method, chosen) if layers is None else layers)
    if by_layer:
        config = divided_by_layer(config)
    sources = inspected(encoder.num_classes, source, calibration)
    with seeded(seed, example.device):
        attached = around(encoder, config, example)
    options: dict[str, Any] = {"seed": seed, "engine": engine, "progress": progress}
    options["directory"] = None if directory is None else Path(directory)
    splits, others = dict[str, Source](sources), None
    if policy is not None:
        splits["heldout"], others = halves(sources["heldout"], seed)
    fit_calibrated(attached, encoder, splits, layers=layers_of(config) or (), **options)
    if others is not None:
        attached.policy = Policy.fit(attached, batches(others), **{"seed": seed, **(policy or {})})
    return attached


def _check_given(train: Any, calibration: Any) -> None:
    if train is None:
        raise UserError("train= is missing: pass the data that the model was trained on")
    if calibration is None:
        raise UserError(
            "calibration= is missing: pass in-domain data that the model was not trained on, such "
            "as a validation set; on its training data a model is too confident"
        )


def _refuse(**settings: Any) -> None:
    """Refuse settings that only a network has."""
    for name, value in settings.items():
        if value not in (None, DEFAULT, (), []):
            raise UserError(f"{name}: only a torch model has it; omit it for another classifier")


def found_in(
    model: nn.Module, train: Source, head: str | None, layers: Sequence[str] | None
) -> tuple[Headless, tuple[str, ...], Tensor | Inputs]:
    """A trained model as an encoder, the layers to read, and an input like those it reads.

    Args:
        model: the trained classifier.
        train: what it was trained on.
        head: the name of its head; None finds it.
        layers: names of layers to read; None chooses them by the kind of network.
    """
    model = unwrapped(model)
    if isinstance(model, nn.Linear):  # whose name is no name
        raise UserError("the model is a single nn.Linear: pass nn.Sequential(model)")
    device = device_of(model)
    rows = range(min(NUM_PROBED, len(train)))
    x = next(train.read([rows], device)).x
    probed = probe(model, _finite(x))
    site = find_head(probed, head)
    chosen = shallow_layers(probed, site, len(train)) if layers is None else tuple(layers)
    return Headless(model, site), chosen, x[:1]


def _finite(x: Tensor | Inputs) -> Tensor | Inputs:
    """Inputs without NaN, which the first pass over all data tells by its row."""
    if isinstance(x, Inputs):
        return Inputs({name: each.nan_to_num() for name, each in x.tensors.items()})
    return x.nan_to_num()


def _read_by(method: str | MethodConfig, layers: tuple[str, ...]) -> tuple[str, ...]:
    """Layers that were chosen, if the method reads any and does not name its own."""
    reads = isinstance(method, str) and layers_of(posthoc_config(method)) is not None
    return layers if reads else ()


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
    directory: Path | None = None,
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
        directory: where features are kept while they are computed.
        progress: draw progress bars, and print what was measured.
    """
    engine = engine or EngineConfig()
    fabric = start(engine)
    shown = progress and fabric.is_global_zero
    fabric.to_device(method)
    # No other process, and nobody else, has files there.
    own = directory and directory / f"process{fabric.global_rank}"
    with Bars(shown) as bars:
        read = partial(read_rows, fabric, method, logits=encoder.logits, config=engine, bars=bars)
        rows = {
            split: read(source=s, name=f"features {split}", directory=own and own / split)
            for split, s in sources.items()
        }
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
        temperature=temperature_of(method),
        before=before,
        warnings=tuple(weaknesses),
        digests=smallest_digests(rows["heldout"]["digest"]),
        train_digests=smallest_digests(rows["train"]["digest"]),
        **measured(method, heldout, splits[1], seed, rows_at_once(engine)),
    )
    if own is not None:
        remove_files(own)
    if shown:
        found = "\n".join([method.calibration.read(), f"  {method.calibration.change()}"])
        print(f"attached to {found}")


def measured(
    method: Method, heldout: ArraySource, inputs: Source, seed: int, batch_size: int
) -> dict[str, Any]:
    """The scores of a fitted method, and what is known of its epistemic uncertainty.

    Args:
        method: a fitted one.
        heldout: features and labels of the calibration data.
        inputs: the calibration data themselves.
        seed: decides the folds.
        batch_size: rows at a time.
    """
    probs = cross_validate(method, heldout.x, heldout.y, seed, batch_size)
    epistemic = predict_features(method, heldout.x, batch_size).epistemic
    found = {"typical": Ranks.of(epistemic.double().numpy())}
    reference = _row_of_numbers(inputs, int(epistemic.argmin()))
    return {"after": scores(probs, heldout.y), **found, "reference": reference}


def smallest_digests(digests: Tensor) -> tuple[int, ...]:
    """Those that are kept of the samples of a set.

    Args:
        digests: of all samples, (samples,).
    """
    return tuple(digests.sort().values[:NUM_DIGESTS].tolist())


def _row_of_numbers(inputs: Source, index: int) -> tuple[float, ...]:
    """One of the inputs, if they are rows of a table."""
    x = next(inputs.read([[index]], torch.device("cpu"))).x
    table = isinstance(x, Tensor) and x.ndim == 2 and x.is_floating_point()
    return tuple(x[0].double().tolist()) if table else ()


def temperature_of(method: Method) -> float | None:
    """The temperature of the head, in methods that have one.

    Args:
        method: a fitted one.
    """
    heads = [module for module in method.modules() if isinstance(module, Head)]
    return heads[0].temperature.item() if heads else None


def around(encoder: Headless, config: MethodConfig, example: Tensor | Inputs) -> Method:
    """An unfitted method that shares its head with the trained model.

    Args:
        encoder: the trained model, as an encoder.
        config: the settings of the method.
        example: a batch of inputs, (batch, ...).
    """
    if encoder.num_logits and isinstance(config, PostHocConfig) and config.reads_weights:
        raise UserError(
            f"'{config.kind}' computes with the weights of a linear head, and the answer of this "
            f"model is not W z + b of its layer '{encoder.head_name}': choose a method that reads "
            "features and logits, such as density_softmax, mahalanobis, knn or energy"
        )
    method = config.build(encoder, encoder.num_classes, example)
    assert isinstance(method.head, Head)
    method.head.linear = encoder.head
    return method
