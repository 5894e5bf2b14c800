"""Tables and the picture of `posthoc_cifar10.py`, from its rows."""

from __future__ import annotations

from matplotlib.figure import Figure

from density_softmax.report.style import DARK_BLUE, DARK_ORANGE, ORANGE, PAGE, RED, new_figure
from density_softmax.types import Row

SCORES = ("confidence", "entropy", "epistemic")
QUALITY = {
    "NLL": ("iid", "nll"),
    "accuracy": ("iid", "accuracy"),
    "ECE": ("iid", "ece"),
    "cNLL": ("cifar10-c", "cnll"),
    "cECE": ("cifar10-c", "cece"),
    "latency": ("cost", "latency_ratio:1"),
    "exported": ("cost", "exported_latency:exported"),
    "exported / eager": ("cost", "exported_latency:eager"),
    "attach, s": ("cost", "attach_seconds"),
}
DETECTION = {
    f"{metric.upper()} {name}, {score}": (split, f"{metric}:{score}")
    for split, name in (("svhn", "SVHN"), ("cifar100_prefix", "CIFAR-100"))
    for metric in ("auroc", "aupr")
    for score in SCORES
}


def tables(rows: list[Row], network: str) -> str:
    """The figures to look at, a line per rule, in Markdown."""
    mine = [row for row in rows if row.recipe == f"posthoc_cifar10/{network}"]
    values = {(row.variant, row.split, row.metric): row.value for row in mine}
    lines = []
    for columns in (QUALITY, DETECTION):
        lines += [f"| {network} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
        for variant in dict.fromkeys(row.variant for row in mine):
            cells = [values.get((variant, *key)) for key in columns.values()]
            shown = ["" if cell is None else f"{cell:.3f}" for cell in cells]
            lines.append(f"| {variant} | " + " | ".join(shown) + " |")
        lines.append("")
    return "\n".join(lines)


SHOWN = {
    "erm": ("ERM", "#6e7781", "o"),
    "temperature_scaling": ("temperature scaling", DARK_ORANGE, "s"),
    "temperature, same budget": ("a higher temperature, budget of ours", ORANGE, "v"),
    "range, last, realnvp": ("Density-Softmax, the paper's code", RED, "^"),
    "default": ("Density-Softmax, ours", DARK_BLUE, "D"),
}


def draw(rows: list[Row], networks: list[str]) -> Figure:
    """Calibration against severity: means over the 15 corruptions, with the clean images at 0."""
    figure = new_figure(PAGE, 2.3 * len(networks))
    grid = figure.subplots(len(networks), 2, squeeze=False, sharex=True)
    for network, line in zip(networks, grid, strict=True):
        for axes, (metric, name) in zip(line, (("ece", "ECE"), ("nll", "NLL")), strict=True):
            for variant, (label, color, marker) in SHOWN.items():
                means = by_severity(rows, network, variant, metric)
                axes.plot(range(6), means, color=color, marker=marker, label=label, markersize=3)
            axes.set_ylabel(f"{name}, {network}")
            axes.set_ylim(bottom=0)
            axes.set_xticks(range(6), ["clean", "1", "2", "3", "4", "5"])
    for axes in grid[-1]:
        axes.set_xlabel("severity of the corruption")
    grid[0][0].legend()
    figure.set_layout_engine("constrained")
    return figure


def by_severity(rows: list[Row], network: str, variant: str, metric: str) -> list[float]:
    """The clean value, then the mean over corruptions at each severity."""
    values: dict[int, list[float]] = {severity: [] for severity in range(6)}
    for row in rows:
        mine = row.recipe == f"posthoc_cifar10/{network}" and row.variant == variant
        if mine and row.metric == metric:
            *_, last = row.split.split("/")
            values[int(last) if last.isdigit() else 0].append(row.value)
    return [sum(found) / len(found) for found in values.values()]
