"""Runs methods on data: the only place that knows devices, processes and checkpoints."""

from density_softmax.engine.checkpoint import Checkpoints
from density_softmax.engine.fit import fit
from density_softmax.engine.predict import predict
from density_softmax.engine.run_directory import RunDirectory
from density_softmax.engine.runtime import EngineConfig, is_first_process, start

__all__ = [
    "Checkpoints",
    "EngineConfig",
    "RunDirectory",
    "fit",
    "is_first_process",
    "predict",
    "start",
]
