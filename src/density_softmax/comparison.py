"""Which post-hoc method is best for a trained network: all of them, on the same features."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from density_softmax import metrics
from density_softmax.config import differences
from density_softmax.data.loaders import as_source
from density_softmax.data.sources import ArraySource
from density_softmax.engine import EngineConfig, fit, start
from density_softmax.engine.calibration import judge, predict_features, read_rows
from density_softmax.engine.fit import inspected
from density_softmax.engine.progress import Bars
from density_softmax.engine.runtime import name_device
from density_softmax.errors import CalibrationWarning, UserError
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.execution import seeded
from density_softmax.nn.softmax.head import fit_temperature
from density_softmax.posthoc import (
    DEFAULT,
    around,
    around_checked,
    check_kind,
    layers_of,
    posthoc_config,
    posthoc_kinds,
)
from density_softmax.report.comparison import Comparison, Contender
from density_softmax.runs.evaluation import latency_metrics
from density_softmax.runs.run import variant_text
from density_softmax.training import Values
from density_softmax.types import Prediction, Row, Source

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Every comparison has these two lines.
PLAIN, SCALED = "deterministic", "temperature_scaling"
ORACLE = Contender(
    SCALED, "oracle: T of each set", "Oracle: temperature of each shift's own labels"
)
RECIPE = "compare"
# Rows of features at a time: these passes need no more memory than the features themselves.
ROWS = 4096
# Images whose latency is measured.
TIMED = 32
# Names that rows give a meaning of their own.
RESERVED = ("iid", "cost", "shifts")
# Test samples that may also be training or calibration samples, by accident.
SHARED = 0.01


def compare(
    model: nn.Module,
    *,
    head: str,
    train: Any,
    calibration: Any,
    test: Any,
    shifts: Mapping[str, Any] | None = None,
    ood: Mapping[str, Any] | None = None,
    methods: Literal["all"] | Sequence[str | MethodConfig] = "all",
    layers: Sequence[str] = (),
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
        model: any classifier with a linear head.
        head: the name of its last linear layer, e.g. "fc".
        train: what it was trained on: a DataLoader, a Dataset or a pair (inputs, labels).
        calibration: in-domain data that it was not trained on, in the same form.
        test: in-domain data that were used for nothing before.
        shifts: by name, data of the same classes under other conditions, e.g. {"fog": ...}.
        ood: by name, data of something else; pairs, loaders, or arrays of inputs alone.
        methods: "all", or names such as "knn" and settings of post-hoc methods. The plain network
            and temperature scaling are always among them.
        layers: names of shallow layers for the methods that read layers.
        latency: whether to measure it too: every method in turn with the plain network.
        num_resamples: of the bootstrap; each takes the images of a set with replacement.
        seed: decides every random draw.
        engine: devices, processes and precision.
        progress: draw progress bars.
    """
    began = time.perf_counter()
    encoder, configs = Headless(model, head), _configs(methods, layers)
    evaluated = _evaluated(test, shifts or {}, ood or {})
    sources = inspected(encoder.head.out_features, train, calibration)
    engine = engine or EngineConfig()
    fabric = start(engine)
    reader = _reader(encoder, sources["train"], tuple(layers), seed)
    fabric.to_device(reader)
    with Bars(progress and fabric.is_global_zero) as bars:
        rows = {
            name: read_rows(fabric, reader, source, encoder.logits, engine, bars, name)
            for name, source in {**sources, **evaluated}.items()
        }
        seconds = time.perf_counter() - began
        notes = _judged(rows, reader.num_classes)
        fitted = _fitted(fabric, encoder, reader, configs, rows, seed, engine, bars, notes)
    arena = Arena(encoder, fitted, rows, tuple(shifts or ()), tuple(ood or ()), num_resamples, seed)
    found = arena.results()
    if latency:
        example = next(
            evaluated["iid"].read([range(min(TIMED, len(evaluated["iid"])))], fabric.device)
        ).x
        _add_latency(found, fitted, example)
    conditions = _conditions(rows, fabric, seconds, time.perf_counter() - began, latency)
    return Comparison(
        rows=tuple(_rows(found, seed)),
        contenders=arena.contenders,
        default=arena.default.label,
        conditions=conditions,
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class Fitted:
    """A method after its fit, and what that took."""

    method: Method
    seconds: float

    @property
    def stored_bytes(self) -> int:
        """What it adds to the network."""
        state = self.method.state_dict()
        own = [v for n, v in state.items() if not n.startswith(("encoder.", "head.linear."))]
        return sum(value.numel() * value.element_size() for value in own)


Found = dict[Contender, dict[tuple[str, str], float]]  # by split and metric


class Arena:
    """Fitted methods and the features of every set: from these all numbers follow.

    Args:
        encoder: the network.
        fitted: the methods.
        rows: of every set, as `read_rows` gives them.
        shifts: names of shifted sets.
        ood: names of OOD sets.
        num_resamples: of the bootstrap.
        seed: decides its draws.
    """

    def __init__(
        self,
        encoder: Headless,
        fitted: Mapping[Contender, Fitted],
        rows: Mapping[str, Values],
        shifts: tuple[str, ...],
        ood: tuple[str, ...],
        num_resamples: int,
        seed: int,
    ) -> None:
        self.encoder, self.fitted, self.rows = encoder, fitted, rows
        self.shifts, self.ood = shifts, ood
        self.num_resamples, self.seed = num_resamples, seed
        self.contenders = tuple(self._in_order())
        kinds = {contender.kind: contender for contender in reversed(self.contenders)}
        self.default = kinds.get(DEFAULT, kinds[SCALED])
        self.found: Found = {contender: {} for contender in self.contenders}
        # By split and metric, the values of every contender in every resample.
        self._resampled: dict[tuple[str, str], dict[Contender, Tensor]] = {}
        self._weights: dict[int, Tensor] = {}

    def results(self) -> Found:
        """All numbers, those of costs apart from latency included."""
        inside = {c: self._predict(c, "iid") for c in self.fitted}
        self._label("iid", {c: p.probs for c, p in inside.items()})
        for split in self.shifts:
            self._label(split, {c: self._predict(c, split).probs for c in self._calibrators()})
            self._label(split, {ORACLE: self._oracle(split)})
        if self.shifts:
            self._average_shifts()
        for split in self.ood:
            self._detect(split, inside)
        self._subtract_default()
        for contender, each in self.fitted.items():
            self.found[contender]["cost", "stored_bytes"] = float(each.stored_bytes)
            self.found[contender]["cost", "train_seconds:fit"] = each.seconds
        return self.found

    def _in_order(self) -> Iterator[Contender]:
        for contender in self.fitted:
            yield contender
            if contender.kind == SCALED and self.shifts:
                yield ORACLE

    def _calibrators(self) -> list[Contender]:
        """Those with probabilities of their own, the plain network among them."""
        return [c for c in self.fitted if "probs" in MethodConfig.members[c.kind].defines]

    def _predict(self, contender: Contender, split: str) -> Prediction:
        return predict_features(self.fitted[contender].method, self.rows[split]["z"], ROWS)

    def _oracle(self, split: str) -> Tensor:
        """Probabilities at the temperature that the labels of a set ask for."""
        device = self.encoder.head.weight.device
        with torch.no_grad():
            logits = self.encoder.logits(self.rows[split]["z"].to(device)).cpu()
        return (logits / fit_temperature(logits, self.rows[split]["y"])).softmax(-1)

    def _label(self, split: str, probs: Mapping[Contender, Tensor]) -> None:
        """What compares probabilities with labels, of those who define probabilities."""
        y, own = self.rows[split]["y"], {*self._calibrators(), ORACLE}
        for contender in (c for c in probs if c in own):
            p = probs[contender]
            values = {m: getattr(metrics, m)(p, y) for m in ("nll", "ece", "accuracy")}
            self.found[contender] |= {(split, name): value for name, value in values.items()}
            weights = self._weights_of(len(y))
            losses = -p.gather(1, y[:, None])[:, 0].clamp_min(torch.finfo(torch.float32).tiny).log()
            self._keep((split, "nll"), contender, metrics.resampled_means(losses, weights))
            self._keep((split, "ece"), contender, metrics.resampled_ece(p, y, weights))

    def _average_shifts(self) -> None:
        """Means over the shifted sets, and how much of the way to the oracle they are."""
        name = _set_name(self.shifts)
        for contender in (*self._calibrators(), ORACLE):
            values = self.found[contender]
            for metric in ("nll", "ece", "accuracy"):
                each = [values[split, metric] for split in self.shifts]
                values[name, f"c{metric}"] = sum(each) / len(each)
            for metric in ("nll", "ece"):
                drawn = [self._resampled[split, metric].pop(contender) for split in self.shifts]
                self._keep((name, f"c{metric}"), contender, torch.stack(drawn).mean(0))
        scaled = next(c for c in self.fitted if c.kind == SCALED)
        start, end = (self.found[c][name, "cnll"] for c in (scaled, ORACLE))
        for contender in (*self._calibrators(), ORACLE) if start > end else ():
            way = (start - self.found[contender][name, "cnll"]) / (start - end)
            self.found[contender][name, "oracle_share"] = way

    def _detect(self, split: str, inside: Mapping[Contender, Prediction]) -> None:
        """How well each method's own score tells an OOD set from the test set."""
        for contender in self.fitted:
            scores = inside[contender].epistemic, self._predict(contender, split).epistemic
            for metric in ("auroc", "fpr95"):
                self.found[contender][split, f"{metric}:epistemic"] = getattr(metrics, metric)(
                    *scores
                )
            weights = self._weights_of(len(scores[0])), self._weights_of(len(scores[1]), 1)
            self._keep(
                (split, "auroc:epistemic"), contender, metrics.resampled_auroc(*scores, *weights)
            )

    def _subtract_default(self) -> None:
        """Differences from the default method, and between what resampling puts them."""
        for (split, metric), resampled in self._resampled.items():
            for contender in resampled if self.default in resampled else ():
                if contender != self.default:
                    values = [self.found[c][split, metric] for c in (contender, self.default)]
                    low, high = metrics.interval(resampled[contender] - resampled[self.default])
                    found = {"": values[0] - values[1], "_low": low, "_high": high}
                    for end, value in found.items():
                        self.found[contender][split, f"difference{end}:{metric}"] = value

    def _keep(self, key: tuple[str, str], contender: Contender, values: Tensor) -> None:
        self._resampled.setdefault(key, {})[contender] = values

    def _weights_of(self, num_samples: int, other: int = 0) -> Tensor:
        """Weights of resamples; sets of the same size are taken for versions of the same images."""
        key = 2 * num_samples + other
        if key not in self._weights:
            seed = self.seed + key
            found = metrics.resample_weights(num_samples, self.num_resamples, seed)
            self._weights[key] = found
        return self._weights[key]


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


def _evaluated(test: Any, shifts: Mapping[str, Any], ood: Mapping[str, Any]) -> dict[str, Source]:
    """The sets to evaluate on, by the names of their splits."""
    for name in (*shifts, *ood):
        if name in RESERVED or (name in shifts and name in ood):
            raise UserError(f"'{name}': this name is taken; choose another for your set")
    found = {"iid": as_source(test)}
    found |= {name: as_source(data) for name, data in shifts.items()}
    return found | {name: _unlabelled(data) for name, data in ood.items()}


def _unlabelled(data: Any) -> Source:
    """OOD data, also as inputs alone."""
    if isinstance(data, Tensor | np.ndarray):
        return as_source((data, torch.zeros(len(data), dtype=torch.long)))
    return as_source(data)


def _reader(encoder: Headless, train: Source, layers: tuple[str, ...], seed: int) -> Method:
    """A method that reads all that any of the methods reads."""
    check_kind(encoder)
    device = encoder.head.weight.device
    with seeded(seed, device):
        example = next(train.read([[0]], device)).x
        return around_checked(encoder, posthoc_config(DEFAULT, layers), example)


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


def _fitted(
    fabric: Fabric,
    encoder: Headless,
    reader: Method,
    configs: Mapping[Contender, MethodConfig],
    rows: Mapping[str, Values],
    seed: int,
    engine: EngineConfig,
    bars: Bars,
    notes: list[str],
) -> dict[Contender, Fitted]:
    """Every method fitted to the same features; one that cannot be is left out and noted."""
    features = {s: ArraySource(rows[s]["z"], rows[s]["y"]) for s in ("train", "heldout")}
    options: dict[str, Any] = {
        "seed": seed,
        "engine": replace(engine, predict_batch_size=ROWS),
        "fabric": fabric,
    }
    device = next(reader.parameters()).device
    assert reader.example_shape is not None
    example = torch.zeros(1, *reader.example_shape, dtype=reader.example_dtype, device=device)
    bar, found = bars.add("methods", len(configs)), dict[Contender, Fitted]()
    for contender, config in configs.items():
        bar.note(contender.label)
        try:
            with seeded(seed, device):
                method = around(encoder, config, example)
            began = time.perf_counter()
            fit(method, *features.values(), features=features, progress=False, **options)
        except UserError as error:
            notes.append(f"{contender.label} is left out: {error}")
        else:
            found[contender] = Fitted(method, time.perf_counter() - began)
        bar.advance()
    return found


def _set_name(shifts: Sequence[str]) -> str:
    """What means over shifts are called: the set that all belong to, if there is one."""
    names = {name.partition("/")[0] for name in shifts}
    alone = len(names) == 1 and all("/" in name for name in shifts)
    return names.pop() if alone else "shifts"


def _add_latency(found: Found, fitted: Mapping[Contender, Fitted], example: Tensor) -> None:
    """The latency of every method relative to the plain network, measured in turn."""
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
