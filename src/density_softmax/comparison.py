"""Which post-hoc method is best for a trained network: all of them, on the same features."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from density_softmax.config import differences
from density_softmax.data.loaders import as_source
from density_softmax.data.sources import ArraySource
from density_softmax.engine import EngineConfig, fit, start
from density_softmax.engine.calibration import judge, read_rows
from density_softmax.engine.fit import inspected
from density_softmax.engine.inspection import InspectedSource, Inspection
from density_softmax.engine.progress import Bars
from density_softmax.engine.runtime import name_device
from density_softmax.errors import CalibrationWarning, UserError
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.execution import seeded
from density_softmax.posthoc import (
    DEFAULT,
    around,
    found_in,
    layers_of,
    posthoc_config,
    posthoc_kinds,
)
from density_softmax.report.comparison import Comparison
from density_softmax.runs.comparison import PLAIN, SCALED, Contender, Contest, Fitted, Found
from density_softmax.runs.evaluation import latency_metrics
from density_softmax.runs.run import variant_text
from density_softmax.serve.batches import ROWS
from density_softmax.training import Values
from density_softmax.types import Inputs, Row, Source

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")

RECIPE = "compare"
# Images whose latency is measured.
TIMED = 32
# Names that rows give a meaning of their own.
RESERVED = ("iid", "cost", "shifts", "train", "heldout")
# Test samples that may also be training or calibration samples, by accident.
SHARED = 0.01


def compare(
    model: nn.Module,
    *,
    train: Any,
    calibration: Any,
    test: Any,
    head: str | None = None,
    shifts: Mapping[str, Any] | None = None,
    ood: Mapping[str, Any] | None = None,
    methods: Literal["all"] | Sequence[str | MethodConfig] = "all",
    layers: Sequence[str] | None = None,
    latency: bool = False,
    num_resamples: int = 500,
    seed: int = 0,
    engine: EngineConfig | None = None,
    progress: bool = True,
) -> Comparison:
    """Fit post-hoc methods to a trained model and compare them on data that none has seen.

    The model runs once over each data set; every method reads the same features. Of shifted sets
    the labels are those of the test set's classes, of OOD sets they are ignored.

    Args:
        model: any classifier that gives one answer per input.
        train: what it was trained on: a DataLoader, a Dataset or a pair (inputs, labels).
        calibration: in-domain data that it was not trained on, in the same form.
        test: in-domain data that were used for nothing before.
        head: the name of its last linear layer; by default it is found, as by `attach`.
        shifts: by name, data of the same classes under other conditions, e.g. {"fog": ...}.
        ood: by name, data of something else; pairs, loaders, or arrays of inputs alone.
        methods: "all", or names such as "knn" and settings of post-hoc methods. The plain network
            and temperature scaling are always among them.
        layers: names of shallow layers for the methods that read layers; by default they are
            chosen, as by `attach`.
        latency: whether to measure it too: every method in turn with the plain network.
        num_resamples: of the bootstrap; each takes the images of a set with replacement.
        seed: decides every random draw.
        engine: devices, processes and precision.
        progress: draw progress bars.
    """
    began = time.perf_counter()
    posthoc_config(DEFAULT, layers or ())  # refused before the data are read
    source = as_source(train)
    encoder, layers, example = found_in(model, source, head, layers)
    configs = _configs(methods, layers)
    sources: dict[str, Source] = dict(inspected(encoder.num_classes, source, calibration))
    sources |= _evaluated(encoder.num_classes, test, shifts or {}, ood or {})
    engine = engine or EngineConfig()
    fabric = start(engine)
    built, notes = _built(encoder, configs, example, seed)
    reader = around(encoder, posthoc_config(DEFAULT, layers), example)
    fabric.to_device(reader)
    with Bars(progress and fabric.is_global_zero) as bars:
        read = partial(read_rows, fabric, reader, logits=encoder.logits, config=engine, bars=bars)
        rows = {name: read(source=source, name=name) for name, source in sources.items()}
        seconds = time.perf_counter() - began
        notes += _judged(rows, reader.num_classes)
        wide = replace(engine, predict_batch_size=ROWS)
        fitted = _fitted(built, rows, notes, bars, seed=seed, fabric=fabric, engine=wide)
    sets = tuple(shifts or ()), tuple(ood or ())
    contest = Contest(encoder, fitted, rows, *sets, DEFAULT, num_resamples, seed)
    found = contest.results()
    if latency:
        _add_latency(found, fitted, sources["iid"], fabric.device)
    return Comparison(
        rows=tuple(_rows(found, seed)),
        contenders=contest.contenders,
        default=contest.default.label,
        conditions=_conditions(rows, fabric, seconds, time.perf_counter() - began, latency),
        notes=tuple(notes),
    )


def _configs(
    methods: str | Sequence[str | MethodConfig], layers: Sequence[str]
) -> dict[Contender, MethodConfig]:
    """The settings of every line, in the order of tables."""
    if isinstance(methods, str) and methods != "all":
        methods = [methods]
    wanted = posthoc_kinds() if isinstance(methods, str) else [PLAIN, SCALED, *methods]
    found: dict[Contender, MethodConfig] = {}
    for each in wanted:
        kind = each if isinstance(each, str) else each.kind
        default = _reading_layers(kind, layers)
        config = default if isinstance(each, str) else posthoc_config(each)
        read = layers_of(config)
        if read and read != tuple(layers):
            raise UserError(
                f"'{kind}' reads the layers {', '.join(read)}: pass them as layers=, which all "
                "methods share"
            )
        variant = variant_text(differences(default, config))
        title = MethodConfig.members[kind].title
        label = title if variant == "default" else f"{title} ({variant})"
        found[Contender(kind, variant, label)] = config
    ranks = {contender: MethodConfig.members[contender.kind].rank for contender in found}
    return {contender: found[contender] for contender in sorted(found, key=lambda c: ranks[c])}


def _reading_layers(kind: str, layers: Sequence[str]) -> MethodConfig:
    """The default settings of a kind, with the layers if it can read any."""
    reads_any = layers_of(posthoc_config(kind)) is not None
    return posthoc_config(kind, layers if reads_any else ())


def _evaluated(
    num_classes: int, test: Any, shifts: Mapping[str, Any], ood: Mapping[str, Any]
) -> dict[str, Source]:
    """The sets to evaluate on, by the names of their splits; labels of OOD sets are ignored."""
    for name in (*shifts, *ood):
        if name in RESERVED or (name in shifts and name in ood):
            raise UserError(f"'{name}': this name is taken; choose another for your set")
    found: dict[str, Source] = {}
    for name, data in {"iid": test, **shifts}.items():
        kind = "test" if name == "iid" else f"'{name}'"
        source = InspectedSource(as_source(data), Inspection(num_classes, kind, least_classes=1))
        source.look_ahead()
        found[name] = source
    return found | {name: _unlabelled(data) for name, data in ood.items()}


def _unlabelled(data: Any) -> Source:
    """OOD data, also as inputs alone."""
    if isinstance(data, Tensor | np.ndarray):
        return as_source((data, torch.zeros(len(data), dtype=torch.long)))
    return as_source(data)


def _judged(rows: Mapping[str, Values], num_classes: int) -> list[str]:
    """What is weak about the data, said as warnings too."""
    notes = judge(rows, num_classes)
    for split, kind in (("train", "training"), ("heldout", "calibration")):
        share = torch.isin(rows["iid"]["digest"], rows[split]["digest"]).double().mean().item()
        if share > SHARED:
            notes.append(f"{share:.0%} of the test samples are {kind} samples: test on others")
    for note in notes:
        warnings.warn(note, CalibrationWarning, stacklevel=3)
    return notes


def _built(
    encoder: Headless,
    configs: Mapping[Contender, MethodConfig],
    example: Tensor | Inputs,
    seed: int,
) -> tuple[dict[Contender, Method], list[str]]:
    """Every method around the network, and notes on those that cannot be built."""
    notes: list[str] = []
    with seeded(seed, example.device):
        tried = {
            contender: _attempt(partial(around, encoder, config, example), contender, notes)
            for contender, config in configs.items()
        }
    return {contender: method for contender, method in tried.items() if method}, notes


def _fitted(
    methods: Mapping[Contender, Method],
    rows: Mapping[str, Values],
    notes: list[str],
    bars: Bars,
    **options: Any,
) -> dict[Contender, Fitted]:
    """Every method fitted to the same features; one that cannot be is left out and noted."""
    features = {s: ArraySource(rows[s]["z"], rows[s]["y"]) for s in ("train", "heldout")}
    fit_one = partial(fit, train=features["train"], heldout=features["heldout"], features=features)
    bar, found = bars.add("methods", len(methods)), dict[Contender, Fitted]()
    for contender, method in methods.items():
        bar.note(contender.label)
        began = time.perf_counter()
        make = partial(fit_one, method, progress=False, **options)
        if _attempt(make, contender, notes) is not None:
            found[contender] = Fitted(method, time.perf_counter() - began)
        bar.advance()
    return found


def _attempt(make: Callable[[], T], contender: Contender, notes: list[str]) -> T | None:
    """What `make` returns; a rival that is refused is noted and left out."""
    try:
        return make()
    except UserError as error:
        if contender.kind in (PLAIN, SCALED):  # without them there is nothing to compare with
            raise
        notes.append(f"{contender.label} is left out: {error}")
        return None


def _add_latency(
    found: Found, fitted: Mapping[Contender, Fitted], test: Source, device: torch.device
) -> None:
    """The latency of every method relative to the plain network, measured in turn."""
    example = next(test.read([range(min(TIMED, len(test)))], device)).x
    methods = {c.label: each.method for c, each in fitted.items()}
    plain = next(c.label for c in fitted if c.kind == PLAIN)
    ratios = latency_metrics(methods, plain, example)
    for contender in fitted:
        for metric, value in ratios[contender.label].items():
            found[contender]["cost", metric] = value


def _conditions(
    rows: Mapping[str, Values], fabric: Fabric, network: float, total: float, timed: bool
) -> dict[str, str]:
    """Under what conditions the numbers were found."""
    names = {"train": "training", "heldout": "calibration", "iid": "test"}
    sizes = (f"{names.get(name, name)} {len(each['y']):,}" for name, each in rows.items())
    found = {
        "samples": ", ".join(sizes),
        "device": f"{name_device(fabric.device)}, {torch.get_num_threads()} threads",
        "seconds": f"{network:.1f} for one pass over all sets, {total:.1f} in all",
    }
    if timed:
        found["latency"] = "eager mode, every method in turn with the plain network"
    return found


def _rows(found: Found, seed: int) -> Iterator[Row]:
    for contender, values in found.items():
        for (split, metric), value in values.items():
            yield Row(RECIPE, contender.kind, contender.variant, seed, split, metric, value)
