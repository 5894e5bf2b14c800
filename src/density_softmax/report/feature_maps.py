"""Maps of the features, with and without the gradient penalty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits
from torch import Tensor

from density_softmax.report.ablations import penalty_variants
from density_softmax.report.names import file_stem
from density_softmax.report.panels import panel_figure
from density_softmax.report.runs import Run, by_setting, first_seeds, seeds_of
from density_softmax.report.splits import shift_name
from density_softmax.report.style import LOOKS, Picture, save_figure

__all__ = ["FeatureMap", "embed", "map_figure", "write_feature_maps"]

Array = npt.NDArray[np.float64]

MOST_CLASSES, PERPLEXITY = 10, 30.0
COLORS = (*(look.color for look in LOOKS), "#b59f00", "#a33a5b")
MARKERS = "os^DvPX*<>"
CAPTION = (
    "t-SNE maps of the encoder's features of at most 1,000 test inputs: near features stay near, "
    "but distances between groups and sizes of groups mean nothing. Colours and marks are "
    "classes, at most 10; accuracies are those on all inputs of the split. λ is the weight of the "
    "gradient penalty."
)


@dataclass(frozen=True)
class FeatureMap:
    """Features in the plane, before they are drawn."""

    title: str
    places: Array
    labels: npt.NDArray[np.int64]


def write_feature_maps(runs: Sequence[Run], folder: Path) -> list[Picture]:
    """For each method with and without penalty a figure: a row for each split, λ growing."""
    pictures = []
    for setting, members in by_setting(runs).items():
        kept = {split for run in members for split in _splits(run)}
        for split in sorted(kept, key=lambda name: (name != "iid", name)):
            chosen = first_seeds([run for run in members if split in _splits(run)])
            for line, variants in penalty_variants(chosen).items():
                maps = [_read(weight, run, split) for weight, run in variants.items()]
                file = folder / file_stem(setting, *line.words, "features", split)
                place = "in-domain" if split == "iid" else shift_name(split)
                title = f"Features with and without penalty, {place}: {setting}"
                caption = f"{CAPTION} {seeds_of(list(variants.values()))}"
                pictures.append(save_figure(map_figure(maps), file, title, caption))
    return pictures


def embed(z: Tensor, seed: int = 0) -> Array:
    """A place in the plane for each row; the same for the same rows."""
    standard = (z.double() - z.double().mean(0)).numpy()
    perplexity = min(PERPLEXITY, (len(standard) - 1) / 3)
    model = TSNE(perplexity=perplexity, init="pca", random_state=seed)
    with threadpool_limits(1):  # several threads add up in another order every time
        return np.asarray(model.fit_transform(standard.astype(np.float32)), dtype=np.float64)


def map_figure(maps: Sequence[FeatureMap]) -> Figure:
    """A square panel for each map."""
    titles = [each.title for each in maps]
    panels = panel_figure(
        titles, height=None, most_columns=4, left=0.06, gap=0.1, row_gap=0.1, foot=0.06
    )
    for axes, each in zip(panels.axes, maps, strict=True):
        _draw(axes, each)
    return panels.figure


def _splits(run: Run) -> list[str]:
    folder = run.path / "features"
    files = folder.rglob("*.safetensors")
    return [str(file.relative_to(folder).with_suffix("")) for file in files]


def _read(weight: float, run: Run, split: str) -> FeatureMap:
    z, y = run.directory.features(split)
    found = {(row.split, row.metric): row.value for row in run.directory.rows()}
    accuracy = found.get((split, "accuracy"))
    title = f"λ = {weight:g}" + ("" if accuracy is None else f", accuracy {accuracy:.3f}")
    shown = y < MOST_CLASSES
    return FeatureMap(title, embed(z[shown]), y[shown].numpy())


def _draw(axes: Axes, feature_map: FeatureMap) -> None:
    for number, (color, marker) in enumerate(zip(COLORS, MARKERS, strict=True)):
        x = feature_map.places[feature_map.labels == number]
        dots: dict[str, Any] = {
            "marker": marker,
            "linestyle": "",
            "markersize": 2.0,
            "markeredgewidth": 0,
        }
        axes.plot(x[:, 0], x[:, 1], color=color, alpha=0.8, **dots)
    axes.set(xticks=[], yticks=[])
    axes.margins(0.03)
    axes.set_rasterization_zorder(3)
