"""Risk-coverage curves: how many of the answers are wrong if only the surest are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from density_softmax.metrics import risk_coverage
from density_softmax.report.names import file_stem
from density_softmax.report.panels import block_figure, tidy
from density_softmax.report.runs import Run, by_setting, first_seeds, rows_of, seeds_of
from density_softmax.report.splits import find_splits, shift_name
from density_softmax.report.style import LOOKS, Picture, save_figure
from density_softmax.report.wrapping import with_reference

__all__ = ["Curve", "coverage_figure", "read_curve", "write_coverage"]

# Enough to draw a curve, whatever the number of samples.
NUM_POINTS = 400
MOST_PANELS = 3
# Below this coverage the risk is that of a few samples, and may exceed the axis.
NOISY = 0.05
CAPTION = (
    "Share of wrong answers (risk) if only the most confident share (coverage) of the samples is "
    "answered; lower is better, and the area below is AURC. Below a coverage of "
    f"{NOISY:g} a curve may leave the panel. One seed of each method."
)


@dataclass(frozen=True)
class Curve:
    """Coverage and the risk at each."""

    coverage: Tensor
    risk: Tensor


def write_coverage(runs: Sequence[Run], folder: Path) -> list[Picture]:
    """For each recipe and data a figure of all methods, in-domain and shifted."""
    pictures = []
    for setting, members in by_setting(runs).items():
        chosen = first_seeds(members, "iid")
        if chosen:
            splits = ["iid", *find_splits(rows_of(members)).shown_shifts()][:MOST_PANELS]
            file = folder / file_stem(setting, "risk-coverage")
            words = f"Risk and coverage: {setting}", f"{CAPTION} {seeds_of(chosen)}"
            pictures.append(save_figure(coverage_figure(chosen, splits), file, *words))
    return pictures


def read_curve(run: Run, split: str) -> Curve:
    """The curve of a run, answers ordered by confidence."""
    prediction, labels = run.directory.prediction(split)
    return Curve(*risk_coverage(prediction.probs, labels))


def coverage_figure(runs: Sequence[Run], splits: Sequence[str]) -> Figure:
    """A panel for each split, with a line for each run; many runs wrap."""
    groups = with_reference(runs)
    titles = ["in-domain" if split == "iid" else shift_name(split) for split in splits]
    labels = [[run.label for run in group] for group in groups]
    blocks = block_figure(labels, titles, num_columns=len(splits), height=1.5, left=0.46)
    for group, panels in zip(groups, blocks.axes, strict=True):
        for split, axes in zip(splits, panels, strict=True):
            _draw(axes, group, split)
        panels[0].set_ylabel("risk", labelpad=1)
    return blocks.figure


def _draw(axes: Axes, runs: Sequence[Run], split: str) -> None:
    highest = 0.0
    for run, look in zip(runs, LOOKS, strict=False):
        if run.predicted(split):
            curve = read_curve(run, split)
            highest = max(highest, float(curve.risk[curve.coverage >= NOISY].max()))
            step = max(1, len(curve.risk) // NUM_POINTS)
            shown = slice((len(curve.risk) - 1) % step, None, step)  # the last is always shown
            axes.plot(curve.coverage[shown], curve.risk[shown], **look.line())
    axes.set(xlim=(0, 1), ylim=(0, 1.05 * highest or 1))
    axes.set_xlabel("coverage", labelpad=1)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    tidy(axes)
