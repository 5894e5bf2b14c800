"""The model of a finished run: exported, or served as it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from numpy.typing import NDArray

from density_softmax.benchmark import load_run
from density_softmax.deploy.card import Card, Normalisation, thresholds_of
from density_softmax.deploy.exporter import Exported, export
from density_softmax.deploy.predictor import Answer
from density_softmax.engine import predict, start
from density_softmax.methods.base import Method
from density_softmax.types import Data
from density_softmax.version import __version__

__all__ = ["RunPredictor", "export_run"]


def export_run(run: Path, file: Path, *, int8: bool = False, progress: bool = True) -> Exported:
    """Export the model of a run, with all that its data say about it."""
    recipe, seed, method = load_run(run)
    data = recipe.load_data(seed)
    rows = range(min(8, len(data.heldout)))
    return export(
        method,
        file,
        example=next(data.heldout.read([rows], torch.device("cpu"))).x,
        heldout=data.heldout,
        class_names=data.task.class_names,
        normalisation=data.normalisation,
        quantize=data.train if int8 else None,
        progress=progress,
    )


@final
@dataclass(frozen=True)
class RunPredictor:
    """The model of a run with the interface of a `Predictor`; the method may be a sampling one.

    A fixed seed makes the answer for a batch the same every time.
    """

    method: Method
    card: Card

    @classmethod
    def of(cls, run: Path, threads: int = 0) -> RunPredictor:
        """From a run directory; the held-out data of its recipe give the thresholds.

        One process serves, with so many CPU threads, 0 for all, however many trained the run.
        """
        recipe, seed, method = load_run(run)
        data = recipe.load_data(seed)
        fabric = start(replace(recipe.engine.in_one_process(), threads=threads or None))
        fabric.to_device(method)
        prediction, _ = predict(fabric, method, data.heldout, recipe.engine.predict_batch_size)
        thresholds = thresholds_of(prediction.epistemic.numpy())
        return cls(method, _card(method, data, thresholds))

    def predict(self, x: NDArray[Any]) -> Answer:
        """Probabilities and uncertainties of a batch of prepared inputs."""
        prediction = self.method.predict(x, seed=0)
        return Answer(*(part.float().cpu().numpy() for part in prediction))


def _card(method: Method, data: Data, thresholds: dict[float, float]) -> Card:
    return Card(
        version=__version__,
        method=method.config.kind,
        class_names=data.task.class_names,
        input_shape=data.task.input_shape,
        normalisation=Normalisation.of(data.normalisation) if data.normalisation else None,
        thresholds=thresholds,
    )
