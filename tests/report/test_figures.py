import inspect
import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from comparison import finished
from matplotlib.figure import Figure

from density_softmax.report import figures
from density_softmax.report.figures import SECTIONS, write_figures
from density_softmax.runs.run import Run

MakeRun = Callable[..., Path]


@pytest.mark.usefixtures("undrawn")
def test_what_the_runs_have_no_data_for_is_left_out(tmp_path: Path, make: MakeRun) -> None:
    make(drawn=False)
    assert write_figures(finished(tmp_path), tmp_path) == {}
    make(seed=1)  # only this one can be drawn, although it is not the first
    sections = write_figures(finished(tmp_path), tmp_path)
    assert list(sections) == ["Surfaces", "Seeds", "Training curves"]


def test_all_that_the_runs_have_is_drawn_once_and_explained(
    tmp_path: Path, make_images: MakeRun, undrawn: list[Figure]
) -> None:
    for seed in range(2):
        make_images("density_softmax", seed=seed)
    make_images("density_softmax", ["method.penalty=none"])
    make_images("density_softmax", ["data.augment=false"])
    sections = write_figures(finished(tmp_path), tmp_path)
    assert set(SECTIONS) - set(sections) == {"Surfaces", "Training curves"}
    pictures = [picture for pictures in sections.values() for picture in pictures]
    assert len(pictures) == len(undrawn) == len({picture.file for picture in pictures})
    for picture in pictures:
        assert picture.title.endswith((": digits", ": digits (augment=false)"))
        assert picture.caption.endswith(".")


def test_sets_of_any_name_are_drawn(tmp_path: Path, make_images: MakeRun) -> None:
    run = Run.at(make_images("density_softmax"))
    name = "a$x_{1$}\n[bold] $"
    run.save_rows([row._replace(split=row.split.replace("set.1", name)) for row in run.rows()])
    (run.path / "predictions" / "set.1.safetensors").rename(
        run.path / "predictions" / f"{name}.safetensors"
    )
    sections = write_figures(finished(tmp_path), tmp_path / "out")
    titles = [picture.title for picture in sections["Calibration"]]
    assert "Reliability, a$x_{1$} [bold] $: digits" in titles


def test_every_figure_is_a_module_with_one_silhouette() -> None:
    names = [name for names in SECTIONS.values() for name in names]
    modules = {module.name for module in pkgutil.iter_modules(figures.__path__)}
    assert sorted(names) == sorted(modules)
    for name in names:
        signature = inspect.signature(import_module(f"{figures.__name__}.{name}").draw)
        assert str(signature) == "(setting: 'Setting') -> 'Iterator[Drawing]'"
