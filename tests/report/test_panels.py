from collections.abc import Sequence

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from density_softmax.report.names import Label
from density_softmax.report.style import (
    COLUMN,
    LOOKS,
    PAGE,
    block_figure,
    lined_figure,
    panel_figure,
    paper_style,
)

CHANGES = ("density=gaussian_mixture", "scale.budget=0.01", "head=null")
LONG = Label("Natural Posterior Network", CHANGES)


def assert_apart(figure: Figure, panels: Sequence[Axes]) -> None:
    """No panel, with its title and tick labels, covers another or leaves the figure."""
    boxes = [box for axes in panels if (box := axes.get_tightbbox()) is not None]
    for number, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1 + 1
        assert not any(box.overlaps(other) for other in boxes[:number])


@pytest.mark.parametrize("num_panels", [1, 2, 5, 17])
def test_panels_and_their_titles_stay_apart(num_panels: int) -> None:
    with paper_style():
        panels = panel_figure([LONG] * num_panels, height=0.8)
        assert_apart(panels.figure, panels.axes)
    width = panels.figure.get_size_inches()[0]
    assert width == (COLUMN if panels.num_columns <= 2 else PAGE)


def test_a_title_too_long_for_its_panel_ends_in_dots() -> None:
    panels = panel_figure([LONG * 4] * 4, height=1)
    title = panels.axes[0].get_title(loc="left")
    assert title.endswith("…")
    assert title.count("\n") == 3


def test_the_outer_panels_are_known() -> None:
    panels = panel_figure(["title"] * 5, height=1, most_columns=3)
    assert [axes in panels.left for axes in panels.axes] == [True, False, False, True, False]
    assert [axes in panels.lowest for axes in panels.axes] == [False, False, True, True, True]


@pytest.mark.parametrize("num_columns", [1, 3])
def test_blocks_have_a_legend_each_that_covers_no_panel(num_columns: int) -> None:
    groups = [[LONG] * 8, ["ERM", "DUQ"]]
    with paper_style():
        titles = ["NLL", "ECE", "mECE"]
        figure, blocks = block_figure(groups, titles, num_columns=num_columns, height=1)
        panels = [axes for block in blocks for axes in block]
        assert_apart(figure, panels)
        boxes = [legend.get_window_extent() for legend in figure.legends]
    shown = [[text.get_text() for text in legend.get_texts()] for legend in figure.legends]
    assert [len(labels) for labels in shown] == [8, 2]
    for box in boxes:
        assert not any(box.overlaps(axes.get_window_extent()) for axes in panels)
        assert figure.bbox.y0 <= box.y0
        assert box.x1 <= figure.bbox.x1


def test_lined_panels_share_their_labels() -> None:
    with paper_style():
        figure, panels = lined_figure(["ERM", LONG], ["NLL", "ECE", "cNLL"], num_columns=3)
        assert_apart(figure, panels)
    labels = [[label.get_text() for label in axes.get_yticklabels()] for axes in panels]
    assert labels[0][0] == "ERM"
    assert labels[0][1].endswith("…")
    assert LONG.startswith(labels[0][1].rstrip("…"))
    assert labels[1:] == [["", ""], ["", ""]]
    assert panels[0].yaxis_inverted()


def test_no_two_lines_look_alike_even_in_grey() -> None:
    assert len({look.color for look in LOOKS}) == len({look.marker for look in LOOKS}) == len(LOOKS)
    assert len({(str(look.dashes), look.marker) for look in LOOKS}) == len(LOOKS)
