"""Error bars over seeds: every number of the headline, method by method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from density_softmax.report.figures import Drawing
from density_softmax.report.frame import Key, Setting, find_keys, over_seeds, with_shared_means
from density_softmax.report.names import file_stem, metric_name, split_name
from density_softmax.report.style import DARK_BLUE, GREY, lined_figure

if TYPE_CHECKING:
    import pandas as pd

METRICS = (("nll", "accuracy", "ece"), ("cnll", "caccuracy", "cece"))
DOTS: dict[str, Any] = {"color": GREY, "alpha": 0.6, "marker": "o", "linestyle": ""}
MEAN: dict[str, Any] = {"color": DARK_BLUE, "marker": "D", "markersize": 2.6, "elinewidth": 0.9}
CAPTION = (
    "Dark: mean over seeds and one standard deviation to either side. Light dots: single seeds. "
    "Overlapping bars do not mean that two methods are equal, because they share their seeds; the "
    "tables test the differences."
)


def draw(setting: Setting) -> Iterator[Drawing]:
    """The splits that have all three metrics, if a method has more than one seed.

    Args:
        setting: the runs to compare.
    """
    frame = with_shared_means(setting.frame)
    columns = _find_columns(find_keys(frame))
    if (
        columns
        and frame[frame["split"] == columns[0][0]].groupby("line")["seed"].nunique().max() > 1
    ):
        figure = _seed_figure(frame, setting.labels, columns)
        title = f"Spread over seeds: {setting.name}"
        yield Drawing(figure, file_stem(setting.name, "seeds"), title, CAPTION)


def _find_columns(keys: Sequence[Key]) -> list[Key]:
    """Splits that have all three metrics, in-domain first: three panels of each."""
    splits = [split for split in dict.fromkeys(split for split, _ in keys) if "/" not in split]
    sets = [[(split, name) for name in names] for split in splits for names in METRICS]
    return [key for columns in sets if all(key in keys for key in columns) for key in columns]


def _seed_figure(frame: pd.DataFrame, labels: Sequence[str], columns: Sequence[Key]) -> Figure:
    """A panel for each column with a row for each label."""
    titles = [f"{metric_name(metric).title}, {split_name(split)}" for split, metric in columns]
    figure, panels = lined_figure(labels, titles, num_columns=3)
    for (split, metric), axes in zip(columns, panels, strict=True):
        part = frame[(frame["split"] == split) & (frame["metric"] == metric)]
        rows = part["line"].map({str(label): number for number, label in enumerate(labels)})
        axes.plot(part["value"], rows, markersize=2.2, markeredgewidth=0, **DOTS)
        for line, (mean, std) in over_seeds(part, "line").items():
            row = labels.index(line)
            axes.errorbar(mean, row, xerr=std or 0.0, capsize=1.8, capthick=0.9, **MEAN)
        axes.margins(x=0.06)
        axes.locator_params(axis="x", nbins=4)
    return figure
