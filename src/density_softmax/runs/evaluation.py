"""From a trained method to values by split and metric: predictions, detection, cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from density_softmax import metrics
from density_softmax.data.sources import SubsetSource
from density_softmax.engine.checkpoints import Checkpoints
from density_softmax.engine.passes import chosen_batch_size, collect, num_batches, predict
from density_softmax.engine.progress import Bars
from density_softmax.engine.runtime import name_device
from density_softmax.errors import UserError
from density_softmax.methods.base import Method
from density_softmax.methods.deterministic import Deterministic
from density_softmax.nn.lipschitz.bounds import lower_bound, upper_bound
from density_softmax.runs.run import Run
from density_softmax.types import Batch, Data, Prediction, Row, Source, Split

if TYPE_CHECKING:
    from lightning_fabric import Fabric


# Values by split and metric.
Found = dict[str, dict[str, float]]

# Latency is measured with each of these batch sizes, in so many rounds.
BATCH_SIZES, ROUNDS = (1, 32), 30
# In environment.json: the methods and variants that were timed in turn with a run.
TIMED_TOGETHER = "latency in turn with"
# Training inputs whose predictions are kept, and test inputs whose features are.
NUM_TRAINING, NUM_FEATURES = 10_000, 1_000
# The paper maps the features of this corruption, at its highest severity.
MAPPED_SHIFT = "/defocus_blur/5"
# In-domain test samples on which the lower bound of the Lipschitz constant is the largest seen.
LIPSCHITZ_SAMPLES = 256
# What a split is to a run, by a metric that tells.
ROLES = {"nll": "shift", "cnll": "mean over shifts", "auroc:confidence": "ood"}

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


def evaluate_splits(fabric: Fabric, run: Run, method: Method, progress: bool = True) -> Found:
    """Predict every split of a run, keep the predictions, and compute the metrics of each.

    Args:
        fabric: where the method is.
        run: gets the predictions, also of a sample of its training set.
        method: the trained method of the run.
        progress: draw a progress bar.
    """
    found, inside = Found(), None
    size = chosen_batch_size(run.recipe.engine, method, run.data.train, fabric.device)
    training = Split("train", "surface", subsample(run.data.train, NUM_TRAINING))
    splits = (*run.data.splits, training)
    with Bars(progress and fabric.is_global_zero) as bars:
        bar = bars.add("predict", sum(num_batches(len(s.source), size) for s in splits))
        for split in splits:
            bar.note(split.name)
            prediction, labels = predict(fabric, method, split.source, size, tick=bar.advance)
            if fabric.is_global_zero:
                run.save_prediction(split.name, prediction, labels)
            keep_features(fabric, run, method, split)
            inside = prediction if split.role == "iid" else inside
            found[split.name] = _split_metrics(split, prediction, labels, inside)
    return found


def _split_metrics(
    split: Split, prediction: Prediction, labels: Tensor, inside: Prediction | None
) -> dict[str, float]:
    """The metrics that the role of a split allows."""
    if split.role in ("iid", "shift"):
        return label_metrics(prediction, labels)
    if split.role == "ood":
        assert inside is not None, "the in-domain split comes first"
        return detection_metrics(inside, prediction)
    return {}


def label_metrics(prediction: Prediction, labels: Tensor) -> dict[str, float]:
    """Everything that compares predictions with labels, and the mean confidence.

    Args:
        prediction: of (batch, classes).
        labels: (batch,).
    """
    found = {name: metric(prediction.probs, labels) for name, metric in LABEL_METRICS.items()}
    return {**found, "confidence": metrics.confidence(prediction.probs)}


def detection_metrics(inside: Prediction, outside: Prediction) -> dict[str, float]:
    """How well each score tells OOD inputs, the positive class, from in-domain ones.

    Args:
        inside: the prediction of the in-domain test set.
        outside: the prediction of the OOD set.
    """
    found = {"confidence": metrics.confidence(outside.probs)}
    scores_in, scores_out = metrics.detection_scores(inside), metrics.detection_scores(outside)
    for name, metric in DETECTION_METRICS.items():
        for score in scores_in:
            found[f"{name}:{score}"] = metric(scores_in[score], scores_out[score])
    return found


def mean_over_shifts(found: Mapping[str, Mapping[str, float]]) -> Found:
    """Means over the types and severities of a shifted set: `cnll`, `caccuracy`, `cece`.

    Args:
        found: values by split and metric. Splits `<set>/<type>/<severity>` that have labels give
            means of split `<set>`; what was evaluated as OOD has no part in them.
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


def merge_rows(run: Run, kept: Sequence[Row], found: Found) -> list[Row]:
    """New results beside those that a run has of other splits; means over shifts are of both.

    Args:
        run: whose results they are.
        kept: its rows so far.
        found: what was measured now.
    """
    before = Found()
    for row in kept:
        before.setdefault(row.split, {})[row.metric] = row.value
    rows = run.make_rows(found | mean_over_shifts(before | found))
    new = {(row.split, row.metric) for row in rows}
    return [row for row in kept if (row.split, row.metric) not in new] + rows


