"""Features are computed once for all the stages that read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lightning_fabric import Fabric

from density_softmax.data.sources import ArraySource
from density_softmax.engine.collect import collect
from density_softmax.engine.progress import Bars
from density_softmax.engine.runtime import EngineConfig
from density_softmax.engine.sharing import num_batches
from density_softmax.methods.base import Method
from density_softmax.stages import Values
from density_softmax.types import Batch, Source

__all__ = ["FeatureCache"]


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
            for file in self.directory.glob("*/*.npy"):
                file.unlink()

    def _compute(self, split: str, inputs: Source, bars: Bars) -> ArraySource:
        self.method.eval()
        batch_size = self.config.predict_batch_size
        bar = bars.add(f"features {split}", num_batches(len(inputs), batch_size))
        rows = collect(
            self.fabric,
            inputs,
            self._features,
            batch_size,
            tick=bar.advance,
            directory=self.directory and self.directory / split,
            memory=self.config.feature_memory * 2**20,
        )
        return ArraySource(rows["z"], rows["y"])

    def _features(self, batch: Batch) -> Values:
        return {"z": self.method.features(batch.x).float(), "y": batch.y}
