from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from density_softmax.report.figures import FIGURES, write_figures
from density_softmax.report.runs import find_runs

MakeRun = Callable[..., Path]


@pytest.mark.usefixtures("undrawn")
def test_what_the_runs_have_no_data_for_is_left_out(tmp_path: Path, make: MakeRun) -> None:
    make(drawn=False)
    assert write_figures(find_runs([tmp_path]).finished, tmp_path) == {}
    make(seed=1)  # only this one can be drawn, although it is not the first
    sections = write_figures(find_runs([tmp_path]).finished, tmp_path)
    assert list(sections) == ["Surfaces", "Seeds", "Training curves"]


def test_all_that_the_runs_have_is_drawn_once_and_explained(
    tmp_path: Path, make_images: MakeRun, undrawn: list[Figure]
) -> None:
    for seed in range(2):
        make_images("density_softmax", seed=seed)
    make_images("density_softmax", "penalty=none", config={"penalty": {"kind": "none"}})
    make_images("density_softmax", "data.augment=false")
    sections = write_figures(find_runs([tmp_path]).finished, tmp_path)
    assert set(FIGURES) - set(sections) == {"Surfaces", "Training curves"}
    pictures = [picture for pictures in sections.values() for picture in pictures]
    assert len(pictures) == len(undrawn) == len({picture.file for picture in pictures})
    for picture in pictures:
        assert picture.title.endswith((": pictures", ": pictures (augment=false)"))
        assert picture.caption.endswith(".")
