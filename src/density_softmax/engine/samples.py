"""Small samples that a run keeps for pictures: training inputs, and features to map."""

from __future__ import annotations

from lightning_fabric import Fabric

from density_softmax.data.sources import PartialSource
from density_softmax.engine.collect import collect
from density_softmax.engine.run_directory import RunDirectory
from density_softmax.methods.base import Method
from density_softmax.types import Source, Split

__all__ = ["keep_features", "thin", "training_sample"]

NUM_INPUTS, NUM_FEATURES = 10_000, 1_000
# The paper maps the features of this corruption, at its highest severity.
MAPPED_SHIFT = "/defocus_blur/5"


def thin(source: Source, num_samples: int) -> Source:
    """At most so many samples, spread evenly over a source."""
    if len(source) <= num_samples:
        return source
    return PartialSource(source, [n * len(source) // num_samples for n in range(num_samples)])


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
