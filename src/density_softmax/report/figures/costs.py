"""What methods cost: parameters, latency and training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from density_softmax.report.columns import noisy_lines
from density_softmax.report.figures import Drawing
from density_softmax.report.frame import Setting, Spread, over_seeds
from density_softmax.report.names import file_stem
from density_softmax.report.style import INK, LOOKS, ROW, add_legend, lined_figure
from density_softmax.runs.run import Run

if TYPE_CHECKING:
    import pandas as pd

PREDICTION = ("params", "latency_ratio:1", "latency_ratio:32")
BOTH = ("train_seconds", "latency_ratio:32")
ERROR_BAR: dict[str, Any] = {"color": INK, "elinewidth": 0.7, "capsize": 1.5, "capthick": 0.7}
BESIDE: dict[str, Any] = {"fontsize": 5, "textcoords": "offset points", "xytext": (2, 0)}
UNITS = {"millions": 1e6, "thousands": 1e3, "": 1.0}
TITLES = {
    "params": "parameters",
    "train_seconds": "training, seconds",
    "latency_ratio:1": "latency, batch of 1, ERM = 1",
    "latency_ratio:32": "latency, batch of 32, ERM = 1",
}
CAPTION = (
    "Mean over seeds; bars show one standard deviation to either side. Latency is the time of a "
    "forward pass relative to ERM with the same encoder, both timed in turn in one process."
)
TRAINING = (
    " Training time is the sum over all stages. Runs were timed one by one, on a machine that "
    "may have been doing other work."
)


def draw(setting: Setting) -> Iterator[Drawing]:
    """Storage and latency, and training beside prediction.

    Args:
        setting: the runs to compare.
    """
    machines = dict(enumerate(map(_machine_of, setting.runs)))
    costs = setting.frame[setting.frame["split"] == "cost"]
    costs = costs.assign(machine=costs["run"].map(machines))
    noisy = [noisy_lines(costs, ("cost", metric)) for metric in PREDICTION]
    lines = [label for label in setting.labels if any(label in each for each in noisy)]
    busy = f" Unreliable, because the machine was busy: {', '.join(lines)}." if lines else ""
    for name, metrics, title, caption in (
        ("cost", PREDICTION, "Storage and latency", CAPTION),
        ("training-cost", BOTH, "Cost of training and of prediction", CAPTION + TRAINING),
    ):
        if set(metrics) <= set(costs["metric"]):
            yield Drawing(
                cost_figure(costs, setting.labels, metrics),
                file_stem(setting.name, name),
                f"{title}: {setting.name}",
                f"{caption} On {' and on '.join(dict.fromkeys(costs['machine']))}.{busy}",
            )


def _machine_of(run: Run) -> str:
    """What the latency of a run was measured on."""
    environment = run.environment()
    devices = environment.get("devices") or [f"CPU, {environment.get('cores', '?')} cores"]
    return str(environment.get("latency device", devices[0]))


def cost_figure(costs: pd.DataFrame, labels: Sequence[str], metrics: Sequence[str]) -> Figure:
    """A panel for each metric, a bar for each label and machine.

    Args:
        costs: a line for each seed, with columns machine, line, metric and value.
        labels: lines of the frame, from the top.
        metrics: each `params`, `train_seconds`, `latency_ratio:1` or `latency_ratio:32`.
    """
    spreads = over_seeds(costs, "machine", "line", "metric")
    machines = list(dict.fromkeys(costs["machine"]))
    largest = max((s.mean for (_, _, m), s in spreads.items() if m == "params"), default=0.0)
    name, unit = next((n, unit) for n, unit in UNITS.items() if largest >= unit or not n)
    units = {"params": unit}
    titles = [TITLES[m] + (f", {name}" if m == "params" and name else "") for m in metrics]
    row = max(ROW, 0.09 * len(machines) + 0.05)
    figure, panels = lined_figure(labels, titles, num_columns=len(metrics), row=row)
    for metric, axes in zip(metrics, panels, strict=True):
        for number, machine in enumerate(machines):
            bars = [spreads.get((machine, label, metric)) for label in labels]
            _draw(axes, bars, units.get(metric, 1.0), number, len(machines))
        axes.set_xlim(0, 1.18 * axes.get_xlim()[1])
        axes.locator_params(axis="x", nbins=4)
        if metric.startswith("latency_ratio"):
            axes.axvline(1, color=INK, linewidth=0.6, linestyle=(0, (4, 2)))
    if len(machines) > 1:
        handles = [Patch(color=_color(n), label=machine) for n, machine in enumerate(machines)]
        add_legend(figure, handles, 4)
    return figure


def _draw(
    axes: Axes, bars: Sequence[Spread | None], unit: float, machine: int, num_machines: int
) -> None:
    """One machine's bars: the methods below each other, the machines side by side in each."""
    shift, width = 0.8 * ((machine + 0.5) / num_machines - 0.5), 0.74 / num_machines
    for row, spread in enumerate(bars):
        if spread is not None:
            value, std = spread.mean / unit, (spread.std or 0.0) / unit
            axes.barh(row + shift, value, width, color=_color(machine))
            if std:
                axes.errorbar(value, row + shift, xerr=std, **ERROR_BAR)
            words = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            axes.annotate(words, (value + std, row + shift), va="center", **BESIDE)


def _color(machine: int) -> str:
    return LOOKS[1 + machine % (len(LOOKS) - 1)].color
