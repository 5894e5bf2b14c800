"""Progress bars where there is no terminal: in notebooks, without any package, and in files."""

import IPython.display
import nbclient
import nbformat
import pytest

from density_softmax.engine.progress import Bars

CELL = """
import sys, warnings
from density_softmax.engine.progress import Bars
sys.modules["ipywidgets"] = None  # as if it were not installed
with warnings.catch_warnings():
    warnings.simplefilter("error")
    with Bars({show}) as bars:
        bar = bars.add("density", 3)
        for loss in range(3):
            bar.note(f"loss {{loss}}")
            bar.advance()
"""


def executed(show):
    cell = nbformat.v4.new_code_cell(CELL.format(show=show))
    notebook = nbformat.v4.new_notebook(cells=[cell])
    nbclient.NotebookClient(notebook, timeout=120).execute()
    return notebook.cells[0].outputs


def test_a_notebook_shows_bars_as_they_are_last_without_further_packages():
    (output,) = executed(show=True)
    assert output.output_type == "display_data"
    assert "density" in output.data["text/plain"]
    assert "3/3 loss 2" in output.data["text/plain"]


def test_a_silent_notebook_shows_nothing():
    assert executed(show=False) == []


@pytest.fixture
def now(monkeypatch):
    """The seconds of a clock that only the test moves."""
    seconds = [0.0]
    monkeypatch.setattr("density_softmax.engine.progress.time.monotonic", lambda: seconds[0])
    return seconds


@pytest.fixture
def shown(monkeypatch):
    """What a notebook is given to show, from first to last."""
    drawings = []

    class Handle:
        def update(self, data, raw):
            drawings.append(data["text/plain"])

    def display(data, raw, display_id):
        drawings.append(data["text/plain"])
        return Handle()

    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(IPython.display, "display", display)
    return drawings


def test_bars_are_drawn_while_they_grow_but_not_at_every_step(shown, now):
    with Bars(True) as bars:
        bar = bars.add("density", 1000)
        for _ in range(1000):
            now[0] += 0.01
            bar.advance()
    assert 20 <= len(shown) <= 45
    assert "1000/1000" in shown[-1]


def test_a_file_gets_a_line_a_minute_with_epoch_and_loss(capsys, now):
    with Bars(True) as bars:
        bars.add("count", 1).advance()
        bar = bars.add("train", 300)
        for step in range(300):
            now[0] += 1.0
            bar.note(f"epoch {step // 30} loss 1.50")
            bar.advance()
        during = capsys.readouterr().out.splitlines()
    after = capsys.readouterr().out
    assert [line.partition(",")[0] for line in during] == [
        f"train {step}/300 epoch {step // 30} loss 1.50" for step in (59, 119, 179, 239, 299)
    ]
    assert all(line.endswith(" left") for line in during)
    assert "300/300" in after  # rich's bars, at the end


@pytest.mark.parametrize(("show", "seconds"), [(True, 0.5), (False, 60.0)])
def test_a_file_gets_no_lines_of_a_short_stage_or_of_silent_bars(capsys, now, show, seconds):
    with Bars(show) as bars:
        bar = bars.add("train", 100)
        for _ in range(100):
            now[0] += seconds
            bar.advance()
        assert capsys.readouterr().out == ""
