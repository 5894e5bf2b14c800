from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from density_softmax.metrics import ece, reliability_bins
from density_softmax.report.reliability import (
    Diagram,
    read_diagram,
    reliability_figure,
    write_reliability,
)
from density_softmax.report.runs import find_runs

MakeRun = Callable[..., Path]


def diagram(title: str, seed: int = 0) -> Diagram:
    generator = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(300, 4, generator=generator)).softmax(1)
    y = torch.randint(4, (300,), generator=generator)
    return Diagram(title, reliability_bins(probs, y), ece(probs, y))


def test_the_gaps_that_are_drawn_weigh_to_the_ece() -> None:
    shown = diagram("some method")
    (axes,) = reliability_figure([shown]).axes
    _, too_sure, too_unsure = (c for c in axes.containers if isinstance(c, BarContainer))
    gaps = [a.get_height() + b.get_height() for a, b in zip(too_sure, too_unsure, strict=True)]
    counts = shown.bins.counts.numpy()
    shares = counts[counts > 0] / counts.sum()
    assert float(np.dot(gaps, shares)) == pytest.approx(shown.ece)
    assert axes.texts[0].get_text() == f"ECE {shown.ece:.3f}"


def test_a_bar_is_as_high_as_its_bin_is_accurate() -> None:
    shown = diagram("some method")
    (axes,) = reliability_figure([shown]).axes
    bars = next(c for c in axes.containers if isinstance(c, BarContainer))
    filled = shown.bins.counts > 0
    heights, places = zip(*((bar.get_height(), bar.get_x()) for bar in bars), strict=True)
    np.testing.assert_allclose(heights, shown.bins.accuracy[filled])
    np.testing.assert_allclose(places, shown.bins.edges[:-1][filled])


def test_each_method_has_a_panel_and_many_wrap() -> None:
    figure = reliability_figure([diagram(f"method {n}") for n in range(17)])
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"method {n}" for n in range(17)
    ]
    assert len({round(axes.get_position().y0, 3) for axes in figure.axes}) == 3


def test_a_diagram_is_that_of_the_kept_predictions(tmp_path: Path, make_images: MakeRun) -> None:
    make_images()
    (run,) = find_runs([tmp_path]).finished
    rows = {(row.split, row.metric): row.value for row in run.directory.rows()}
    for split in ("iid", "set.1", "set-c/glass_blur/3"):
        assert read_diagram(run, split).ece == pytest.approx(rows[split, "ece"])


def test_in_domain_and_every_shifted_set_are_drawn(
    tmp_path: Path, make_images: MakeRun, undrawn: list[Figure]
) -> None:
    make_images()
    make_images("density_softmax")
    pictures = write_reliability(find_runs([tmp_path]).finished, tmp_path)
    stems = [f"pictures-reliability-{s}" for s in ("iid", "set.1", "set-c-glass_blur-3")]
    assert [picture.file.name for picture in pictures] == stems
    assert all(len(figure.axes) == 2 for figure in undrawn)


def test_density_softmax_is_drawn_beside_itself_without_its_density(
    tmp_path: Path, make_images: MakeRun, undrawn: list[Figure]
) -> None:
    make_images("density_softmax")
    make_images("density_softmax", "scale=constant", config={"scale": {"kind": "constant"}})
    pictures = write_reliability(find_runs([tmp_path]).finished, tmp_path)
    pairs = [p for p in pictures if "without the density" in p.title]
    stems = [picture.file.name for picture in pictures]
    assert len(stems) == len(set(stems)) == 2 * len(pairs)
    assert [p.file.name for p in pairs] == [
        f"pictures-density_softmax-density-reliability-{split}"
        for split in ("iid", "set.1", "set-c-glass_blur-3")
    ]
    titles = [axes.get_title(loc="left").replace("\n", " ") for axes in undrawn[-1].axes]
    assert titles == ["Density-Softmax", "Density-Softmax (scale=constant)"]


def test_runs_without_predictions_are_not_drawn(tmp_path: Path, make: MakeRun) -> None:
    make(drawn=False)
    assert write_reliability(find_runs([tmp_path]).finished, tmp_path) == []
