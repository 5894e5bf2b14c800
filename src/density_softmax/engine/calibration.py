"""Data that calibrate a trained network: read once, judged, and what they say of the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from density_softmax.engine.passes import chosen_batch_size, collect, num_batches
from density_softmax.engine.progress import Bars
from density_softmax.engine.runtime import EngineConfig
from density_softmax.engine.unfinished import unfinished_pass
from density_softmax.errors import UserError
from density_softmax.methods.base import Method
from density_softmax.metrics.scoring import accuracy, ece, nll
from density_softmax.nn.execution import digests, explained, seeded
from density_softmax.training import Estimate, Stage, Values, folds
from density_softmax.types import Batch, Inputs, Prediction, Scores, Source, tensors_of

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# With fewer calibration samples there is no quantile to fit, or none for 1 % of false alarms.
LEAST, ENOUGH = 10, 100
# Shares of calibration samples that are also training samples: few are, by accident.
SHARED, MOSTLY_SHARED = 0.01, 0.5
# Ratios of the typical input's size in both sets.
OTHER_SCALE, QUITE_OTHER_SCALE = 2.0, 10.0
# Agreement of labels and answers, corrected for chance: that of a guess, and of a model.
GUESS, KNOWS = 0.1, 0.3
# Numbers of folds, fewer where a fit takes seconds: above so many logits.
FEW_FOLDS, NUM_FOLDS, MANY_LOGITS = 2, 5, 2**20
# Class numbers that a warning lists.
NUM_LISTED = 5


def read_rows(
    fabric: Fabric,
    method: Method,
    source: Source,
    logits: Callable[[Tensor], Tensor],
    config: EngineConfig,
    bars: Bars,
    name: str,
    directory: Path | None = None,
) -> Values:
    """All that is needed of a data set, from one pass through the network; a row per sample.

    Args:
        fabric: where the method is.
        method: gives the features.
        source: the samples.
        logits: those of the network, from the features.
        config: the batch size.
        bars: where progress is drawn.
        name: what the progress bar is called.
        directory: of this process, where rows are noted, so that a killed pass continues.

    Returns:
        `z` and `y`; `label`, the network's answer; `digest`, `level` and `size` of the input: 64
        bits to know it again, its mean, and its mean absolute value.
    """
    method.eval()
    size = chosen_batch_size(config, method, source, fabric.device)
    bar = bars.add(name, num_batches(len(source), size))

    def rows(batch: Batch) -> Values:
        x = batch.x
        try:
            z = method.features(x).float()
        except (RuntimeError, IndexError) as error:
            raise explained(error, x, method.example_shape, method.example_dtype) from error
        level, size = _moments(x)
        found = {"z": z, "y": batch.y, "label": logits(z).argmax(-1)}
        return found | {"digest": digests(x).to(x.device), "level": level, "size": size}

    kept = unfinished_pass(directory, config, fabric, method, source, size)
    memory = config.feature_memory * 2**20
    options: dict[str, Any] = {"tick": bar.advance, "directory": directory, "memory": memory}
    return collect(fabric, source, rows, size, unfinished=kept, **options)


def _moments(x: Tensor | Inputs) -> tuple[Tensor, Tensor]:
    """Mean and mean absolute value of each input; 0 for token numbers, which have no scale."""
    scaled = [t for t in tensors_of(x) if t.is_floating_point() or t.dtype == torch.uint8]
    if not scaled:
        zero = torch.zeros(len(x), device=x.device)
        return zero, zero
    flat = torch.cat([each.float().flatten(1) for each in scaled], 1)
    return flat.mean(1), flat.abs().mean(1)


def judge(rows: Mapping[str, Values], num_classes: int, *, answers: bool = True) -> list[str]:
    """What is weak about calibration data; data that would make the result void are refused.

    Args:
        rows: of `train` and `heldout`, as `read_rows` gives them.
        num_classes: how many classes the network has.
        answers: compare labels with the network's answers; a classifier that knows its labels by
            name cannot have them in another order.
    """
    train, heldout = rows["train"], rows["heldout"]
    found = [
        _judge_number(heldout["y"]),
        _judge_width(train["z"]),
        _judge_overlap(train["digest"], heldout["digest"]),
        _judge_scale(train["size"], heldout["size"]),
        _judge_level(train["level"], heldout["level"]),
        _judge_classes("calibration", heldout["y"], num_classes),
        _judge_classes("training", train["y"], num_classes),
        _judge_answers(train, heldout) if answers else "",
    ]
    return [warning for warning in found if warning]


def judge_labels(y: Tensor, num_classes: int) -> list[str]:
    """What is weak about the labels of calibration data alone; too few and one class are refused.

    Args:
        y: labels, (samples,).
        num_classes: how many classes the network has.
    """
    found = [_judge_number(y), _judge_classes("calibration", y, num_classes)]
    return [warning for warning in found if warning]


def _judge_number(heldout: Tensor) -> str:
    if (number := len(heldout)) < LEAST:
        raise UserError(
            f"{number} calibration samples: quantiles and a temperature need at least {LEAST}, "
            f"and {ENOUGH} or more to be of use"
        )
    if number < ENOUGH:
        return (
            f"{number} calibration samples: thresholds and temperature are rough; "
            f"{ENOUGH} or more are needed for a threshold at 1 % of false alarms"
        )
    return ""


def _judge_width(z: Tensor) -> str:
    num_train, width = z.shape
    if num_train <= width:
        return (
            f"{num_train} training samples for {width} features: what is fitted to them needs more "
            f"samples than features, better {10 * width}; read fewer layers or pass more data"
        )
    return ""


def _judge_overlap(train: Tensor, heldout: Tensor) -> str:
    """Refuse training data; what repeats within the training data is no sign of them."""
    shared = torch.isin(heldout, train)
    _, counts = train.unique(return_counts=True)
    repeated = counts[counts > 1].sum().item() / len(train)
    excess = shared.double().mean().item() - repeated
    text = f"{int(shared.sum())} of {len(shared)} calibration samples are training samples, too"
    if excess > MOSTLY_SHARED:
        raise UserError(
            f"{text}: calibrated on what it was trained on, the model would stay overconfident; "
            "hold out data that it was not trained on"
        )
    return f"{text}: remove them from the calibration data" if excess > SHARED else ""


def _judge_scale(train: Tensor, heldout: Tensor) -> str:
    ours, theirs = train.median().item(), heldout.median().item()
    if min(ours, theirs) <= 0:
        return ""
    text = (
        f"the typical absolute value of a calibration input is {theirs:.3g}, of a training input "
        f"{ours:.3g}: prepare both in the same way"
    )
    ratio = max(ours / theirs, theirs / ours)
    if ratio > QUITE_OTHER_SCALE:
        raise UserError(f"{text}; on another scale, calibration means nothing")
    return text if ratio > OTHER_SCALE else ""


def _judge_level(train: Tensor, heldout: Tensor) -> str:
    lower, middle, upper = train.double().quantile(torch.tensor([0.25, 0.5, 0.75]).double())
    shift = (heldout.double().median() - middle).abs() / (upper - lower)
    # Half an interquartile range, and four standard errors of a median.
    if not shift.isfinite() or shift < 0.5 + 4 * len(heldout) ** -0.5:
        return ""
    return (
        f"the mean of a typical calibration input is {heldout.median():.3g}, of a training input "
        f"{middle:.3g}, {shift:.1f} interquartile ranges away: prepare both in the same way"
    )


def _judge_classes(kind: str, y: Tensor, num_classes: int) -> str:
    missing = (y.bincount(minlength=num_classes) == 0).nonzero().flatten().tolist()
    if kind == "calibration" and len(missing) == num_classes - 1:
        raise UserError(
            f"all {len(y)} calibration samples have label {int(y[0])}: pass samples of all classes"
        )
    if not missing:
        return ""
    listed = ", ".join(map(str, missing[:NUM_LISTED])) + ", ..." * (len(missing) > NUM_LISTED)
    return (
        f"the {kind} data have no sample of {len(missing)} of {num_classes} classes ({listed}): "
        "pass samples of all classes"
    )


def _judge_answers(train: Values, heldout: Values) -> str:
    """Whether the network's answers agree with the labels, and in both sets alike."""
    (ours, chance), (theirs, its_chance) = _agreement(train), _agreement(heldout)
    right, its_right = _right(train), _right(heldout)
    text = (
        f"the network is right on {right:.1%} of the training and {its_right:.1%} of the "
        f"calibration samples, where chance gives {chance:.1%} and {its_chance:.1%}"
    )
    order = "are the labels numbered in the order of the network's outputs?"
    below = _is_below(right, chance, len(train["y"]))
    below = below or _is_below(its_right, its_chance, len(heldout["y"]))
    if below or (ours > KNOWS and theirs < GUESS):
        raise UserError(f"{text}: {order}")
    if max(ours, theirs) < GUESS:
        return f"{text}: {order}"
    if theirs < ours / 2:
        return f"{text}: the calibration data are others, or the network is overfitted"
    return ""


