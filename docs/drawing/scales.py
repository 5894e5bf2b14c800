"""Draws how a log density becomes a factor, by the paper's rule, its code's and ours.

    python docs/drawing/scales.py [--out FOLDER]

writes scales.svg to docs/images and prints the median of p / max p by dimension. The features are
50,000 points of a standard Gaussian, so that the density is known exactly.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from matplotlib.axes import Axes
from torch import Tensor

from density_softmax.nn.softmax.scale import MaxScale, QuantileScale, RangeScale, Scale
from density_softmax.report.style import INK, LOOKS, add_axes, new_figure, paper_style

IMAGES = Path(__file__).parent.parent / "images"
NUM_POINTS, NUM_FEATURES = 50_000, 640
WIDTH, HEIGHT = 5.2, 2.7  # inches


def main() -> None:
    """Draw, write and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=IMAGES, help="the folder to write to")
    out: Path = parser.parse_args().out
    for num_features in (16, 128, NUM_FEATURES):
        log_prob = log_densities(num_features)
        median = (log_prob - log_prob.max()).median().item() / math.log(10)
        print(f"{num_features} dimensions: median of p / max p is 1e{median:.0f}")
    with paper_style():
        figure = new_figure(WIDTH, HEIGHT)
        draw(add_axes(figure, 0.5, 0.12, WIDTH - 0.62, HEIGHT - 0.58), log_densities(NUM_FEATURES))
        figure.savefig(out / "scales.svg", metadata={"Date": None})
    print(out / "scales.svg")


def log_densities(num_features: int) -> Tensor:
    """log p(z) − log p(0) of points of a standard Gaussian."""
    z = torch.randn(NUM_POINTS, num_features, generator=torch.Generator().manual_seed(0))
    return -0.5 * z.square().sum(1)


def fitted(scale: Scale, log_prob: Tensor) -> Scale:
    """The scale with constants from these densities and from labels that fit their logits."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(len(log_prob), 10, generator=generator)
    y = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    scale.fit(lambda rows: log_prob, logits, y)
    return scale


def draw(axes: Axes, log_prob: Tensor) -> None:
    """Factors over the log density, in interquartile ranges from the median, and its histogram."""
    lower, median, upper = torch.quantile(log_prob, torch.tensor([0.25, 0.5, 0.75]))
    u = torch.linspace(-16, 3.5, 1000)
    scales = {
        "max: p / max p (paper)": MaxScale(),
        "range: [−.55, −.45] (its code)": RangeScale(),
        "quantile (here)": QuantileScale(),
    }
    for (name, scale), look in zip(scales.items(), LOOKS[1:], strict=False):
        factors = fitted(scale, log_prob)(median + u * (upper - lower))
        axes.plot(u, factors, label=name, **(look.line() | {"linewidth": 1.6}))
    counts, edges = torch.histogram((log_prob - median) / (upper - lower), 60)
    axes.fill_between(edges[:-1], 0.3 * counts / counts.max(), step="post", color="#d5dade")
    axes.text(1.0, 0.22, "data", fontsize=8, color=INK)
    axes.set(xlim=(-16, 3.5), ylim=(0, 1.05))
    axes.set_xlabel("log p(z), interquartile ranges from its median", fontsize=8)
    axes.set_ylabel("factor", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.legend(loc="upper left", bbox_to_anchor=(0.02, 0.99), fontsize=8)


if __name__ == "__main__":
    main()
