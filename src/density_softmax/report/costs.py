"""What methods cost: parameters, latency and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from density_softmax.report.bars import ROW, lined_figure
from density_softmax.report.names import file_stem
from density_softmax.report.runs import Run, by_setting, rows_of
from density_softmax.report.samples import (
    Key,
    Samples,
    deviation,
    mean,
    samples_by_line,
    with_totals,
)
from density_softmax.report.style import INK, LOOKS, Picture, save_figure

__all__ = ["cost_figure", "machine_of", "write_costs"]

# By machine, by line, by split and metric.
Costs = Mapping[str, Mapping[str, Mapping[Key, Samples]]]

PREDICTION = ("params", "latency_ratio:1", "latency_ratio:32")
BOTH = ("train_seconds", "latency_ratio:32")
ERROR_BAR: dict[str, Any] = {"elinewidth": 0.7, "capsize": 1.5, "capthick": 0.7}
BESIDE: dict[str, Any] = {
    "va": "center",
    "fontsize": 5,
    "textcoords": "offset points",
    "xytext": (2, 0),
}
UNITS = {"millions": 1e6, "thousands": 1e3, "": 1.0}
TITLES = {
    "params": "parameters",
    "train_seconds": "training, seconds",
    "latency_ratio:1": "latency, batch of 1, ERM = 1",
    "latency_ratio:32": "latency, batch of 32, ERM = 1",
}
CAPTION = (
    "Mean over seeds, bars one standard deviation to either side. Latency is that of a forward "
    "pass, divided by that of ERM with the same encoder, both timed in turn in one process."
)
TRAINING = (
    " Training is all stages together, as long as each took: runs were timed one by one, on a "
    "machine that may have been doing other work."
)


def write_costs(runs: Sequence[Run], folder: Path) -> list[Picture]:
    """For each recipe and data: storage and latency, and training beside prediction."""
    pictures = []
    for setting, members in by_setting(runs).items():
        costs, labels = _by_machine(members), list(samples_by_line(rows_of(members)))
        for name, metrics, title, caption in (
            ("cost", PREDICTION, "Storage and latency", CAPTION),
            ("training-cost", BOTH, "Cost of training and of prediction", CAPTION + TRAINING),
        ):
            if all(_has(costs, metric) for metric in metrics):
                file = folder / file_stem(setting, name)
                words = f"{title}: {setting}", f"{caption} {_machines(costs)}".strip()
                pictures.append(save_figure(cost_figure(costs, labels, metrics), file, *words))
    return pictures


def machine_of(run: Run) -> str:
    """What its latency was measured on."""
    environment = run.directory.environment()
    devices = environment.get("devices") or [f"CPU, {environment.get('cores', '?')} cores"]
    return str(environment.get("latency device", devices[0]))


def cost_figure(costs: Costs, labels: Sequence[str], metrics: Sequence[str]) -> Figure:
    """A panel for each metric, a bar for each label and machine."""
    units = {metric: _unit(costs, metric) for metric in metrics}
    titles = [", ".join(filter(None, (TITLES[m], units[m]))) for m in metrics]
    row = max(ROW, 0.09 * len(costs) + 0.05)
    figure, panels = lined_figure(labels, titles, num_columns=len(metrics), row=row)
    for metric, axes in zip(metrics, panels, strict=True):
        for number, lines in enumerate(costs.values()):
            bars = [lines.get(label, {}).get(("cost", metric)) for label in labels]
            _draw(axes, bars, UNITS[units[metric]], number, len(costs))
        _finish(axes, metric)
    if len(costs) > 1:
        handles = [Patch(color=_color(number), label=name) for number, name in enumerate(costs)]
        figure.legend(handles=handles, loc="lower center", ncols=4, borderaxespad=0.1)
    return figure


def _by_machine(runs: Sequence[Run]) -> dict[str, dict[str, dict[Key, dict[int, float]]]]:
    machines: dict[str, list[Run]] = {}
    for run in runs:
        machines.setdefault(machine_of(run), []).append(run)
    return {name: samples_by_line(with_totals(rows_of(each))) for name, each in machines.items()}


def _has(costs: Costs, metric: str) -> bool:
    return any(("cost", metric) in s for lines in costs.values() for s in lines.values())


def _unit(costs: Costs, metric: str) -> str:
    """The unit in which parameters are read most easily; other metrics have theirs."""
    found = [s.get(("cost", metric)) for lines in costs.values() for s in lines.values()]
    largest = max(mean(samples) for samples in found if samples)
    fitting = [name for name, unit in UNITS.items() if largest >= unit or not name]
    return fitting[0] if metric == "params" else ""


def _machines(costs: Costs) -> str:
    return f"On {' and on '.join(costs)}."


def _draw(
    axes: Axes, bars: Sequence[Samples | None], unit: float, machine: int, num_machines: int
) -> None:
    """One machine's bars: the methods below each other, the machines side by side in each."""
    shift, width = 0.8 * ((machine + 0.5) / num_machines - 0.5), 0.74 / num_machines
    for place, samples in enumerate(bars):
        if samples:
            value, spread = mean(samples) / unit, (deviation(samples) or 0.0) / unit
            axes.barh(place + shift, value, width, color=_color(machine))
            if spread:
                axes.errorbar(value, place + shift, xerr=spread, color=INK, **ERROR_BAR)
            words = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            axes.annotate(words, (value + spread, place + shift), **BESIDE)


def _color(machine: int) -> str:
    return LOOKS[1 + machine % (len(LOOKS) - 1)].color


def _finish(axes: Axes, metric: str) -> None:
    axes.set_xlim(0, 1.18 * axes.get_xlim()[1])
    axes.locator_params(axis="x", nbins=4)
    if metric.startswith("latency_ratio"):
        axes.axvline(1, color=INK, linewidth=0.6, linestyle=(0, (4, 2)))
