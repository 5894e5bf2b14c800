"""Draws what a policy does with two moons, its risk-coverage curve, and a monitor over time.

    python docs/drawing/policies.py [--out FOLDER]

writes decisions_actions.svg, decisions_curve.svg and decisions_monitor.svg to docs/images. The
classifier is a Gaussian kernel density of each class, so that nothing is trained.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from numpy.typing import NDArray
from sklearn.datasets import make_moons

import density_softmax as ds
from density_softmax.decide.conformal import Ranks
from density_softmax.decide.martingale import Bets
from density_softmax.decide.policy import ACTIONS
from density_softmax.report.style import (
    DARK_BLUE,
    DARK_ORANGE,
    GREY,
    INK,
    add_axes,
    new_figure,
    paper_style,
    tidy,
)
from density_softmax.serve.answer import Answer

IMAGES = Path(__file__).parent.parent / "images"
NOISE, WIDTH = 0.3, 0.25  # of the moons, of the kernel
MAX_ERROR, FALSE_ALARMS = 0.05, 0.01
Floats = NDArray[np.float64]


def main() -> None:
    """Draw and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=IMAGES, help="the folder to write to")
    out: Path = parser.parse_args().out
    model = Kernels(*moons(1000, 0))
    x, y = moons(2000, 1)
    policy = ds.Policy.fit(
        None,
        (model.predict(x), y),
        coverage=0.95,
        max_error=MAX_ERROR,
        false_alarms=FALSE_ALARMS,
        class_names=("upper", "lower"),
    )
    drawings = {
        "actions": lambda axes: draw_actions(axes, model, policy),
        "curve": lambda axes: draw_curve(axes, policy),
        "monitor": lambda axes: draw_monitor(axes, model, policy),
    }
    for name, draw in drawings.items():
        with paper_style():
            figure = new_figure(5.2, 2.9)
            draw(add_axes(figure, 0.5, 0.12, 4.55, 2.38))
            figure.savefig(out / f"decisions_{name}.svg", metadata={"Date": None})
        print(out / f"decisions_{name}.svg")


def moons(count: int, seed: int) -> tuple[Floats, NDArray[np.int64]]:
    """Points and labels."""
    x, y = make_moons(count, noise=NOISE, random_state=seed)
    return x, y


class Kernels:
    """A density of each class; `epistemic` is −log of their mean."""

    def __init__(self, x: Floats, y: NDArray[np.int64]) -> None:
        self.classes = [x[y == label] for label in (0, 1)]

    def predict(self, x: Floats) -> Answer:
        """Probabilities and uncertainties of points, as a model returns them."""
        logs = np.stack([self.log_density(x, known) for known in self.classes], axis=1)
        total = np.logaddexp.reduce(logs, axis=1)
        probs = np.exp(logs - total[:, None])
        entropy = -(probs * np.log(np.maximum(probs, 1e-300))).sum(1)
        return Answer(probs, entropy, math.log(2) - total)

    def log_density(self, x: Floats, known: Floats) -> Floats:
        """Of one class, (points,)."""
        squares = np.square(x[:, None] - known).sum(2) / WIDTH**2
        constant = math.log(len(known)) + math.log(2 * math.pi * WIDTH**2)
        return np.asarray(np.logaddexp.reduce(-0.5 * squares, axis=1) - constant)


def draw_actions(axes: Axes, model: Kernels, policy: ds.Policy) -> None:
    """The plane in the colours of its actions, with the labels of its regions."""
    xs, ys = np.linspace(-3, 4, 351), np.linspace(-2.2, 2.7, 246)
    plane = np.stack(np.meshgrid(xs, ys), axis=2).reshape(-1, 2)
    parts = [policy(model.predict(part)).action for part in np.array_split(plane, 40)]
    codes = np.select([np.concatenate(parts) == action for action in ACTIONS], [0, 1, 2])
    colors = ListedColormap(["#ffffff", "#f4c89d", "#d5dade"])
    axes.pcolormesh(xs, ys, codes.reshape(len(ys), len(xs)), cmap=colors, vmin=0, vmax=2,
                    rasterized=True)  # fmt: skip
    for points, color in zip(model.classes, (DARK_BLUE, DARK_ORANGE), strict=True):
        axes.plot(*points[:250].T, ".", color=color, markersize=1.6)
    for x, y, text in ((-2.7, 2.2, "unknown"), (-0.55, 1.42, "answer"), (0.55, 0.02, "abstain")):
        axes.text(x, y, text, fontsize=8, color=INK, weight="bold")
    axes.set(xticks=[], yticks=[])


def draw_curve(axes: Axes, policy: ds.Policy) -> None:
    """Risk against coverage, the bound and the chosen threshold."""
    curve, chosen = policy.curve(), policy.abstention
    assert chosen is not None
    curve.draw(axes)
    axes.axhline(100 * MAX_ERROR, color=DARK_ORANGE, linestyle="--")
    axes.text(3, 100 * MAX_ERROR + 0.25, f"max_error = {MAX_ERROR:.0%}", fontsize=8)
    axes.axvline(100 * chosen.coverage, color=GREY, linestyle=":")
    axes.text(100 * chosen.coverage - 1, 0.3, "answered", fontsize=8, ha="right")
    axes.set_ylim(0, 14)
    tidy(axes)


def draw_monitor(axes: Axes, model: Kernels, policy: ds.Policy) -> None:
    """Evidence over a stream whose noise grows after 2,000 inputs, and over one that stays."""
    rng = np.random.default_rng(5)
    same, later = moons(4000, 7)[0], moons(1000, 8)[0]
    later = later + 0.45 * rng.standard_normal(later.shape)
    streams = {"a change at input 2,000": np.concatenate([same[:2000], later]), "no change": same}
    for (name, x), color in zip(streams.items(), (DARK_ORANGE, DARK_BLUE), strict=True):
        monitor = ds.Monitor(policy, FALSE_ALARMS)
        for part in np.array_split(x, len(x) // 20):
            monitor.update(model.predict(part))
        axes.plot(*zip(*[point[:2] for point in monitor.history], strict=True), color=color,
                  label=name)  # fmt: skip
    axes.plot(*fixed_evidence(model, same), color=GREY, linestyle=":",
              label="no change, p-values against 500 samples alone")  # fmt: skip
    axes.axhline(-math.log(FALSE_ALARMS), color=INK, linestyle="--")
    axes.text(30, -math.log(FALSE_ALARMS) + 0.6, "alarm", fontsize=8)
    axes.set(xlabel="inputs", ylabel="evidence of a change", ylim=(-8, 30), xlim=(0, 4000))
    axes.legend(loc="upper left", fontsize=7)
    tidy(axes)


def fixed_evidence(model: Kernels, x: Floats) -> tuple[Floats, Floats]:
    """What bets win on p-values that ignore how few calibration samples there are."""
    known = Ranks.of(np.asarray(model.predict(moons(500, 11)[0]).epistemic, np.float64))
    scores = np.asarray(model.predict(x).epistemic, np.float64)
    return np.arange(1.0, len(x) + 1.0), Bets.of().update(known.p_values(scores)) - math.log(2)


if __name__ == "__main__":
    main()
