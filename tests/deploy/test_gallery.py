"""The page of the most and the least typical inputs, in one file."""

import html
import re

import numpy as np
import pytest
from exported_models import IMAGE_SHAPE
from PIL import Image
from typer.testing import CliRunner

import density_softmax as ds
from density_softmax.cli.main import app
from density_softmax.serve.answer import Answer
from density_softmax.serve.card import Card
from density_softmax.serve.gallery import Gallery
from density_softmax.serve.inputs import Chunk
from density_softmax.serve.outputs import Record


def predict(*arguments):
    return CliRunner().invoke(app, ["predict", *map(str, arguments)])


def test_the_gallery_keeps_the_ends_of_any_number_of_batches():
    values = np.random.default_rng(0).permutation(100).astype(np.float32)
    gallery = Gallery(Card("1", "duq", ("a", "b"), (1,)), num_shown=5)
    for part in np.split(values, 10):
        x, zero = part[:, None], np.zeros(10, np.float32)
        records = [Record(str(v), "a", 0.5, 0.0, float(v), "in", "") for v in part]
        answer = Answer(np.full((10, 2), 0.5, np.float32), zero, part)
        gallery.add(Chunk([*map(str, part)], x, [""] * 10), answer, records)
    assert [entry.record.epistemic for entry in gallery.least_typical] == [99, 98, 97, 96, 95]
    assert [entry.record.epistemic for entry in gallery.most_typical] == [0, 1, 2, 3, 4]


def test_a_page_of_images_is_one_file_with_escaped_names_and_bars(image_file, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in ("a.png", "<b>.png"):
        pixels = rng.integers(0, 256, (*IMAGE_SHAPE[1:], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    (folder / "broken.png").write_bytes(b"no image")
    page = tmp_path / "page.html"
    done = predict(image_file, folder, "--out", tmp_path / "out.csv", "--page", page)
    assert done.exit_code == 0, done.output
    text = page.read_text(encoding="utf-8")
    assert text.count("data:image/jpeg;base64,") == 4  # each among the most and the least typical
    assert "&lt;b&gt;.png" in text
    assert "<b>.png" not in text
    assert "3 inputs, 1 of them unreadable" in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    for expert in ds.Predictor(image_file).card.experts:
        assert expert in text


def test_the_columns_of_a_table_add_up_to_what_a_row_has_beyond_the_most_typical(
    vector_file, tmp_path
):
    rows = np.random.default_rng(0).normal((10, -1), (2, 0.5), (30, 2))
    rows[7] = 40, 3
    table = tmp_path / "rows.csv"
    np.savetxt(table, rows, delimiter=",", header="length,width", comments="")
    page = tmp_path / "page.html"
    assert predict(vector_file, table, "--page", page).exit_code == 0
    text = html.unescape(page.read_text(encoding="utf-8"))
    strangest = text[text.index("<tbody>") :].partition("</tr>")[0]
    assert "<th>7</th>" in strangest
    assert ">40<" in strangest
    effects = [float(found) for found in re.findall(r'title="([+-][\d.e+-]+)"', strangest)]
    predictor = ds.Predictor(vector_file)
    epistemic = predictor.predict(predictor.prepare(rows)).epistemic
    assert sum(effects) == pytest.approx(epistemic[7] - epistemic.min(), rel=0.01)


@pytest.mark.parametrize("name", ["page.txt", "folder.html"])
def test_a_page_that_cannot_be_is_refused_before_anything_is_predicted(name, vector_file, tmp_path):
    (tmp_path / "folder.html").mkdir()
    table = tmp_path / "rows.csv"
    table.write_text("length,width\n1,2\n")
    out = tmp_path / "out.csv"
    done = predict(vector_file, table, "--out", out, "--page", tmp_path / name)
    assert done.exit_code != 0
    assert "--page" in str(done.exception or done.output)
    assert not out.exists()