def _right(rows: Values) -> float:
    return (rows["label"] == rows["y"]).double().mean().item()


def _is_below(right: float, chance: float, number: int) -> bool:
    """Whether a network is right less often than by chance, by three standard errors."""
    return right < chance - 3 * (chance * (1 - chance) / number) ** 0.5


def _agreement(rows: Values) -> tuple[float, float]:
    """Cohen's kappa of answers and labels, 1 if all agree, and how many agree by chance."""
    size = int(max(rows["label"].max(), rows["y"].max())) + 1
    first, second = (
        rows[name].bincount(minlength=size) / len(rows["y"]) for name in ("label", "y")
    )
    chance = float((first * second).sum())
    return ((_right(rows) - chance) / (1 - chance) if chance < 1 else 0.0), chance


def scores(probs: Tensor, y: Tensor) -> Scores:
    """Accuracy, NLL and ECE.

    Args:
        probs: class probabilities, (samples, classes).
        y: labels, (samples,).
    """
    return Scores(accuracy(probs, y), nll(probs, y), ece(probs, y))


@torch.no_grad()
def predict_features(method: Method, z: Tensor, batch_size: int) -> Prediction:
    """What a method predicts from features, on the CPU; the network does not run.

    Args:
        method: a fitted one, or what its `on_features` gave.
        z: what its `features` returned, (samples, features).
        batch_size: rows at a time.
    """
    reader, device = method.on_features().eval(), next(method.parameters()).device
    with seeded(0, device):
        found = [reader(part.to(device)) for part in z.split(batch_size)]
    return Prediction(*(torch.cat(field).float().cpu() for field in zip(*found, strict=True)))


