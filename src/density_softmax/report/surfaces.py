"""Surfaces of the runs on toy data: class probability, and three measures of uncertainty."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.special import entr
from torch import Tensor

from density_softmax.config import from_dict
from density_softmax.data import ArraySource, DataConfig
from density_softmax.data.toy import GRID_SIZE
from density_softmax.report.runs import Run, first_seeds, seeds_of
from density_softmax.report.style import Picture, save_figure
from density_softmax.report.surface_figure import Array, Measure, Panel, surface_figure
from density_softmax.types import Data

__all__ = ["MEASURES", "entropy", "margin", "surface_panel", "variance", "write_surfaces"]

# Enough to show where the data lie, few enough to see what is below them.
NUM_POINTS = 60


def variance(p: Array) -> Array:
    """Of the label, p (1 − p)."""
    return p * (1 - p)


def entropy(p: Array) -> Array:
    """−p log₂ p − (1 − p) log₂ (1 − p), in bits; 0 at p = 0 and at p = 1."""
    p = np.clip(p, 0, 1)
    bits: Array = (entr(p) + entr(1 - p)) / math.log(2)
    return bits


def margin(p: Array) -> Array:
    """1 − 2 |p − ½|: 1 where both classes are equally likely, 0 where one is certain."""
    return 1 - 2 * np.abs(p - 0.5)


MEASURES = {
    "variance": Measure("Variance", "p (1 − p)", variance, 0.25),
    "entropy": Measure("Entropy", "H(p) in bits", entropy, 1.0),
    "margin": Measure("Uncertainty", "1 − 2 |p − ½|", margin, 1.0),
}


def surface_panel(label: str, probs: Tensor, data: Data) -> Panel:
    """What a method says about the plane of toy data, from its probabilities on their grid."""
    probability = probs[:, 1].double().cpu().numpy().reshape(GRID_SIZE, GRID_SIZE)
    return Panel(label, probability, _points(data))


def write_surfaces(runs: Sequence[Run], folder: Path) -> list[Picture]:
    """Draw the first seed of each method on toy data: three figures for each shape."""
    pictures = []
    for name, members in _by_data(runs).items():
        panels = [_panel(run) for run in members]
        for key, measure in MEASURES.items():
            figure = surface_figure(panels, measure)
            words = _words(name, measure, members)
            pictures.append(save_figure(figure, folder / f"{name}-{key}", *words))
    return pictures


def _by_data(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs to draw, by a name for their data."""
    groups: dict[str, list[Run]] = {}
    for run in first_seeds(runs, "grid"):
        if run.data.get("kind") == "toy":
            groups.setdefault(json.dumps(run.data, sort_keys=True), []).append(run)
    named: dict[str, list[Run]] = {}
    for members in groups.values():
        shape = str(members[0].data["shape"])
        named[f"{shape}-{len(named) + 1}" if shape in named else shape] = members
    return named


def _panel(run: Run) -> Panel:
    prediction, _ = run.directory.prediction("grid")
    data = from_dict(DataConfig, run.data).load(run.data_seed)
    return surface_panel(run.label, prediction.probs, data)


def _points(data: Data) -> tuple[Array, Array, Array]:
    """Training points of both classes and OOD points, thinned evenly."""
    (outside,) = (split.source for split in data.splits if split.role == "ood")
    assert isinstance(data.train, ArraySource)
    assert isinstance(outside, ArraySource)
    x, y = data.train.x.double().numpy(), data.train.y.numpy()
    return _thin(x[y == 0]), _thin(x[y == 1]), _thin(outside.x.double().numpy())


def _thin(x: Array) -> Array:
    return x[:: max(1, len(x) // NUM_POINTS)]


def _words(name: str, measure: Measure, runs: Sequence[Run]) -> tuple[str, str]:
    """Title and caption."""
    shape = name.replace("_", " ")
    title = f"{shape.capitalize()}: {measure.name.lower()} {measure.formula}"
    caption = (
        f"Above the class probability p(y = 1 | x), below its {measure.name.lower()}, "
        f"{measure.formula}. Circles and triangles are training points, diamonds are "
        f"out-of-distribution points that no method has seen; of each kind about {NUM_POINTS} "
        f"are drawn. {seeds_of(runs)}"
    )
    return title, caption
