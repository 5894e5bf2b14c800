"""Strips of corruption examples: drawn where the images can be read."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from comparison import setting

from density_softmax.data.corruptions import corrupt
from density_softmax.data.readers import Digits
from density_softmax.recipes import get_recipe
from density_softmax.report.figures import corruptions
from density_softmax.runs.run import Run
from density_softmax.types import Row

MakeRun = Callable[..., Path]


def make_corrupted(path: Path, splits: Sequence[str]) -> None:
    run = Run(get_recipe("digits", "deterministic"), 0, path)
    run.claim(resume=False)
    row = partial(Row, "digits", "deterministic", "default", 0)
    run.save_rows([row(split, "nll", 0.5) for split in splits])


def test_a_strip_shows_one_image_as_it_was_and_at_each_severity(tmp_path: Path) -> None:
    kinds, severities = ("fog", "contrast"), (1, 3)
    make_corrupted(tmp_path, [f"digits-c/{k}/{s}" for k in kinds for s in severities])
    (drawing,) = corruptions.draw(setting(tmp_path))
    assert [axes.get_title(loc="left") for axes in drawing.figure.axes] == list(kinds)
    clean = Digits().read("test").x[:1].permute(0, 2, 3, 1).numpy()
    for kind, axes in zip(kinds, drawing.figure.axes, strict=True):
        expected = [clean[0], *(corrupt(clean, kind, severity)[0] for severity in severities)]
        shown = [np.asarray(image.get_array()) for image in axes.images]
        assert [label.get_text() for label in axes.get_xticklabels()] == ["test", "1", "3"]
        for ours, theirs in zip(shown, expected, strict=True):
            np.testing.assert_allclose(ours, theirs[..., 0] / 255, atol=1e-6)


@pytest.mark.parametrize("name", ["set-c", "cifar10-c"])
def test_what_cannot_be_read_here_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("DENSITY_SOFTMAX_DATA", str(tmp_path / "nothing"))
    make_corrupted(tmp_path / "run", [f"{name}/fog/{severity}" for severity in (1, 2)])
    assert not list(corruptions.draw(setting(tmp_path)))


def test_toy_data_have_no_images(tmp_path: Path, make: MakeRun) -> None:
    make()
    assert not list(corruptions.draw(setting(tmp_path)))