def check_roles(run: Run, rows: Sequence[Row], splits: Sequence[Split]) -> None:
    """Refuse a split of which a run has results in another role: rows would mix the two.

    Args:
        run: the run.
        rows: its results so far.
        splits: what it is to be evaluated on.
    """
    had = {row.split: ROLES[row.metric] for row in rows if row.metric in ROLES}
    now: dict[str, str] = {split.name: split.role for split in splits if split.role != "iid"}
    shifts = [name for name, role in now.items() if role == "shift" and "/" in name]
    now |= dict.fromkeys((name.partition("/")[0] for name in shifts), "mean over shifts")
    for name, role in now.items():
        if had.get(name, role) != role:
            raise UserError(
                f"{name}: {run.path} has results of it as {had[name]}, and cannot have any as "
                f"{role} beside them; omit it, or rename your file"
            )


def subsample(source: Source, num_samples: int) -> Source:
    """Some samples of a source, spread evenly over it.

    Args:
        source: where they are from.
        num_samples: how many at most.
    """
    if len(source) <= num_samples:
        return source
    return SubsetSource(source, [n * len(source) // num_samples for n in range(num_samples)])


def keep_features(fabric: Fabric, run: Run, method: Method, split: Split) -> None:
    """Keep features of the in-domain split and of the mapped shift.

    Args:
        fabric: where the method is.
        run: gets the features.
        method: one that learns from features; others may not have one row per sample.
        split: the split.
    """
    read = not method.ensemble() and any(stage.on == "features" for stage in method.stages())
    if not read or not (split.role == "iid" or split.name.endswith(MAPPED_SHIFT)):
        return

    def features(batch: Batch) -> dict[str, Tensor]:
        return {"z": method.features(batch.x).float(), "y": batch.y}

    source = subsample(split.source, NUM_FEATURES)
    size = chosen_batch_size(run.recipe.engine, method, source, fabric.device)
    rows = collect(fabric, source, features, size)
    if fabric.is_global_zero:
        run.save_features(split.name, rows["z"], rows["y"])


def bound_encoder(fabric: Fabric, method: Method, data: Data) -> dict[str, float]:
    """Between what the Lipschitz constant of an encoder lies: seen on test samples, and proved.

    Args:
        fabric: where the method is.
        method: a trained method with an encoder of its own.
        data: the first split gives the samples.
    """
    inputs = data.splits[0].source
    few = list(range(min(LIPSCHITZ_SAMPLES, len(inputs))))
    x = next(inputs.read([few], fabric.device)).x
    if method.ensemble() or not _is_row_by_row(method.encoder, x):
        raise UserError(
            f"{method.config.kind} has no encoder that maps an input to its features by itself; "
            "omit --lipschitz"
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


def own_cost(fabric: Fabric, run: Run, method: Method) -> dict[str, float]:
    """Parameters and latency of a run by itself, in turn with an untrained network of ERM.

    Args:
        fabric: where the method is.
        run: gets the conditions of the measurement.
        method: the method of the run.
    """
    methods = {"method": method, "reference": untrained_reference(run)}
    fabric.to_device(methods["reference"])
    example = next(run.data.splits[0].source.read([[0]], fabric.device)).x
    latency = latency_metrics(methods, "reference", example)["method"]
    if fabric.is_global_zero:
        run.add_to_environment(latency_conditions(fabric.device, ["deterministic"]))
    return {"params": float(metrics.num_parameters(method)), **latency}


def untrained_reference(run: Run) -> Method:
    """The plain classifier that latencies are relative to; its weights make no difference.

    Args:
        run: whose encoder it has.
    """
    task = run.data.task
    return Deterministic(run.recipe.encoder.build(task.input_shape), task.num_classes).eval()


def latency_metrics(methods: Mapping[str, Method], reference: str, inputs: Tensor) -> Found:
    """The latency of every method relative to that of one, in eager mode, interleaved.

    Args:
        methods: by name.
        reference: the name of the method that has the ratio 1.
        inputs: (batch, ...), repeated to fill each batch size.
    """
    found = Found({name: {} for name in methods})
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


def latency_conditions(device: torch.device, names: Sequence[str]) -> dict[str, Any]:
    """How `latency_metrics` measured, for environment.json.

    Args:
        device: where.
        names: the methods and variants that were timed in turn.
    """
    return {
        "latency device": name_device(device),
        "latency threads": torch.get_num_threads(),
        "latency batch sizes": list(BATCH_SIZES),
        "latency rounds": ROUNDS,
        TIMED_TOGETHER: list(names),
    }


def training_cost(record: Checkpoints) -> dict[str, float]:
    """What each stage took: seconds, and megabytes at most.

    Args:
        record: the finished stages.
    """
    seconds = {f"train_seconds:{stage.name}": stage.seconds for stage in record.finished}
    memory = {f"peak_memory:{stage.name}": stage.peak_memory for stage in record.finished}
    return seconds | memory
