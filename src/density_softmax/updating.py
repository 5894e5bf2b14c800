"""More training data for a model that is fitted, without another pass over the old ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from density_softmax.data.sources import ArraySource
from density_softmax.engine import EngineConfig, start
from density_softmax.engine.calibration import (
    MOSTLY_SHARED,
    SHARED,
    batches_of,
    heldout_stages,
    judge_labels,
    refit,
    scores,
)
from density_softmax.engine.fit import inspected
from density_softmax.engine.passes import (
    chosen_batch_size,
    collect,
    num_batches,
    rows_at_once,
    total,
)
from density_softmax.engine.progress import Bars
from density_softmax.errors import CalibrationWarning, UserError
from density_softmax.methods.base import Method
from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.densities.gaussian import WhitenedDensity
from density_softmax.nn.execution import digests
from density_softmax.posthoc import measured, smallest_digests, temperature_of
from density_softmax.training import Estimate, Values
from density_softmax.types import NUM_DIGESTS, Batch, Calibration, Source

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@torch.no_grad()
def update(
    model: Method,
    data: Any,
    *,
    calibration: Any = None,
    before: Any = None,
    engine: EngineConfig | None = None,
    progress: bool = False,
) -> None:
    """Merge more training data into a fitted model, without another pass over the old data.

    The densities in closed form are then those of all data, to rounding: the sums that they are
    made of are kept, in the model and in its file. The network stays as it is. With calibration
    data everything that is fitted to such data is fitted again, so that the model is the one that
    `attach` makes of all training data and these calibration data. Without them the shrinkage, the
    scale, the temperature and the thresholds stay as they are, and a `CalibrationWarning` says so.

    A density that is trained by descent (a flow) and a method that keeps training samples cannot
    be updated: they are refused by name. So are too few calibration samples, and calibration data
    of which most are training samples; a `CalibrationWarning` tells of new samples that the model
    has already. Which samples it has is known by a few hundred digests that `attach` keeps.

    Args:
        model: what `attach`, `fit` or `load` returned.
        data: more training data: a DataLoader, a Dataset or a pair (inputs, labels).
        calibration: in-domain data that nothing was trained on, in the same form.
        before: the training data so far, in the same form. Needed by a model that has no sums, as
            that of a run or of a file that was saved without them; they are then read once.
        engine: devices, processes and precision.
        progress: draw progress bars.
    """
    engine = engine or EngineConfig()
    stages = _mergeable(model, before is not None)
    sources, fabric = inspected(model.num_classes, data, calibration), start(engine)
    fabric.to_device(model.eval())
    # Nothing is changed before all data have been read.
    rows = None if calibration is None else _rows(model, sources["heldout"], fabric, engine)
    with Bars(progress and fabric.is_global_zero) as bars:
        read = partial(_sums, model, stages, fabric=fabric, engine=engine, bars=bars)
        new, digest = read(sources["train"], name="update")
        given = {} if before is None else inspected(model.num_classes, before, None)
        old = {name: sums for source in given.values() for name, sums in read(source)[0].items()}
    for weakness in _judge_overlap(model.calibration, digest, rows):
        warnings.warn(weakness, CalibrationWarning, stacklevel=3)
    model.sums |= old
    kept = {d: d.shrinkage.item() for d in model.modules() if isinstance(d, WhitenedDensity)}
    for stage in stages:
        merged = {n: t + new[stage.name][n] for n, t in model.sums[stage.name].items()}
        model.sums[stage.name] = merged
        stage.finish({name: fabric.to_device(value) for name, value in merged.items()})
    model.policy = None  # which was for what the model predicted before
    if (known := model.calibration) is not None:
        both = torch.cat([digest, torch.tensor(known.train_digests, dtype=torch.int64)])
        model.calibration = replace(known, train_digests=smallest_digests(both))
    if rows is None:
        _keep_constants(model, kept, len(sources["train"]))
    else:
        _calibrate_again(model, sources, rows, engine)


def _sums(
    model: Method,
    stages: list[Estimate],
    source: Source,
    *,
    fabric: Fabric,
    engine: EngineConfig,
    bars: Bars,
    name: str = "before",
) -> tuple[dict[str, dict[str, Tensor]], Tensor]:
    """The sums of each stage over some data, and the digests of the samples of this process."""
    seen = list[Tensor]()

    def sums(batch: Batch) -> Values:
        read = Batch(model.features(batch.x).float(), batch.y)
        seen.append(digests(batch.x).cpu())
        found = {stage.name: stage.statistics(read) for stage in stages}
        return {f"{s}/{name}": value for s, own in found.items() for name, value in own.items()}

    size = chosen_batch_size(engine, model, source, fabric.device)
    bar = bars.add(name, num_batches(len(source), size))
    found = total(fabric, source, sums, size, tick=bar.advance)
    by_stage: dict[str, dict[str, Tensor]] = {stage.name: {} for stage in stages}
    for path, value in found.items():
        stage, _, part = path.partition("/")
        by_stage[stage][part] = value.cpu()
    return by_stage, torch.cat(seen)


def _judge_overlap(known: Calibration | None, new: Tensor, heldout: Values | None) -> Iterator[str]:
    """Refuse calibration data that are training data; tell of samples that are there already."""
    trained = torch.tensor(known.train_digests if known else (), dtype=torch.int64)
    if heldout is not None:
        calibrating = heldout["digest"].cpu()
    else:
        calibrating = torch.tensor(known.digests if known else (), dtype=torch.int64)
    share = max(_share(calibrating, new), _share(calibrating, trained))
    text = f"{share:.0%} of the calibration samples are training samples, too"
    if share > MOSTLY_SHARED:
        raise UserError(
            f"update: {text}: calibrated on what it was trained on, the model would stay "
            "overconfident; pass calibration= that it was not trained on"
        )
    if share > SHARED:
        yield f"{text}: keep them apart"
    if (again := _share(new, trained)) > SHARED:
        yield (
            f"about {again:.0%} of the new training samples are in the model already and count "
            "twice now: pass new ones alone"
        )


def _share(samples: Tensor, known: Tensor) -> float:
    """The share of samples that are among others, of which the smallest digests may be known."""
    if len(known) == 0:
        return 0.0
    comparable = samples[samples <= known.max()] if len(known) == NUM_DIGESTS else samples
    return torch.isin(comparable, known).double().mean().item() if len(comparable) else 0.0


def _mergeable(model: Method, read_again: bool) -> list[Estimate]:
    """The stages whose sums are kept; refuse a model of which they are not all."""
    model.check_fitted("update")
    stages = [stage for stage in model.stages() if stage.split == "train"]
    estimates = [stage for stage in stages if isinstance(stage, Estimate)]
    for stage in stages:
        if isinstance(stage, Estimate) and not stage.mergeable:
            raise UserError(
                f"update: stage '{stage.name}' of {model.config.kind} needs all training data at "
                "once; attach or fit again on the old and the new data"
            )
    if not estimates:
        raise UserError(
            f"update: {model.config.kind} has no density in closed form to merge data into; "
            "attach or fit again on the old and the new data"
        )
    missing = [stage.name for stage in estimates if stage.name not in model.sums]
    if missing and not read_again:
        raise UserError(
            f"update: the model has no sums of stage '{missing[0]}', it was saved without them or "
            "comes from a run; pass before=, the training data so far, to read them once"
        )
    if read_again and not missing:
        raise UserError("update: the model has the sums of its training data; omit before=")
    return estimates


def _keep_constants(model: Method, kept: Mapping[WhitenedDensity, float], number: int) -> None:
    """Shrink by as much as before, and say what was not updated."""
    for density, shrinkage in kept.items():
        density.shrink_to(shrinkage)
    weakness = (
        f"{number:,} training samples were added without calibration data: the shrinkage, the "
        "scale, the temperature and the thresholds are those of before; pass calibration= to "
        "update to fit them again"
    )
    warnings.warn(weakness, CalibrationWarning, stacklevel=4)
    if (found := model.calibration) is not None:
        weak = (*(w for w in found.warnings if "were added" not in w), weakness)
        model.calibration = replace(found, num_train=found.num_train + number, warnings=weak)


def _rows(model: Method, heldout: Source, fabric: Fabric, engine: EngineConfig) -> Values:
    """Features, labels and digests of calibration data, a row per sample; too few are refused."""

    def features(batch: Batch) -> Values:
        z = model.features(batch.x).float()
        return {"z": z, "y": batch.y, "digest": digests(batch.x).to(z.device)}

    size = chosen_batch_size(engine, model, heldout, fabric.device)
    found = collect(fabric, heldout, features, size)
    for weakness in judge_labels(found["y"], model.num_classes):
        warnings.warn(weakness, CalibrationWarning, stacklevel=4)
    return found


def _calibrate_again(
    model: Method, sources: Mapping[str, Source], rows: Values, engine: EngineConfig
) -> None:
    """Repeat the estimates on held-out data, and what `attach` measures there."""
    size, encoder = rows_at_once(engine), model.encoder
    heldout = ArraySource(rows["z"], rows["y"])
    for stage in heldout_stages(model):
        refit(stage, batches_of(model, heldout.x, heldout.y, size))
    if (before := model.calibration) is None or not isinstance(encoder, Headless):
        return
    device = next(model.parameters()).device
    model.calibration = replace(
        before,
        num_train=before.num_train + len(sources["train"]),
        num_calibration=len(heldout),
        temperature=temperature_of(model),
        before=scores(encoder.logits(heldout.x.to(device)).softmax(-1).cpu(), heldout.y),
        warnings=tuple(judge_labels(heldout.y, model.num_classes)),
        digests=smallest_digests(rows["digest"]),
        **measured(model, heldout, sources["heldout"], 0, size),
    )
