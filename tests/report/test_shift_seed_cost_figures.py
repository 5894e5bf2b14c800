import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from density_softmax.report.boxes import box_figure, find_boxes, write_boxes
from density_softmax.report.costs import machine_of, write_costs
from density_softmax.report.runs import find_runs, rows_of
from density_softmax.report.samples import (
    deviation,
    mean,
    samples_by_line,
    with_shared_means,
    with_totals,
)
from density_softmax.report.seeds import find_columns, seed_figure, write_seeds
from density_softmax.report.severities import mean_over_types, write_severities
from density_softmax.report.splits import find_splits
from density_softmax.runs.run import RunDirectory
from density_softmax.types import Row

MakeRun = Callable[..., Path]


def test_a_box_holds_the_mean_over_seeds_of_every_type(
    tmp_path: Path, make_images: MakeRun
) -> None:
    for seed in range(2):
        make_images(seed=seed)
    rows = rows_of(find_runs([tmp_path]).finished)
    levels = find_splits(rows).corrupted["set-c"]
    boxes = find_boxes(samples_by_line(rows), levels, "ece")["ERM"]
    assert list(boxes) == [0, 1, 2, 3]
    for kind, value in zip(("fog", "glass_blur"), boxes[2], strict=True):
        seeds = [r.value for r in rows if (r.split, r.metric) == (f"set-c/{kind}/2", "ece")]
        assert value == pytest.approx(np.mean(seeds))


def test_whiskers_reach_the_extremes_and_the_median_is_inside() -> None:
    boxes = {0: [0.1], 1: [0.2, 0.9, 0.3, 0.4]}
    axes = box_figure({"ece": {"ERM": boxes}}).axes[0]
    heights = np.concatenate([line.get_ydata() for line in axes.lines if len(line.get_ydata())])
    assert {0.1, 0.2, 0.9, 0.35} <= {round(float(h), 6) for h in heights}


@pytest.mark.usefixtures("undrawn")
def test_few_methods_share_one_figure_of_boxes_and_many_have_one_for_each_metric(
    tmp_path: Path, make_images: MakeRun
) -> None:
    for number in range(8):
        make_images(f"method{number}")
    few = write_boxes(find_runs([tmp_path]).finished, tmp_path)
    assert [picture.file.name for picture in few] == ["pictures-set-c-boxes"]
    make_images("method8")
    many = write_boxes(find_runs([tmp_path]).finished, tmp_path)
    stems = [f"pictures-set-c-boxes-{metric}" for metric in ("nll", "accuracy", "ece", "mece")]
    assert [picture.file.name for picture in many] == stems


def test_means_over_types_are_those_of_the_rows(tmp_path: Path, make_images: MakeRun) -> None:
    make_images(seed=3)
    rows = rows_of(find_runs([tmp_path]).finished)
    samples = samples_by_line(rows)["ERM"]
    levels = mean_over_types(samples, find_splits(rows).corrupted["set-c"], "nll")
    overall = np.mean([levels[severity][3] for severity in (1, 2, 3)])
    assert overall == pytest.approx(samples["set-c", "cnll"][3])
    assert levels[0] == samples["iid", "nll"]


def test_a_seed_that_lacks_a_type_does_not_count() -> None:
    samples = {("s/a/1", "nll"): {0: 1.0, 1: 2.0}, ("s/b/1", "nll"): {0: 3.0}}
    assert mean_over_types(samples, {1: ["s/a/1", "s/b/1"]}, "nll") == {1: {0: 2.0}}


def drop(run: Path, split: str) -> None:
    rows = [row for row in RunDirectory(run).rows() if row.split != split]
    RunDirectory(run).save_rows(rows)


def test_a_shift_that_one_run_lacks_is_left_out_of_all_and_takes_no_line_away(
    tmp_path: Path, make_images: MakeRun
) -> None:
    make_images("sngp")
    drop(make_images(), "set-c/fog/2")
    rows = rows_of(find_runs([tmp_path]).finished)
    lines, levels = samples_by_line(rows), find_splits(rows).corrupted["set-c"]
    assert levels[2] == ["set-c/glass_blur/2"]
    for samples in lines.values():
        assert list(mean_over_types(samples, levels, "nll")) == [0, 1, 2, 3]
    assert [len(boxes[2]) for boxes in find_boxes(lines, levels, "nll").values()] == [1, 1]
    shared = samples_by_line(with_shared_means(rows))
    for name, samples in lines.items():
        members = [f"set-c/{k}/{n}" for k in ("fog", "glass_blur") for n in (1, 2, 3)]
        each = [samples[split, "ece"][0] for split in members if split != "set-c/fog/2"]
        assert shared[name]["set-c", "cece"][0] == pytest.approx(np.mean(each))


