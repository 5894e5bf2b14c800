"""From predictions to metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from density_softmax import metrics
from density_softmax.data.sources import SubsetSource
from density_softmax.engine.passes import collect
from density_softmax.engine.runtime import name_device
from density_softmax.errors import UserError
from density_softmax.methods.base import Method
from density_softmax.nn.lipschitz.bounds import lower_bound, upper_bound
from density_softmax.runs.run import RunDirectory
from density_softmax.types import Prediction, Source, Split

__all__ = [
    "CONTENDERS",
    "METRICS",
    "cost_metrics",
    "detection_metrics",
    "keep_features",
    "label_metrics",
    "latency_conditions",
    "latency_metrics",
    "lipschitz_metrics",
    "mean_over_shifts",
    "thin",
    "training_sample",
]

# Latency is measured with each of these batch sizes, in so many rounds.
BATCH_SIZES, ROUNDS = (1, 32), 30
CONTENDERS = "latency in turn with"

LABEL_METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {
    "nll": metrics.nll,
    "accuracy": metrics.accuracy,
    "ece": metrics.ece,
    "mece": metrics.mece,
    "brier": metrics.brier,
    "aurc": metrics.aurc,
}
DETECTION_METRICS = {"auroc": metrics.auroc, "aupr": metrics.aupr, "fpr95": metrics.fpr95}

METRICS = {
    "nll": "mean negative log-likelihood of the true class, nats; lower is better",
    "accuracy": "share of samples whose likeliest class is the true one; higher is better",
    "ece": "expected calibration error, 15 equal-width bins; lower is better",
    "mece": "ECE over misclassified samples, their mean confidence; lower is better",
    "brier": "squared distance of probabilities from the truth; lower is better",
    "aurc": "area under the risk-coverage curve; lower is better",
    "confidence": "mean of the largest probability",
    "cnll, caccuracy, cece, ...": "means of these over the types and severities of a shifted set",
    "auroc:SCORE": "out-of-distribution detection by confidence, entropy or epistemic",
    "aupr:SCORE": "average precision of the same, out-of-distribution positive",
    "fpr95:SCORE": "share of in-domain samples flagged when 95 % of the others are",
    "params": "number of parameters",
    "lipschitz_lower": "largest norm of the encoder's Jacobian on test data; evaluate --lipschitz",
    "lipschitz_upper": "a Lipschitz constant of the encoder by AutoLip and SeqLip; the same",
    "latency_ratio:BATCH": "time of a forward pass relative to the plain softmax classifier",
    "latency_spread:BATCH": "interquartile range of that ratio over the rounds of measurement",
    "train_seconds:STAGE": "seconds of a stage of training, with features that it reads first",
    "peak_memory:STAGE": "most memory during a stage, megabytes: the process, or torch on a GPU",
}


def label_metrics(prediction: Prediction, labels: Tensor) -> dict[str, float]:
    """Everything that compares predictions with labels, and the mean confidence."""
    found = {name: metric(prediction.probs, labels) for name, metric in LABEL_METRICS.items()}
    return {**found, "confidence": metrics.confidence(prediction.probs)}


def detection_metrics(inside: Prediction, outside: Prediction) -> dict[str, float]:
    """How well each score tells `outside` (the positive class) from `inside`."""
    found = {"confidence": metrics.confidence(outside.probs)}
    scores_in, scores_out = metrics.detection_scores(inside), metrics.detection_scores(outside)
    for name, metric in DETECTION_METRICS.items():
        for score in scores_in:
            found[f"{name}:{score}"] = metric(scores_in[score], scores_out[score])
    return found


def mean_over_shifts(found: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Means over the types and severities of a shifted set: `cnll`, `caccuracy`, `cece`.

    Splits are named `<set>/<type>/<severity>`; the means are of split `<set>`. What was evaluated
    as OOD has no labels to be right about, and no part in them.
    """
    sets: dict[str, list[Mapping[str, float]]] = {}
    for split, values in found.items():
        name, slash, _ = split.partition("/")
        if slash and values.keys() >= LABEL_METRICS.keys():
            sets.setdefault(name, []).append(values)
    return {
        name: {f"c{key}": sum(v[key] for v in members) / len(members) for key in members[0]}
        for name, members in sets.items()
    }


