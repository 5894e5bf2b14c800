"""Draws how well post-hoc methods detect near and far out-of-distribution images.

    python docs/drawing/detection.py [--out FOLDER]

writes detection.svg, and its first panel as detection_resnet20.svg, to docs/images, from the rows
of docs/results/posthoc_cifar10.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import pictures
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from result_tables import RESULTS

from density_softmax.methods import MethodConfig
from density_softmax.report.style import DARK_BLUE, INK, PAGE, add_axes, new_figure, paper_style
from density_softmax.runs.rows import read_rows
from density_softmax.types import Row

ROWS = "posthoc_cifar10.csv"
NETWORKS = ("resnet20", "resnet32")
NEAR, FAR = "cifar100", "svhn"
LOWEST = 0.8  # methods below stand at the edge
# Where a name stands relative to its point, in points; the others stand to the right.
OFFSETS = {
    "energy": (4, -6),
    "max_softmax": (-46, 3),
    "vim": (-14, 4),
    "relative_mahalanobis": (-30, -9),
}
SHOWN = (
    "max_softmax",
    "energy",
    "gen",
    "vim",
    "knn",
    "fdbd",
    "mahalanobis",
    "relative_mahalanobis",
    "mahalanobis_plus_plus",
    "density_softmax",
)


def main() -> None:
    """Draw and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=pictures.IMAGES, help="the folder to write to")
    out: Path = parser.parse_args().out
    rows = read_rows(RESULTS / ROWS)
    for name, networks in (("detection", NETWORKS), ("detection_resnet20", NETWORKS[:1])):
        with paper_style():
            pictures.save(draw_networks(rows, networks), out / f"{name}.svg", [ROWS])


def draw_networks(rows: list[Row], networks: Sequence[str]) -> Figure:
    """A panel for each network, side by side."""
    figure = new_figure(PAGE * len(networks) / len(NETWORKS), 2.9)
    for number, network in enumerate(networks):
        axes = add_axes(figure, 0.5 + 3.45 * number, 0.25, 2.85, 2.2)
        draw(axes, scores([r for r in rows if r.recipe.endswith(network)]))
        axes.set_title(f"ResNet-{network.removeprefix('resnet')}", loc="left")
    return figure


def scores(rows: list[Row]) -> dict[str, tuple[float, float]]:
    """By method, the AUROC of near and of far images."""
    found = {
        (row.method, row.split): row.value
        for row in rows
        if row.variant == "default" and row.metric == "auroc:epistemic"
    }
    return {kind: (found[kind, NEAR], found[kind, FAR]) for kind in SHOWN if (kind, NEAR) in found}


def draw(axes: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """A point for each method; the best corner is the upper right."""
    for kind, (near, far) in points.items():
        ours = kind == "density_softmax"
        color, x = DARK_BLUE if ours else INK, max(near, LOWEST + 0.002)
        marker, size = ("D", 5) if ours else ("o", 3)
        axes.plot(x, far, linestyle="", marker=marker, markersize=size, color=color)
        title = MethodConfig.members[kind].title
        axes.annotate(
            title if near > LOWEST else f"{title} ({near:.2f})",
            (x, far),
            xytext=(-4, 5) if ours else OFFSETS.get(kind, (4, -2)),
            textcoords="offset points",
            fontsize=6.5,
            color=color,
            weight="bold" if ours else "normal",
            ha="right" if ours else "left",
        )
    axes.set(xlim=(LOWEST, 0.91), ylim=(0.8, 1.01))
    axes.set_xlabel("AUROC CIFAR-100 (near)", fontsize=8)
    axes.set_ylabel("AUROC SVHN (far)", fontsize=8)
    axes.grid(alpha=0.3, linewidth=0.4)


if __name__ == "__main__":
    main()
