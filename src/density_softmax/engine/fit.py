"""Runs the stages of a method, one after another."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from density_softmax.config import to_dict
from density_softmax.data.loaders import as_source
from density_softmax.data.sources import ArraySource, SubsetSource
from density_softmax.engine.checkpoints import Checkpoints
from density_softmax.engine.descent import (
    Descender,
    Setting,
    check_heldout,
    check_trainable,
    only_trainable,
)
from density_softmax.engine.inspection import InspectedSource, Inspection
from density_softmax.engine.passes import (
    chosen_batch_size,
    collect,
    num_batches,
    total,
)
from density_softmax.engine.progress import Bars
from density_softmax.engine.runtime import EngineConfig, PeakMemory, derive_seed, start
from density_softmax.engine.stage_cache import StageCache
from density_softmax.engine.unfinished import remove_files, unfinished_pass
from density_softmax.errors import UserError
from density_softmax.methods.base import Method
from density_softmax.nn.execution import explained
from density_softmax.training import Estimate, Stage, Train, Values
from density_softmax.types import Batch, Source, tensors_of

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def fit(
    method: Method,
    train: Any,
    heldout: Any,
    *,
    seed: int = 0,
    directory: str | Path | None = None,
    resume: bool = False,
    engine: EngineConfig | None = None,
    fabric: Fabric | None = None,
    identity: Mapping[str, Any] | None = None,
    features: Mapping[str, ArraySource] | None = None,
    stages: StageCache | None = None,
    progress: bool = True,
) -> Checkpoints:
    """Train a method through all of its stages.

    Args:
        method: what to train, in place.
        train: a DataLoader, a Dataset, a pair (inputs, labels) or a Source to learn from.
        heldout: the same for the data that calibrate and monitor; never test data. None if no
            stage needs them; nothing is monitored then.
        seed: decides the order of samples and every random draw.
        directory: where checkpoints go; without one a run cannot be resumed.
        resume: continue the run that the directory holds.
        engine: devices, processes and precision.
        fabric: a launched Fabric to use in place of a new one.
        identity: what makes this run itself; another run's directory is refused.
        features: of `train` and `heldout`, if they have been computed before.
        stages: where to look for stages that another run has finished.
        progress: draw progress bars.

    Returns:
        The record of the run: finished stages with their seconds, and every epoch.
    """
    sources = _inspected(method, train, heldout)
    engine = engine or EngineConfig()
    fabric = fabric or start(engine)
    checkpoints = Checkpoints(
        None if directory is None else Path(directory),
        identity or {"method": to_dict(method.config), "seed": seed},
        resume=resume,
        writer=fabric.is_global_zero,
    )
    cuda = [fabric.device] if fabric.device.type == "cuda" else []
    with torch.random.fork_rng(cuda), Bars(progress and fabric.is_global_zero) as bars:
        inspection = sources["train"].inspection
        setting = Setting(fabric, method, seed, engine, checkpoints, bars, inspection)
        try:
            _run_stages(setting, sources, features or {}, stages)
        except (RuntimeError, IndexError) as error:
            raise _explained(error, method, sources) from error
        finally:
            method.mark_fitted(False)  # interrupted, it is neither what it was nor trained
    sources["train"].inspection.describe(method)
    method.eval()
    method.mark_fitted()
    return checkpoints


def _inspected(method: Any, train: Any, heldout: Any) -> dict[str, InspectedSource]:
    """The data of both splits; two classes are needed where an encoder is trained."""
    if not isinstance(method, Method):
        raise UserError(
            f"fit trains a method, not a {type(method).__name__}: put the network into one, such "
            "as DensitySoftmax(encoder, num_classes), or give a trained classifier to attach"
        )
    learns = any(isinstance(stage, Train) and stage.on == "inputs" for stage in method.stages())
    return inspected(method.num_classes, train, heldout, least_classes=2 if learns else 1)


def inspected(
    num_classes: int, train: Any, heldout: Any, least_classes: int = 1
) -> dict[str, InspectedSource]:
    """The data of both splits, those in memory looked at, the others looked at as they are read.

    The held-out data are no training: they may have any classes, but one row that is no number
    would make every threshold none.

    Args:
        num_classes: how many classes there are.
        train: a DataLoader, a Dataset, a pair (inputs, labels) or a Source.
        heldout: the same for the data that calibrate.
        least_classes: how many the training data have to show.
    """
    inspections = {
        "train": Inspection(num_classes, least_classes=least_classes),
        "heldout": Inspection(num_classes, "held-out (calibration)", least_classes=1),
    }
    given = {"train": train, "heldout": heldout}
    data = {split: as_source(value) for split, value in given.items() if value is not None}
    sources = {split: InspectedSource(data[split], inspections[split]) for split in data}
    for source in sources.values():
        source.look_ahead()
    return sources


def _explained(
    error: Exception, method: Method, sources: Mapping[str, InspectedSource]
) -> Exception:
    """The error of a network in the user's words, if it complains about its precision or inputs."""
    train, heldout = (sources[split].inspection.example for split in ("train", "heldout"))
    if train is None:
        return error
    shapes = [[t.shape[1:] for t in tensors_of(x)] for x in (train, heldout) if x is not None]
    x = train if heldout is None or shapes[0] == shapes[1] else heldout
    found = explained(error, x, method.example_shape, method.example_dtype)
    precision = next(method.parameters()).dtype
    if found is error or precision == torch.float32:
        return found
    return UserError(
        f"the method computes in {precision}: pass method.float(); EngineConfig has precision="
    )


