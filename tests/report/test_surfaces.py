from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from comparison import finished, setting
from matplotlib.figure import Figure
from PIL import Image

from density_softmax.data.toy import GRID_SIZE, Toy, grid
from density_softmax.files import StorageError
from density_softmax.report import figures
from density_softmax.report.figures import Drawing, save_figure, surfaces, write_figures
from density_softmax.report.figures.surfaces import (
    MEASURES,
    Panel,
    surface_figure,
    surface_panel,
)
from density_softmax.report.style import COLUMN, PAGE, paper_style

MakeRun = Callable[..., Path]


def panel(label: str, probability: float | None = None) -> Panel:
    """A smooth surface, or a flat one."""
    p = 1 / (1 + np.exp(-4 * grid()[:, 1])) if probability is None else np.full(10_000, probability)
    points = np.zeros((3, 2))
    return Panel(label, p.reshape(GRID_SIZE, GRID_SIZE), (points, points, points))


def draw(*panels: Panel) -> Figure:
    with paper_style():
        return surface_figure(panels, MEASURES["entropy"])


def test_entropy_is_finite_where_a_class_is_certain() -> None:
    p = np.array([0.0, 1.0, 1.0 + 1e-7, 0.5])
    assert MEASURES["entropy"].of(p).tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("name", MEASURES)
def test_measures_are_zero_when_certain_largest_at_a_half_and_symmetric(name: str) -> None:
    measure, p = MEASURES[name], np.linspace(0, 1, 101)
    values = measure.of(p)
    assert values[0] == values[-1] == 0
    assert values.argmax() == 50
    assert values.max() == pytest.approx(measure.largest)
    np.testing.assert_allclose(values, values[::-1], atol=1e-12)


@pytest.mark.parametrize("num_panels", [1, 2, 3, 4, 7, 16, 18])
def test_panels_fill_the_page_without_overlap(num_panels: int) -> None:
    figure = draw(*(panel(f"Method number {n} (with=variant)") for n in range(num_panels)))
    assert figure.get_size_inches()[0] == (COLUMN if num_panels <= 2 else PAGE)
    frames = [axes.get_position() for axes in figure.axes]  # those of the scales last
    assert len(frames) == 2 * num_panels + 2
    for n, frame in enumerate(frames):
        assert frame.x0 >= 0
        assert frame.x1 <= 1
        assert frame.y0 >= 0
        assert not any(frame.overlaps(other) for other in frames[:n])


def test_a_page_holds_eighteen_methods() -> None:
    assert draw(*(panel(f"method {n}") for n in range(18))).get_size_inches()[1] < 9


def test_each_method_has_a_column_and_all_share_two_scales() -> None:
    figure = draw(panel("one"), panel("two"), panel("three"))
    assert len(figure.axes) == 2 * 3 + 2
    assert [axes.get_title(loc="left") for axes in figure.axes[:3]] == ["one", "two", "three"]
    for upper, lower in zip(figure.axes[:3], figure.axes[3:6], strict=True):
        assert upper.get_position().x0 == lower.get_position().x0
        assert upper.get_position().y0 > lower.get_position().y1


def test_a_panel_is_the_right_way_up_and_has_points_of_every_kind() -> None:
    p = torch.as_tensor(grid()[:, 1]).sigmoid()
    made = surface_panel("slope", torch.stack([1 - p, p], dim=1), Toy().load(0))
    assert (np.diff(made.probability, axis=0) > 0).all()
    upper, lower, cluster = (points[:, 1].mean() for points in made.points)
    assert upper > lower > cluster


def test_the_boundary_is_the_line_between_the_classes() -> None:
    (line,) = draw(panel("slope")).axes[0].collections
    heights = np.concatenate([path.vertices for path in line.get_paths()])[:, 1]
    np.testing.assert_allclose(heights, 0, atol=1e-6)


@pytest.mark.parametrize("probability", [0.5, 0.0, 1.0])
def test_a_flat_surface_has_no_boundary(probability: float) -> None:
    assert not draw(panel("flat", probability)).axes[0].collections


def test_a_plain_of_one_half_has_no_rim() -> None:
    plain = panel("plain")
    plain.probability[:, : GRID_SIZE // 2] = 0.5
    (line,) = draw(plain).axes[0].collections
    xs = np.concatenate([path.vertices for path in line.get_paths()])[:, 0]
    assert (xs > 0).all()


def test_each_shape_has_its_figure(
    tmp_path: Path, make: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    make()
    make(changes=["data.shape=two_ovals"])
    monkeypatch.setattr(surfaces, "MEASURES", {"entropy": MEASURES["entropy"]})
    monkeypatch.setattr(figures, "SECTIONS", {"Surfaces": ("surfaces",)})
    pictures = write_figures(finished(tmp_path), tmp_path)["Surfaces"]
    assert [picture.file.name for picture in pictures] == ["two_moons-entropy", "two_ovals-entropy"]
    for picture in pictures:
        with Image.open(f"{picture.file}.png") as image:
            assert image.width == round(200 * picture.width)
        assert len(picture.preview) < 1e6


def test_other_data_of_the_same_shape_have_files_of_their_own(
    tmp_path: Path, make: MakeRun
) -> None:
    make(changes=["data.num_points=500"])
    stems = [drawing.stem for drawing in surfaces.draw(setting(tmp_path))]
    assert stems == [f"toy-num_points-500-two_moons-{name}" for name in MEASURES]


def drawing() -> Drawing:
    return Drawing(draw(panel("one")), "figure", "title", "caption")


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        with paper_style():
            save_figure(drawing(), tmp_path / folder)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with paper_style(), pytest.raises(StorageError, match=r"figure\.svg: cannot be written"):
        save_figure(drawing(), tmp_path / "taken")


def test_runs_without_a_grid_are_not_drawn(tmp_path: Path, make: MakeRun) -> None:
    (make() / "predictions" / "grid.safetensors").unlink()
    assert list(surfaces.draw(setting(tmp_path))) == []
