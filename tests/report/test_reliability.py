from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from comparison import finished, setting
from matplotlib.container import BarContainer

from density_softmax.metrics import ece, reliability_bins
from density_softmax.report.figures.reliability import (
    Diagram,
    _read_diagram,
    _reliability_figure,
    draw,
)

MakeRun = Callable[..., Path]


def diagram(title: str, seed: int = 0) -> Diagram:
    generator = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(300, 4, generator=generator)).softmax(1)
    y = torch.randint(4, (300,), generator=generator)
    return Diagram(title, reliability_bins(probs, y), ece(probs, y))


def test_the_gaps_that_are_drawn_weigh_to_the_ece() -> None:
    shown = diagram("some method")
    (axes,) = _reliability_figure([shown]).axes
    _, too_sure, too_unsure = (c for c in axes.containers if isinstance(c, BarContainer))
    gaps = [a.get_height() + b.get_height() for a, b in zip(too_sure, too_unsure, strict=True)]
    counts = shown.bins.counts.numpy()
    shares = counts[counts > 0] / counts.sum()
    assert float(np.dot(gaps, shares)) == pytest.approx(shown.ece)
    assert axes.texts[0].get_text() == f"ECE {shown.ece:.3f}"


def test_a_bar_is_as_high_as_its_bin_is_accurate() -> None:
    shown = diagram("some method")
    (axes,) = _reliability_figure([shown]).axes
    bars = next(c for c in axes.containers if isinstance(c, BarContainer))
    filled = shown.bins.counts > 0
    heights, places = zip(*((bar.get_height(), bar.get_x()) for bar in bars), strict=True)
    np.testing.assert_allclose(heights, shown.bins.accuracy[filled])
    np.testing.assert_allclose(places, shown.bins.edges[:-1][filled])


def test_each_method_has_a_panel_and_many_wrap() -> None:
    figure = _reliability_figure([diagram(f"method {n}") for n in range(17)])
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"method {n}" for n in range(17)
    ]
    assert len({round(axes.get_position().y0, 3) for axes in figure.axes}) == 3


def test_a_diagram_is_that_of_the_kept_predictions(tmp_path: Path, make_images: MakeRun) -> None:
    make_images()
    (run,) = finished(tmp_path)
    rows = {(row.split, row.metric): row.value for row in run.rows()}
    for split in ("iid", "set.1", "set-c/glass_blur/3"):
        assert _read_diagram(run, split).ece == pytest.approx(rows[split, "ece"])


def test_in_domain_and_every_shifted_set_are_drawn(tmp_path: Path, make_images: MakeRun) -> None:
    make_images()
    make_images("density_softmax")
    drawings = list(draw(setting(tmp_path)))
    stems = [f"digits-reliability-{s}" for s in ("iid", "set.1", "set-c-glass_blur-3")]
    assert [drawing.stem for drawing in drawings] == stems
    assert all(len(drawing.figure.axes) == 2 for drawing in drawings)


def test_density_softmax_is_drawn_beside_itself_without_its_density(
    tmp_path: Path, make_images: MakeRun
) -> None:
    make_images("density_softmax")
    make_images("density_softmax", ["method.scale=constant"])
    drawings = list(draw(setting(tmp_path)))
    pairs = [drawing for drawing in drawings if "without the density" in drawing.title]
    stems = [drawing.stem for drawing in drawings]
    assert len(stems) == len(set(stems)) == 2 * len(pairs)
    assert [drawing.stem for drawing in pairs] == [
        f"digits-density_softmax-density-reliability-{split}"
        for split in ("iid", "set.1", "set-c-glass_blur-3")
    ]
    axes = pairs[-1].figure.axes
    titles = [each.get_title(loc="left").replace("\n", " ") for each in axes]
    assert titles == ["Density-Softmax", "Density-Softmax (scale=constant)"]


def test_runs_without_predictions_are_not_drawn(tmp_path: Path, make: MakeRun) -> None:
    make(drawn=False)
    assert list(draw(setting(tmp_path))) == []
