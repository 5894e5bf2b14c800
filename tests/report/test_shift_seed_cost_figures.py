import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from comparison import frame, setting
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from density_softmax.methods import MethodConfig
from density_softmax.report.figures import costs, seeds, shifts
from density_softmax.report.figures.costs import _machine_of
from density_softmax.report.figures.seeds import _find_columns, _seed_figure
from density_softmax.report.figures.shifts import _box_figure, _find_boxes, _mean_over_types
from density_softmax.report.frame import Spread, find_keys, over_seeds, with_shared_means
from density_softmax.runs.run import Run
from density_softmax.types import Row

MakeRun = Callable[..., Path]


def test_a_box_holds_the_mean_over_seeds_of_every_type(
    tmp_path: Path, make_images: MakeRun
) -> None:
    for seed in range(2):
        make_images(seed=seed)
    found = setting(tmp_path)
    boxes = _find_boxes(found.frame, found.splits.corrupted["set-c"], "ece")["ERM"]
    assert list(boxes) == [0, 1, 2, 3]
    rows = [row for run in found.runs for row in run.rows()]
    for kind, value in zip(("fog", "glass_blur"), boxes[2], strict=True):
        each = [r.value for r in rows if (r.split, r.metric) == (f"set-c/{kind}/2", "ece")]
        assert value == pytest.approx(np.mean(each))


def test_whiskers_reach_the_extremes_and_the_median_is_inside() -> None:
    boxes = {0: [0.1], 1: [0.2, 0.9, 0.3, 0.4]}
    axes = _box_figure({"ece": {"ERM": boxes}}, ["ERM"]).axes[0]
    heights = np.concatenate([line.get_ydata() for line in axes.lines if len(line.get_ydata())])
    assert {0.1, 0.2, 0.9, 0.35} <= {round(float(h), 6) for h in heights}


def test_few_methods_share_one_figure_of_boxes_and_many_have_one_for_each_metric(
    tmp_path: Path, make_images: MakeRun
) -> None:
    *methods, last = list(MethodConfig.members)[:9]
    for method in methods:
        make_images(method)
    few, _ = shifts.draw(setting(tmp_path))
    assert few.stem == "digits-set-c-boxes"
    make_images(last)
    *many, _ = shifts.draw(setting(tmp_path))
    stems = [f"digits-set-c-boxes-{metric}" for metric in ("nll", "accuracy", "ece", "mece")]
    assert [drawing.stem for drawing in many] == stems


def value_of(rows: pd.DataFrame, split: str, metric: str, line: str = "ERM") -> float:
    (value,) = rows.query("split == @split and metric == @metric and line == @line")["value"]
    return float(value)


def test_means_over_types_are_those_of_the_rows(tmp_path: Path, make_images: MakeRun) -> None:
    make_images(seed=3)
    found = setting(tmp_path)
    levels = _mean_over_types(found.frame, found.splits.corrupted["set-c"], "nll")["ERM"]
    overall = np.mean([levels[severity].mean for severity in (1, 2, 3)])
    assert overall == pytest.approx(value_of(found.frame, "set-c", "cnll"))
    assert levels[0].mean == value_of(found.frame, "iid", "nll")


def test_a_seed_that_lacks_a_type_does_not_count() -> None:
    values = {("s/a/1", 0): 1.0, ("s/a/1", 1): 2.0, ("s/b/1", 0): 3.0}
    rows = [
        Row("r", "deterministic", "default", seed, split, "nll", value)
        for (split, seed), value in values.items()
    ]
    levels = _mean_over_types(frame(rows), {1: ["s/a/1", "s/b/1"]}, "nll")
    assert levels == {"ERM": {1: Spread(2.0, None)}}


def drop(run: Path, split: str) -> None:
    rows = [row for row in Run.at(run).rows() if row.split != split]
    Run.at(run).save_rows(rows)


def test_a_shift_that_one_run_lacks_is_left_out_of_all_and_takes_no_line_away(
    tmp_path: Path, make_images: MakeRun
) -> None:
    make_images("sngp")
    drop(make_images(), "set-c/fog/2")
    found = setting(tmp_path)
    levels = found.splits.corrupted["set-c"]
    assert levels[2] == ["set-c/glass_blur/2"]
    for means in _mean_over_types(found.frame, levels, "nll").values():
        assert list(means) == [0, 1, 2, 3]
    assert [len(boxes[2]) for boxes in _find_boxes(found.frame, levels, "nll").values()] == [1, 1]
    shared = with_shared_means(found.frame)
    for name in found.labels:
        members = [f"set-c/{k}/{n}" for k in ("fog", "glass_blur") for n in (1, 2, 3)]
        each = [value_of(found.frame, s, "ece", name) for s in members if s != "set-c/fog/2"]
        assert value_of(shared, "set-c", "cece", name) == pytest.approx(np.mean(each))


