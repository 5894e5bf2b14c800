"""Runs methods on data: the only place that knows devices, processes and checkpoints."""

from density_softmax.engine.checkpoints import Checkpoints
from density_softmax.engine.fit import fit
from density_softmax.engine.passes import predict
from density_softmax.engine.runtime import EngineConfig, is_first_process, start

__all__ = [
    "Checkpoints",
    "EngineConfig",
    "fit",
    "is_first_process",
    "predict",
    "start",
]