def test_a_set_that_is_shifted_in_one_run_may_be_foreign_in_another() -> None:
    shifted = [
        Row("r", method, "default", 0, split, "nll", 1.0)
        for method, kinds in {"sngp": ("fog", "snow"), "ddu": ("fog",)}.items()
        for split in (f"set-c/{kind}/1" for kind in kinds)
    ]
    foreign = Row("r", "duq", "default", 0, "set-c", "auroc:confidence", 0.9)
    assert foreign in with_shared_means([*shifted, foreign])


def test_severities_have_a_line_for_each_method(
    tmp_path: Path, make_images: MakeRun, undrawn: list[Figure]
) -> None:
    for seed in range(2):
        make_images(seed=seed)
        make_images("sngp", seed=seed)
    write_severities(find_runs([tmp_path]).finished, tmp_path)
    (figure,) = undrawn
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["NLL", "Accuracy", "ECE"]
    assert [len(axes.containers) for axes in figure.axes] == [2, 2, 2]


def test_error_bars_are_one_standard_deviation_over_seeds(
    tmp_path: Path, make_images: MakeRun
) -> None:
    for seed in range(3):
        make_images(seed=seed)
    lines = samples_by_line(rows_of(find_runs([tmp_path]).finished))
    columns = find_columns(lines)
    splits = ["iid", "set.1", "set-c"]
    assert list(dict.fromkeys(split for split, _ in columns)) == splits
    axes = seed_figure(lines, columns).axes[0]
    ((left, _), (right, _)) = axes.containers[0].lines[2][0].get_segments()[0]
    samples = lines["ERM"]["iid", "nll"]
    assert (left + right) / 2 == pytest.approx(mean(samples))
    assert (right - left) / 2 == pytest.approx(deviation(samples))
    assert sorted(axes.lines[0].get_xdata()) == pytest.approx(sorted(samples.values()))


def test_one_seed_has_no_spread_to_draw(tmp_path: Path, make_images: MakeRun) -> None:
    make_images()
    assert write_seeds(find_runs([tmp_path]).finished, tmp_path) == []


def test_training_takes_as_long_as_its_stages_together() -> None:
    rows = [
        Row("r", "m", "default", s, "cost", f"train_seconds:{n}", 1.0 + s)
        for s in (0, 1)
        for n in "ab"
    ]
    total = [row for row in with_totals(rows) if row.metric == "train_seconds"]
    assert [(row.seed, row.value) for row in total] == [(0, 2.0), (1, 4.0)]


def bars(figure: Figure) -> list[list[float]]:
    patches = [[p for p in axes.patches if isinstance(p, Rectangle)] for axes in figure.axes]
    return [[bar.get_width() for bar in panel] for panel in patches]


def test_bars_are_as_long_as_what_methods_cost(
    tmp_path: Path, make_images: MakeRun, undrawn: list[Figure]
) -> None:
    for seed in range(2):
        make_images(seed=seed)
    write_costs(find_runs([tmp_path]).finished, tmp_path)
    prediction, training = undrawn
    assert bars(prediction) == [[5.0], [pytest.approx(1 + 0.5 / 9)], [2.0]]
    assert bars(training) == [[12.5], [2.0]]
    assert prediction.axes[0].get_title(loc="left") == "parameters, millions"


def test_machines_are_not_averaged_but_compared(
    tmp_path: Path, make_images: MakeRun, undrawn: list[Figure]
) -> None:
    for seed, device in enumerate(("small GPU", "large GPU")):
        run = make_images(seed=seed)
        file = run / "environment.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "latency device": device}))
    runs = find_runs([tmp_path]).finished
    assert [machine_of(run) for run in runs] == ["small GPU", "large GPU"]
    pictures = write_costs(runs, tmp_path)
    assert bars(undrawn[0])[1] == [1.0, pytest.approx(1 + 1 / 9)]
    assert "On small GPU and on large GPU." in pictures[0].caption


@pytest.mark.parametrize("write", [write_boxes, write_severities, write_costs])
def test_what_was_not_measured_is_not_drawn(
    tmp_path: Path, make: MakeRun, write: Callable[..., list[object]]
) -> None:
    make(drawn=False)
    assert write(find_runs([tmp_path]).finished, tmp_path) == []