def lipschitz_metrics(method: Method, x: Tensor) -> dict[str, float]:
    """Between what the Lipschitz constant of a method's encoder lies: seen on `x`, and proved."""
    if method.parts() or not _is_row_by_row(method.encoder, x):
        raise UserError(
            f"{method.config.kind} has no encoder that maps an input to its features by itself; "
            "leave --lipschitz away"
        )
    return {
        "lipschitz_lower": lower_bound(method.encoder, x),
        "lipschitz_upper": upper_bound(method.encoder, tuple(x.shape[1:])),
    }


@torch.no_grad()
def _is_row_by_row(encoder: nn.Module, x: Tensor) -> bool:
    """Whether one input gives one row: members inside an encoder want an input for each."""
    try:
        return len(encoder(x[:1])) == 1
    except RuntimeError:  # torch's word for another shape
        return False


def cost_metrics(method: Method, reference: Method, inputs: Tensor) -> dict[str, float]:
    """Parameters, and latency relative to `reference`."""
    found = {"params": float(metrics.num_parameters(method))}
    timed = {"method": method, "reference": reference}
    return found | latency_metrics(timed, "reference", inputs)["method"]


def latency_metrics(
    methods: Mapping[str, Method], reference: str, inputs: Tensor
) -> dict[str, dict[str, float]]:
    """Of every method the latency relative to that of `reference`, in eager mode, interleaved."""
    found: dict[str, dict[str, float]] = {name: {} for name in methods}
    for size in BATCH_SIZES:
        batch = inputs[torch.arange(size) % len(inputs)]
        calls = {name: partial(method, batch) for name, method in methods.items()}
        with torch.no_grad():
            latencies = metrics.interleaved_latency(calls, ROUNDS, device=batch.device)
        ratios = metrics.latency_ratio(latencies, reference)
        spreads = metrics.latency_spread(latencies, reference)
        for name, values in found.items():
            values[f"latency_ratio:{size}"] = ratios[name]
            values[f"latency_spread:{size}"] = spreads[name]
    return found


def latency_conditions(device: torch.device, contenders: Sequence[str]) -> dict[str, Any]:
    """How `latency_metrics` measured, and whom in turn: to be read together with the rows."""
    return {
        "latency device": name_device(device),
        "latency threads": torch.get_num_threads(),
        "latency batch sizes": list(BATCH_SIZES),
        "latency rounds": ROUNDS,
        CONTENDERS: list(contenders),
    }


NUM_INPUTS, NUM_FEATURES = 10_000, 1_000
# The paper maps the features of this corruption, at its highest severity.
MAPPED_SHIFT = "/defocus_blur/5"


def thin(source: Source, num_samples: int) -> Source:
    """At most so many samples, spread evenly over a source."""
    if len(source) <= num_samples:
        return source
    return SubsetSource(source, [n * len(source) // num_samples for n in range(num_samples)])


def training_sample(source: Source) -> Split:
    """Training inputs to compare test inputs with; nothing is measured on them."""
    return Split("train", "surface", thin(source, NUM_INPUTS))


def keep_features(
    fabric: Fabric, method: Method, split: Split, directory: RunDirectory, batch_size: int
) -> None:
    """Keep features of the in-domain split and of the mapped shift.

    Only of a method that learns from features: to others they may not mean one row per sample.
    An ensemble has no features of its own.
    """
    read = not method.parts() and any(stage.on == "features" for stage in method.stages())
    if read and (split.role == "iid" or split.name.endswith(MAPPED_SHIFT)):
        source = thin(split.source, NUM_FEATURES)
        rows = collect(
            fabric,
            source,
            lambda batch: {"z": method.features(batch.x).float(), "y": batch.y},
            batch_size,
        )
        if fabric.is_global_zero:
            directory.save_features(split.name, rows["z"], rows["y"])
