"""Risk-coverage curves: how many of the answers are wrong if only the surest are given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from density_softmax.metrics import risk_coverage
from density_softmax.report.figures import Drawing
from density_softmax.report.frame import Setting, line_of, seeds_of
from density_softmax.report.names import file_stem, split_name, with_reference
from density_softmax.report.style import LOOKS, block_figure, tidy
from density_softmax.runs.run import Run

# Enough to draw a curve, whatever the number of inputs.
NUM_POINTS = 400
MOST_PANELS = 3
# Below this coverage the risk is that of a few inputs, and may exceed the axis.
NOISY = 0.05
CAPTION = (
    "Error rate (risk) if only the most confident share of the inputs (coverage) is answered. "
    "Lower is better; the area under the curve is AURC. Below a coverage of "
    f"{NOISY:g} a curve may leave the panel. One seed of each method."
)


def draw(setting: Setting) -> Iterator[Drawing]:
    """All methods, in-domain and shifted.

    Args:
        setting: the runs to compare.
    """
    if runs := setting.predicted("iid"):
        splits = ["iid", *setting.splits.shown_shifts()][:MOST_PANELS]
        yield Drawing(
            _coverage_figure(runs, splits),
            file_stem(setting.name, "risk-coverage"),
            f"Risk and coverage: {setting.name}",
            f"{CAPTION} {seeds_of(runs)}",
        )


def _coverage_figure(runs: Sequence[Run], splits: Sequence[str]) -> Figure:
    """A panel for each split, with a line for each run; many runs wrap."""
    groups = with_reference(runs)
    labels = [[line_of(run).label for run in group] for group in groups]
    titles = [split_name(split) for split in splits]
    figure, blocks = block_figure(labels, titles, num_columns=len(splits), height=1.5, left=0.46)
    for group, panels in zip(groups, blocks, strict=True):
        for split, axes in zip(splits, panels, strict=True):
            _draw(axes, group, split)
        panels[0].set_ylabel("risk", labelpad=1)
    return figure


def _curve_of(run: Run, split: str) -> tuple[Tensor, Tensor]:
    """Coverage and the risk at each, answers ordered by confidence."""
    prediction, labels = run.prediction(split)
    return risk_coverage(prediction.probs, labels)


def _draw(axes: Axes, runs: Sequence[Run], split: str) -> None:
    highest = 0.0
    for run, look in zip(runs, LOOKS, strict=False):
        if run.has_prediction(split):
            coverage, risk = _curve_of(run, split)
            highest = max(highest, float(risk[coverage >= NOISY].max()))
            step = max(1, len(risk) // NUM_POINTS)
            shown = slice((len(risk) - 1) % step, None, step)  # the last is always shown
            axes.plot(coverage[shown], risk[shown], **look.line())
    axes.set(xlim=(0, 1), ylim=(0, 1.05 * highest or 1))
    axes.set_xlabel("coverage", labelpad=1)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    tidy(axes)
