import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from comparison import finished, frame, setting

from density_softmax.metrics import aurc, entropy
from density_softmax.report.figures import coverage, entropies, likelihoods
from density_softmax.report.figures.coverage import _coverage_figure, _curve_of
from density_softmax.report.figures.entropies import _entropy_figure, _smooth_density
from density_softmax.report.figures.likelihoods import (
    _find_groups,
    _likelihood_figure,
    _log_densities,
)
from density_softmax.report.frame import find_splits
from density_softmax.runs.run import Run

MakeRun = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path, make_images: MakeRun) -> Run:
    make_images("density_softmax")
    return finished(tmp_path)[0]


def test_the_area_under_a_risk_coverage_curve_is_aurc(run: Run) -> None:
    coverage, risk = _curve_of(run, "iid")
    prediction, labels = run.prediction("iid")
    widths = torch.diff(coverage, prepend=torch.zeros(1))
    assert float((risk * widths).sum()) == pytest.approx(aurc(prediction.probs, labels))


def test_a_curve_ends_at_the_error_rate(run: Run) -> None:
    axes = _coverage_figure([run], ["iid"]).axes[0]
    coverage, risk = axes.lines[0].get_data()
    rows = {(row.split, row.metric): row.value for row in run.rows()}
    assert coverage[-1] == 1
    assert risk[-1] == pytest.approx(1 - rows["iid", "accuracy"])


def test_many_methods_wrap_and_are_all_compared_to_the_first(run: Run) -> None:
    figure = _coverage_figure([run] * 17, ["iid", "set.1"])
    assert len(figure.axes) == 3 * 2
    assert [len(axes.lines) for axes in figure.axes[::2]] == [6, 7, 6]


def test_a_smooth_density_integrates_to_one_and_is_where_the_values_are() -> None:
    largest = math.log(10)
    values = np.random.default_rng(0).uniform(0, largest, 5000)
    places, density = _smooth_density(values, largest)
    assert density.sum() * (places[1] - places[0]) == pytest.approx(1)
    np.testing.assert_allclose(density, 1 / largest, rtol=0.2)  # at the ends too
    places, density = _smooth_density(np.full(9, 1.0), largest)
    assert places[density.argmax()] == pytest.approx(1, abs=0.01)
    assert _smooth_density(np.array([largest + 1e-9]), largest)[1].sum() > 0


def test_entropy_is_drawn_in_domain_shifted_and_outside(run: Run) -> None:
    shown = {split: {"color": "k", "linestyle": "-"} for split in ("iid", "set.1", "other")}
    (axes,) = _entropy_figure([run], shown).axes
    assert axes.get_xlim() == (0, math.log(4))
    for line, split in zip(axes.lines, shown, strict=True):
        places, density = line.get_data()
        mean = float(np.average(places, weights=density))
        prediction, _ = run.prediction(split)
        assert mean == pytest.approx(float(entropy(prediction.probs).mean()), abs=0.02)


def test_nothing_is_cut_off_above(run: Run) -> None:
    shown = {split: {"color": "k", "linestyle": "-"} for split in ("other", "iid")}
    (axes,) = _entropy_figure([run], shown).axes
    assert axes.get_ylim()[1] > max(line.get_ydata().max() for line in axes.lines)


def test_log_densities_are_pooled_over_the_types_of_a_severity(run: Run) -> None:
    levels = find_splits(frame(run.rows())).corrupted["set-c"]
    pooled = _log_densities(run, levels[2])
    each = [run.prediction(split)[0].epistemic for split in levels[2]]
    np.testing.assert_allclose(pooled, -torch.cat(each))
    assert len(pooled) == 2 * 90


def test_histograms_hold_every_value_even_beyond_the_axis(run: Run) -> None:
    groups = _find_groups(find_splits(frame(run.rows())))["set-c"]
    names = [name for name, _, _ in groups]
    assert names == ["training", "in-domain test", *(f"severity {n}" for n in (1, 2, 3))]
    (axes,) = _likelihood_figure([run], groups).axes
    for stairs in axes.patches:
        heights, edges, _ = stairs.get_data()
        assert float((heights * np.diff(edges)).sum()) == pytest.approx(1)


def test_infinite_log_densities_count_in_the_outermost_bin(run: Run) -> None:
    prediction, labels = run.prediction("other")
    infinite = prediction._replace(epistemic=torch.full_like(prediction.epistemic, math.inf))
    run.save_prediction("other", infinite, labels)
    groups = _find_groups(find_splits(frame(run.rows())))["other sets"]
    (axes,) = _likelihood_figure([run], groups).axes
    heights, _, _ = axes.patches[-1].get_data()
    assert heights[0] > 0
    assert (heights[1:] == 0).all()


def test_only_methods_with_a_density_have_their_log_density_drawn(
    tmp_path: Path, make_images: MakeRun
) -> None:
    for method in ("deterministic", "density_softmax", "ddu"):
        make_images(method)
    drawings = list(likelihoods.draw(setting(tmp_path)))
    assert [d.stem for d in drawings] == [f"digits-likelihood-{n}" for n in ("set-c", "other-sets")]
    titles = [axes.get_title(loc="left") for axes in drawings[0].figure.axes]
    assert titles == ["DDU", "Density-Softmax"]
    labels = [axes.get_xlabel() for axes in drawings[0].figure.axes]
    assert labels == ["log p(z)", "−epistemic uncertainty"]


@pytest.mark.parametrize("figure", [coverage, entropies, likelihoods])
def test_runs_without_predictions_are_not_drawn(
    tmp_path: Path, make: MakeRun, figure: ModuleType
) -> None:
    make("density_softmax", drawn=False)
    assert list(figure.draw(setting(tmp_path))) == []


def test_without_an_ood_set_entropy_is_drawn_all_the_same(
    tmp_path: Path, make_images: MakeRun
) -> None:
    run = Run.at(make_images())
    run.save_rows([row for row in run.rows() if row.split != "other"])
    assert [d.stem for d in entropies.draw(setting(tmp_path))] == ["digits-entropy"]
