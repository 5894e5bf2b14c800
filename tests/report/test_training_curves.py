from collections.abc import Callable
from pathlib import Path

import pytest
from comparison import finished, setting

from density_softmax.files import StorageError
from density_softmax.report.figures.curves import StageCurves, _curve_figure, _read_curves, draw
from density_softmax.report.style import paper_style

MakeRun = Callable[..., Path]


def test_curves_are_what_the_epochs_reported(tmp_path: Path, make: MakeRun) -> None:
    make()
    (stage,) = _read_curves(finished(tmp_path)[0])
    assert (stage.label, stage.stage) == ("ERM", "train")
    assert stage.curves["loss"] == [(n, 1 / n) for n in range(1, 6)]
    assert stage.curves["heldout_nll"] == [(n, 2 / n) for n in range(1, 6)]


def test_a_stage_of_one_epoch_is_no_curve(tmp_path: Path, make: MakeRun) -> None:
    file = make() / "epochs.csv"
    file.write_text("stage,epoch,metric,value\nhead,1,loss,0.5\n")
    runs = finished(tmp_path)
    assert _read_curves(runs[0]) == []
    assert list(draw(setting(tmp_path))) == []


def test_a_run_without_epochs_has_no_curves(tmp_path: Path, make: MakeRun) -> None:
    (make() / "epochs.csv").unlink()
    assert _read_curves(finished(tmp_path)[0]) == []


@pytest.mark.parametrize("line", ["train,1,loss,much", "train,1,loss", "train,one,loss,1.0"])
def test_epochs_that_cannot_be_read_are_named(tmp_path: Path, make: MakeRun, line: str) -> None:
    (make() / "epochs.csv").write_text(f"stage,epoch,metric,value\n{line}\n")
    with pytest.raises(StorageError, match=r"epochs\.csv"):
        _read_curves(finished(tmp_path)[0])


@pytest.mark.parametrize("num_stages", [1, 2, 5, 22])
def test_each_stage_has_a_panel(num_stages: int) -> None:
    curves = {"loss": [(1, -3.0), (2, -4.0)], "heldout_nll": [(1, 1.0), (2, 0.5)]}
    stages = [StageCurves("Method", f"stage{n}", curves) for n in range(num_stages)]
    with paper_style():
        figure = _curve_figure(stages)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title.split()[-1] for title in titles] == [f"stage{n}" for n in range(num_stages)]
    assert all(axes.get_position().y0 >= 0 for axes in figure.axes)
    assert all(axes.get_position().x1 <= 1 for axes in figure.axes)
