"""The picture of `posthoc_cifar10.py`, from its rows."""

from __future__ import annotations

from matplotlib.figure import Figure

from density_softmax.report.style import DARK_BLUE, DARK_ORANGE, ORANGE, PAGE, RED, new_figure
from density_softmax.types import Row

# By kind and the beginning of the variant.
SHOWN = {
    ("deterministic", "default"): ("ERM", "#6e7781", "o"),
    ("temperature_scaling", "default"): ("temperature scaling", DARK_ORANGE, "s"),
    ("density_softmax", "scale=temperature"): ("a higher temperature, budget of ours", ORANGE, "v"),
    ("density_softmax", "scale=range"): ("Density-Softmax, the paper's code", RED, "^"),
    ("density_softmax", "default"): ("Density-Softmax, ours", DARK_BLUE, "D"),
}


def draw(rows: list[Row]) -> Figure:
    """Calibration against severity: means over the 15 corruptions, with the clean images at 0."""
    networks = list(dict.fromkeys(row.recipe for row in rows))
    figure = new_figure(PAGE, 2.3 * len(networks))
    grid = figure.subplots(len(networks), 2, squeeze=False, sharex=True)
    for network, line in zip(networks, grid, strict=True):
        mine = [row for row in rows if row.recipe == network]
        for axes, (metric, name) in zip(line, (("ece", "ECE"), ("nll", "NLL")), strict=True):
            for (kind, variant), (label, color, marker) in SHOWN.items():
                means = by_severity(mine, kind, variant, metric)
                axes.plot(*means, color=color, marker=marker, label=label, markersize=3)
            axes.set_ylabel(f"{name}, {network.partition('/')[2]}")
            axes.set_ylim(bottom=0)
            axes.set_xticks(range(6), ["clean", "1", "2", "3", "4", "5"])
    for axes in grid[-1]:
        axes.set_xlabel("severity of the corruption")
    grid[0][0].legend()
    figure.set_layout_engine("constrained")
    return figure


def by_severity(
    rows: list[Row], kind: str, variant: str, metric: str
) -> tuple[list[int], list[float]]:
    """Severities, 0 for the clean images, and the means over corruptions at each."""
    values: dict[int, list[float]] = {}
    for row in rows:
        if row.method == kind and variant in row.variant and row.metric == metric:
            *_, last = row.split.split("/")
            values.setdefault(int(last) if last.isdigit() else 0, []).append(row.value)
    severities = sorted(values)
    return severities, [sum(values[s]) / len(values[s]) for s in severities]