def _run_stages(
    setting: Setting,
    sources: Mapping[str, Source],
    features: Mapping[str, ArraySource],
    shared: StageCache | None = None,
) -> None:
    """Run all stages that are not finished, in order.

    Args:
        setting: what the stages of the run share.
        sources: the data by split, `train` and, if there are any, `heldout`.
        features: of both, if they have been computed before.
        shared: where to look for stages that another run has finished.
    """
    method, fabric, checkpoints = setting.method, setting.fabric, setting.checkpoints
    checkpoints.restore(method)
    fabric.to_device(method)
    cache = FeatureCache(fabric, method, setting.engine, checkpoints.directory, features)
    finished = len(checkpoints.finished)
    stages = method.stages()[finished:]
    check_trainable(stages)
    check_heldout(stages, sources.get("heldout"))
    for number, stage in enumerate(stages, finished):
        if shared is None:
            _finish_stage(setting, number, stage, sources, cache)
            continue
        digest = shared.digest(method, setting.seed, number, stage)
        note = partial(_note, setting, stage)
        with shared.reserved(fabric, digest, partial(note, "another run trains it: waiting")):
            if shared.take_over(fabric, digest, stage, method, checkpoints):
                note("taken over from another run")
                if _trains_encoder(stage):
                    cache.clear()
                continue
            _finish_stage(setting, number, stage, sources, cache)
            if checkpoints.writer and checkpoints.directory is not None:
                shared.add(digest, checkpoints.directory, stage)
    cache.clear()


def _finish_stage(
    setting: Setting, number: int, stage: Stage, sources: Mapping[str, Source], cache: FeatureCache
) -> None:
    """Run a stage and record what it left and cost."""
    memory = PeakMemory(setting.fabric.device)
    seconds = run_stage(setting, number, stage, sources, cache)
    peak = memory.megabytes()
    setting.fabric.barrier()
    setting.checkpoints.finish(setting.method, stage.name, seconds, peak)


def _note(setting: Setting, stage: Stage, text: str) -> None:
    setting.bars.add(stage.name, 1, 1).note(text)


def _trains_encoder(stage: Stage) -> bool:
    return isinstance(stage, Train) and stage.on == "inputs"


