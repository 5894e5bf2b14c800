"""Maps of the features, with and without the gradient penalty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits
from torch import Tensor

from density_softmax.report.figures import Drawing
from density_softmax.report.frame import Setting, penalties, seeds_of
from density_softmax.report.names import file_stem, split_name
from density_softmax.report.style import LOOKS, panel_figure
from density_softmax.runs.run import Run

Array = npt.NDArray[np.float64]

MOST_CLASSES, PERPLEXITY = 10, 30.0
COLORS = (*(look.color for look in LOOKS), "#b59f00", "#a33a5b")
MARKERS = "os^DvPX*<>"
DOTS: dict[str, Any] = {"linestyle": "", "markersize": 2.0, "markeredgewidth": 0, "alpha": 0.8}
CAPTION = (
    "t-SNE maps of the encoder's features for at most 1,000 test inputs. Close features stay "
    "close; distances between groups and their sizes mean nothing. Colours and marks are classes, "
    "at most 10; accuracies are on all inputs of the split. λ is the weight of the penalty."
)


class FeatureMap(NamedTuple):
    """Features in the plane, (inputs, 2), before they are drawn."""

    title: str
    points: Array
    labels: npt.NDArray[np.int64]


def draw(setting: Setting) -> Iterator[Drawing]:
    """For each split and method with and without penalty a figure, λ growing.

    Args:
        setting: the runs to compare.
    """
    kept = {split for run in setting.runs for split in _splits(run)}
    for split in sorted(kept, key=lambda name: (name != "iid", name)):
        runs = setting.first_seeds(lambda run, split=split: split in _splits(run))  # type: ignore[misc]
        for line, variants in penalties(runs, heads=False).items():
            weights = {penalty.weight: run for penalty, (run, *_) in variants.items()}
            if len(weights) > 1 and 0 in weights:
                yield Drawing(
                    _map_figure([_read(weight, run, split) for weight, run in weights.items()]),
                    file_stem(setting.name, *line.words, "features", split),
                    f"Features with and without penalty, {split_name(split)}: {setting.name}",
                    f"{CAPTION} {seeds_of(list(weights.values()))}",
                )


def _map_figure(maps: Sequence[FeatureMap]) -> Figure:
    """A square panel for each map."""
    titles, square = [each.title for each in maps], lambda width: width
    panels = panel_figure(titles, height=square, left=0.06, gap=0.1, row_gap=0.1, foot=0.06)
    for axes, each in zip(panels.axes, maps, strict=True):
        _draw(axes, each)
    return panels.figure


def _embed(z: Tensor, seed: int = 0) -> Array:
    """A point in the plane for each input, (inputs, 2); the same for the same features."""
    from sklearn.manifold import TSNE

    standard = (z.double() - z.double().mean(0)).numpy()
    perplexity = min(PERPLEXITY, (len(standard) - 1) / 3)
    model = TSNE(perplexity=perplexity, init="pca", random_state=seed)
    with threadpool_limits(1):  # several threads add up in another order every time
        return np.asarray(model.fit_transform(standard.astype(np.float32)), dtype=np.float64)


def _splits(run: Run) -> list[str]:
    folder = run.path / "features"
    files = folder.rglob("*.safetensors")
    return [str(file.relative_to(folder).with_suffix("")) for file in files]


def _read(weight: float, run: Run, split: str) -> FeatureMap:
    z, y = run.features(split)
    found = {(row.split, row.metric): row.value for row in run.rows()}
    accuracy = found.get((split, "accuracy"))
    title = f"λ = {weight:g}" + ("" if accuracy is None else f", accuracy {accuracy:.3f}")
    shown = y < MOST_CLASSES
    return FeatureMap(title, _embed(z[shown]), y[shown].numpy())


def _draw(axes: Axes, feature_map: FeatureMap) -> None:
    for number, (color, marker) in enumerate(zip(COLORS, MARKERS, strict=True)):
        x = feature_map.points[feature_map.labels == number]
        axes.plot(x[:, 0], x[:, 1], color=color, marker=marker, **DOTS)
    axes.set(xticks=[], yticks=[])
    axes.margins(0.03)
    axes.set_rasterization_zorder(3)