def test_a_set_that_is_shifted_in_one_run_may_be_ood_in_another() -> None:
    shifted = [
        Row("r", method, "default", 0, split, "nll", 1.0)
        for method, kinds in {"sngp": ("fog", "snow"), "ddu": ("fog",)}.items()
        for split in (f"set-c/{kind}/1" for kind in kinds)
    ]
    ood = Row("r", "duq", "default", 0, "set-c", "auroc:confidence", 0.9)
    shared = with_shared_means(frame([*shifted, ood]))
    assert value_of(shared, "set-c", "auroc:confidence", "DUQ") == 0.9


def test_severities_have_a_line_for_each_method(tmp_path: Path, make_images: MakeRun) -> None:
    for seed in range(2):
        make_images(seed=seed)
        make_images("sngp", seed=seed)
    *_, drawing = shifts.draw(setting(tmp_path))
    axes = drawing.figure.axes
    assert [each.get_title(loc="left") for each in axes] == ["NLL", "Accuracy", "ECE"]
    assert [len(each.containers) for each in axes] == [2, 2, 2]


def test_error_bars_are_one_standard_deviation_over_seeds(
    tmp_path: Path, make_images: MakeRun
) -> None:
    for seed in range(3):
        make_images(seed=seed)
    found = setting(tmp_path)
    columns = _find_columns(find_keys(found.frame))
    splits = ["iid", "set.1", "set-c"]
    assert list(dict.fromkeys(split for split, _ in columns)) == splits
    axes = _seed_figure(found.frame, found.labels, columns).axes[0]
    ((left, _), (right, _)) = axes.containers[0].lines[2][0].get_segments()[0]
    values = found.frame.query("split == 'iid' and metric == 'nll'")["value"].to_list()
    assert (left + right) / 2 == pytest.approx(np.mean(values))
    assert (right - left) / 2 == pytest.approx(np.std(values, ddof=1))
    assert sorted(axes.lines[0].get_xdata()) == pytest.approx(sorted(values))


def test_one_seed_has_no_spread_to_draw(tmp_path: Path, make_images: MakeRun) -> None:
    make_images()
    make_images("sngp")
    assert list(seeds.draw(setting(tmp_path))) == []


def test_training_takes_as_long_as_its_stages_together() -> None:
    rows = [
        Row("r", "sngp", "default", s, "cost", f"train_seconds:{n}", 1.0 + s)
        for s in (0, 1)
        for n in "ab"
    ]
    total = over_seeds(frame(rows).query("metric == 'train_seconds'"), "seed")
    assert {seed: spread.mean for seed, spread in total.items()} == {0: 2.0, 1: 4.0}


def bars(figure: Figure) -> list[list[float]]:
    patches = [[p for p in axes.patches if isinstance(p, Rectangle)] for axes in figure.axes]
    return [[bar.get_width() for bar in panel] for panel in patches]


def test_bars_are_as_long_as_what_methods_cost(tmp_path: Path, make_images: MakeRun) -> None:
    for seed in range(2):
        make_images(seed=seed)
    prediction, training = (drawing.figure for drawing in costs.draw(setting(tmp_path)))
    assert bars(prediction) == [[5.0], [pytest.approx(1 + 0.5 / 9)], [2.0]]
    assert bars(training) == [[12.5], [2.0]]
    assert prediction.axes[0].get_title(loc="left") == "parameters, millions"


def test_machines_are_not_averaged_but_compared(tmp_path: Path, make_images: MakeRun) -> None:
    for seed, device in enumerate(("small GPU", "large GPU")):
        run = make_images(seed=seed)
        file = run / "environment.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "latency device": device}))
    found = setting(tmp_path)
    assert [_machine_of(run) for run in found.runs] == ["small GPU", "large GPU"]
    drawing, _ = costs.draw(found)
    assert bars(drawing.figure)[1] == [1.0, pytest.approx(1 + 1 / 9)]
    assert "On small GPU and on large GPU." in drawing.caption


@pytest.mark.parametrize("figure", [shifts, costs])
def test_what_was_not_measured_is_not_drawn(
    tmp_path: Path, make: MakeRun, figure: ModuleType
) -> None:
    make(drawn=False)
    assert list(figure.draw(setting(tmp_path))) == []