def run_stage(
    setting: Setting, number: int, stage: Stage, sources: Mapping[str, Source], cache: FeatureCache
) -> float:
    """One stage; returns its seconds, those before an interruption included.

    Features count for the stage that is the first to read them. A run that continues computes
    them again, and does not count them again.

    Args:
        setting: what the stages of the run share.
        number: of the stage in the method.
        stage: the stage.
        sources: the data by split.
        cache: the features of both splits.
    """
    counted, spent = _features_read(setting.method.stages()[:number]), 0.0
    data = dict(sources)
    read = _splits_read(stage) if stage.on == "features" else set()
    for split in [name for name in sources if name in read]:  # in one order on all processes
        began = time.perf_counter()
        data[split] = cache.source(split, sources[split], setting.bars)
        spent += 0.0 if split in counted else time.perf_counter() - began
    if isinstance(stage, Estimate):
        began = time.perf_counter()
        _estimate(setting, stage, data[stage.split])
        return spent + time.perf_counter() - began
    with only_trainable(setting.method, stage):
        descender = Descender(setting, number, stage, data[stage.split], data.get("heldout"), spent)
        seconds = descender.run()
    if _trains_encoder(stage):
        cache.clear()
    return seconds


def _splits_read(stage: Stage) -> set[str]:
    """What a stage learns from and, if it is trained, what it is monitored on."""
    return {stage.split, "heldout"} if isinstance(stage, Train) else {stage.split}


def _features_read(stages: Sequence[Stage]) -> set[str]:
    """The splits whose features some of these stages read, after any that trains the encoder."""
    found: set[str] = set()
    for stage in stages:
        if stage.on == "features":
            found.update(_splits_read(stage))
        elif isinstance(stage, Train):
            found.clear()
    return found


def _estimate(setting: Setting, stage: Estimate, source: Source) -> None:
    """One pass of an `Estimate` stage."""
    fabric, size = setting.fabric, setting.batch_size(stage, source)
    if stage.limit is not None and stage.limit < len(source):
        order = source.order(derive_seed(setting.seed))
        source = SubsetSource(source, order[: stage.limit])
    bar = setting.bars.add(stage.name, num_batches(len(source), size))
    setting.method.eval()
    reduce = collect if stage.reduce == "concat" else total
    values = reduce(fabric, source, stage.statistics, size, tick=bar.advance)
    if stage.mergeable:
        setting.method.sums[stage.name] = {name: each.cpu() for name, each in values.items()}
    with torch.no_grad():
        stage.finish({name: fabric.to_device(value) for name, value in values.items()})


class FeatureCache:
    """The encoder's outputs for each split, until the encoder is trained again."""

    def __init__(
        self,
        fabric: Fabric,
        method: Method,
        config: EngineConfig,
        directory: Path | None,
        known: Mapping[str, ArraySource],
    ) -> None:
        self.fabric, self.method, self.config = fabric, method, config
        # Each process maps files of its own: nothing is assumed about shared disks.
        self.directory = directory and directory / "features" / f"process{fabric.global_rank}"
        self._sources = dict(known)

    def source(self, split: str, inputs: Source, bars: Bars) -> ArraySource:
        """The features of a split, in memory or in a mapped file."""
        if split not in self._sources:
            self._sources[split] = self._compute(split, inputs, bars)
        return self._sources[split]

    def clear(self) -> None:
        """Forget everything: the encoder has changed, or the run is over."""
        self._sources.clear()
        if self.directory is not None:
            remove_files(self.directory)

    def _compute(self, split: str, inputs: Source, bars: Bars) -> ArraySource:
        self.method.eval()
        batch_size = chosen_batch_size(self.config, self.method, inputs, self.fabric.device)
        bar = bars.add(f"features {split}", num_batches(len(inputs), batch_size))
        directory = self.directory and self.directory / split
        rows = collect(
            self.fabric,
            inputs,
            self._features,
            batch_size,
            tick=bar.advance,
            directory=directory,
            memory=self.config.feature_memory * 2**20,
            unfinished=unfinished_pass(
                directory, self.config, self.fabric, self.method, inputs, batch_size
            ),
        )
        return ArraySource(rows["z"], rows["y"])

    def _features(self, batch: Batch) -> Values:
        return {"z": self.method.features(batch.x).float(), "y": batch.y}