@torch.no_grad()
def cross_validate(method: Method, z: Tensor, y: Tensor, seed: int, batch_size: int) -> Tensor:
    """Probabilities of calibration samples, none of which was fitted to, (samples, classes).

    The stages that read the held-out data are repeated without a fold, which is then predicted.
    Only covariances are shrunk no less than all samples ask for, the fold included.

    Args:
        method: a fitted one; it stays as it is.
        z: what its `features` returned for the calibration data, (samples, features).
        y: their labels, (samples,).
        seed: decides the folds.
        batch_size: rows at a time.
    """
    twin = method.on_features().eval()
    stages = heldout_stages(twin)
    many = len(y) * method.num_classes > MANY_LOGITS
    probs = torch.empty(len(y), method.num_classes)
    for inside, outside in folds(len(y), FEW_FOLDS if many else NUM_FOLDS, seed):
        for stage in stages:
            refit(stage, batches_of(method, z[inside], y[inside], batch_size))
        probs[outside] = predict_features(twin, z[outside], batch_size).probs
    return probs


@torch.no_grad()
def recalibrate(method: Method, z: Tensor, y: Tensor, batch_size: int) -> None:
    """Fit what was fitted to held-out data to other samples, from their features.

    Covariances are shrunk no less than before, and those of class-aware densities as before.

    Args:
        method: a fitted one, which is changed.
        z: what its `features` returned, (samples, features).
        y: labels, (samples,).
        batch_size: rows at a time.
    """
    twin = method.on_features().eval()
    for stage in heldout_stages(twin):
        refit(stage, batches_of(method, z, y, batch_size))
    method.load_state_dict(twin.state_dict())


def heldout_stages(method: Method) -> list[Stage]:
    """The stages that read held-out data.

    Args:
        method: any.
    """
    return [stage for stage in method.stages() if stage.split == "heldout"]


def refit(stage: Stage, batches: Iterator[Batch]) -> None:
    """Estimate once more, in this process.

    Args:
        stage: an estimate.
        batches: what it reads.
    """
    if not isinstance(stage, Estimate):
        raise UserError(f"stage '{stage.name}' trains on calibration data, which are for estimates")
    found = [stage.statistics(batch) for batch in batches]
    values = {name: [each[name] for each in found] for name in found[0]}
    if stage.reduce == "concat":
        stage.finish({name: torch.cat(parts) for name, parts in values.items()})
    else:
        stage.finish({name: torch.stack(parts).sum(0) for name, parts in values.items()})


def batches_of(method: Method, z: Tensor, y: Tensor, batch_size: int) -> Iterator[Batch]:
    """Features and labels, on the device of a method.

    Args:
        method: where they go.
        z: (samples, features).
        y: (samples,).
        batch_size: rows at a time.
    """
    device = next(method.parameters()).device
    for parts in zip(z.split(batch_size), y.split(batch_size), strict=True):
        yield Batch(*(part.to(device) for part in parts))
