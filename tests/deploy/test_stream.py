"""Files in, records out: batch by batch, whatever is broken, in every format."""

import csv
import dataclasses
import io
import json
import os
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from exported_models import TABLE, draw
from PIL import Image

import density_softmax as ds
from density_softmax.cli import main, monitoring
from density_softmax.data.folders import ImageFiles
from density_softmax.errors import UserError
from density_softmax.files.tables import csv_reader
from density_softmax.serve.answer import Answer
from density_softmax.serve.card import Card, Normalisation
from density_softmax.serve.inputs import Chunk, read_chunks
from density_softmax.serve.outputs import Record, open_output
from density_softmax.serve.stream import _records, predict_stream

PLAIN = Card("1", "deterministic", ("a", "b"), (2,))
COLOUR = Card(
    "1", "deterministic", ("a", "b"), (3, 8, 8), Normalisation("images", (0,) * 3, (1,) * 3)
)


class Fake:
    """Answers everything, and remembers the largest batch it saw."""

    card = PLAIN
    largest = 0

    def predict(self, x):
        self.largest = max(self.largest, len(x))
        half = np.full((len(x), 2), 0.5, np.float32)
        epistemic = np.where(np.isfinite(x).all(1), x[:, 0], np.inf)
        return Answer(half, np.zeros(len(x), np.float32), epistemic.astype(np.float32))


@pytest.fixture
def folder(tmp_path):
    """Images of several sizes and modes, one broken, one that is none."""
    rng = np.random.default_rng(0)
    place = tmp_path / "photos"
    (place / "more").mkdir(parents=True)
    for name, shape in {"a.png": (8, 8, 3), "c.jpg": (30, 20, 3), "more/d.png": (9, 17)}.items():
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(place / name)
    (place / "b.png").write_bytes((place / "a.png").read_bytes()[:60])
    (place / "notes.txt").write_text("not an image")
    return place


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_broken_image_is_a_flagged_row_among_the_others(image_file, folder, tmp_path):
    found = predict_stream(ds.Predictor(image_file), folder, tmp_path / "out.csv", batch_size=2)
    rows = rows_of(tmp_path / "out.csv")
    assert [row["input"] for row in rows] == ["a.png", "b.png", "c.jpg", "more/d.png"]
    assert [row["flag"] for row in rows] == ["", "bad", "", ""]
    bad = rows[1]
    assert (bad["label"], bad["epistemic"], float(bad["confidence"])) == ("", "inf", 0.25)
    assert "b.png: cannot be decoded" in bad["note"]
    assert found.inputs == 4
    assert found.rate > 0


def test_images_are_decoded_and_cut_as_in_training(folder):
    (chunk,) = read_chunks(folder, COLOUR, batch_size=10)
    for name, x in zip(chunk.names, chunk.x, strict=True):
        if name != "b.png":
            files = ImageFiles(folder, np.array([name.encode()]), torch.zeros(1), (), size=8)
            np.testing.assert_array_equal(np.rint(x * 255), files.decode([0])[0])


GREY = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4


@pytest.mark.parametrize("name", ["deep.png", "deep.tif", "big_endian.tif", "deep.pgm"])
def test_sixteen_bits_are_scaled_to_eight(tmp_path, name):
    pixels = GREY.astype(">u2" if name == "big_endian.tif" else np.uint16) * 257
    Image.fromarray(pixels).save(tmp_path / name)
    (chunk,) = read_chunks(tmp_path / name, COLOUR, batch_size=10)
    np.testing.assert_array_equal(np.rint(chunk.x[0] * 255), np.stack([GREY] * 3))


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_pixels_of_an_unknown_range_are_a_flagged_row(tmp_path, dtype):
    Image.fromarray(GREY.astype(dtype)).save(tmp_path / "raw.tif")
    (chunk,) = read_chunks(tmp_path, COLOUR, batch_size=10)
    assert np.isnan(chunk.x).all()
    assert "32 bits have no known range: save it with 8 bits" in chunk.notes[0]


def test_a_single_image_is_an_input(folder):
    (chunk,) = read_chunks(folder / "a.png", COLOUR, batch_size=10)
    assert chunk.names == ["a.png"]


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("name", ["x", "x_test"])
def test_arrays_are_read_batch_by_batch(tmp_path, compressed, name):
    x = draw(10, 2).numpy()
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "x.npz", **{name: x, "y": np.zeros(10)})
    chunks = list(read_chunks(tmp_path / "x.npz", PLAIN, batch_size=4))
    assert [len(chunk.x) for chunk in chunks] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate([chunk.x for chunk in chunks]), x)
    assert [name for chunk in chunks for name in chunk.names] == list(map(str, range(10)))


def test_bytes_of_an_array_are_images(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x=pixels)
    (chunk,) = read_chunks(tmp_path / "x.npz", COLOUR, batch_size=4)
    np.testing.assert_allclose(chunk.x, pixels.transpose(0, 3, 1, 2) / 255, rtol=1e-6)


def test_columns_are_found_by_name_and_bad_cells_flagged(vector_file, tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text("id,width,length\n1,-1,10\n2,oops,10\n3\n4,-1.5,12\n")
    predictor = ds.Predictor(vector_file)
    (chunk,) = read_chunks(table, predictor.card, batch_size=10)
    np.testing.assert_array_equal(chunk.x[[0, 3]], [[0, 0], [1, -1]])
    assert np.isnan(chunk.x[[1, 2]]).all()
    assert chunk.notes[1] == "line 3, column 'width': 'oops' is not a finite number"
    assert chunk.notes[2] == "line 4 has 1 cells, line 1 has 3"


@pytest.mark.parametrize("header", ["", "first,second\n"])
def test_a_model_without_column_names_reads_all_columns(tmp_path, header):
    (tmp_path / "rows.csv").write_text(f"{header}1,2\n3,4\n")
    (chunk,) = read_chunks(tmp_path / "rows.csv", PLAIN, batch_size=10)
    np.testing.assert_array_equal(chunk.x, [[1, 2], [3, 4]])


@pytest.mark.parametrize("first", ["1,", "oops,2", "nan,nan"])
def test_a_first_line_with_a_number_is_a_row_however_bad(tmp_path, first):
    (tmp_path / "rows.csv").write_text(f"{first}\n3,4\n")
    (chunk,) = read_chunks(tmp_path / "rows.csv", PLAIN, batch_size=10)
    assert np.isnan(chunk.x[0]).all()
    np.testing.assert_array_equal(chunk.x[1:], [[3, 4]])


@pytest.mark.parametrize("header", ["1,2", "first,second", "width,id,length"])
def test_a_row_with_too_many_cells_is_flagged(vector_file, tmp_path, header):
    row = ["-1"] * len(header.split(","))
    lines = [header, ",".join([*row, "5"]), ",".join(row)]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    card = ds.Predictor(vector_file).card if "id" in header else PLAIN
    (chunk,) = read_chunks(tmp_path / "rows.csv", card, batch_size=10)
    assert np.isnan(chunk.x[-2]).all()
    assert np.isfinite(chunk.x[-1]).all()
    line, width = len(chunk.x) + (header != "1,2") - 1, len(row)
    assert chunk.notes[-2:] == [f"line {line} has {width + 1} cells, line 1 has {width}", ""]


def test_predictions_never_replace_their_input(tmp_path):
    table, link = tmp_path / "rows.csv", tmp_path / "link.csv"
    table.write_text("1,2\n")
    link.symlink_to(table)
    for out in (table, link):
        with pytest.raises(UserError, match=r"\.csv: is the input, which it would replace"):
            predict_stream(Fake(), table, out)
    assert table.read_text() == "1,2\n"


def chunk_of(*rows):
    x = np.array(rows, np.float32)
    return Chunk([str(row) for row in range(len(x))], x, [""] * len(x))


def test_no_more_than_a_batch_is_read_ahead():
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield chunk_of([1, 0])

    stream = _records(Fake(), endless(), None)
    for number in range(1, 5):
        next(stream)
        assert len(taken) == number


def test_a_long_table_is_never_in_memory_as_a_whole(tmp_path):
    table = tmp_path / "long.csv"
    with table.open("w") as file:
        file.writelines(f"{i},0\n" for i in range(10_000))
    model = Fake()
    found = predict_stream(model, table, tmp_path / "out.csv", batch_size=16)
    assert found.inputs == 10_000
    assert model.largest == 16


def policy(**options):
    """Of samples whose epistemic uncertainty is between 0 and 2."""
    samples = Answer(np.full((400, 2), 0.5), np.zeros(400), np.linspace(0, 2, 400))
    return ds.Policy.fit(None, (samples, np.arange(400) % 2), class_names="ab", **options)


def test_flags_follow_the_policy():
    chunk = chunk_of([1, 0], [3, 0], [np.inf, 0], [np.nan, 0])
    found = [
        [(r.flag, r.action) for r in batch]
        for each in (policy(false_alarms=0.05), None)
        for batch in _records(Fake(), [chunk], each)
    ]
    bad = [("bad", "unknown")] * 2
    assert found[0] == [("in", "answer"), ("out", "unknown"), *bad]
    assert found[1] == [("", ""), ("", ""), ("bad", ""), ("bad", "")]


@pytest.mark.parametrize(
    ("promised", "asked", "actions"),
    [
        ({}, None, ["answer", "unknown"]),  # as a Predictor decides, at 0.05
        ({}, 0.01, ["answer", "answer"]),
        ({"coverage": 0.9}, None, ["answer", "answer"]),
        ({"false_alarms": 0.01}, None, ["answer", "answer"]),
    ],
)
def test_who_promises_nothing_calls_one_in_twenty_unknown(tmp_path, promised, asked, actions):
    model, out = Fake(), tmp_path / "out.csv"
    model.card = dataclasses.replace(PLAIN, policy=policy(**promised))
    (tmp_path / "rows.csv").write_text("1,0\n1.95,0\n")
    predict_stream(model, tmp_path / "rows.csv", out, false_alarms=asked)
    assert [row["action"] for row in rows_of(out)] == actions


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_decisions_are_columns_of_every_format(tmp_path, suffix):
    model, out = Fake(), tmp_path / f"out.{suffix}"
    model.card = dataclasses.replace(PLAIN, policy=policy(coverage=0.9, false_alarms=0.05))
    (tmp_path / "rows.csv").write_text("1,0\n3,0\nx,0\n")
    predict_stream(model, tmp_path / "rows.csv", out)
    if suffix == "parquet":
        rows = pytest.importorskip("pyarrow.parquet").read_table(out).to_pylist()
    elif suffix == "jsonl":
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    else:
        rows = [row | {"set": json.loads(row["set"])} for row in rows_of(out)]
    assert [row["action"] for row in rows] == ["answer", "unknown", "unknown"]
    assert [row["set"] for row in rows] == [["a", "b"]] * 3
    expected = policy().typical.p_values(np.array([1.0, 3.0, np.inf]))
    assert [float(row["typicality"]) for row in rows] == pytest.approx(expected)
    reasons = ["", "unlike the calibration data", "the input or its prediction is not finite"]
    assert [row["reason"] for row in rows] == reasons


class FakeOfExperts(Fake):
    card = dataclasses.replace(PLAIN, experts=("layers/conv, 1", "energy"))

    def predict(self, x):
        outputs = super().predict(x).outputs()
        halves = np.stack([outputs["epistemic"] / 3] * 2, axis=1)
        return Answer.of({**outputs, "contributions": halves}, self.card.experts)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_what_experts_contribute_is_written_in_every_format(tmp_path, suffix):
    out = tmp_path / f"out.{suffix}"
    (tmp_path / "rows.csv").write_text("1,0\nx,0\n")
    predict_stream(FakeOfExperts(), tmp_path / "rows.csv", out)
    if suffix == "jsonl":
        rows = [json.loads(line)["contributions"] for line in out.read_text().splitlines()]
    elif suffix == "csv":
        rows = rows_of(out)
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(out).to_pylist()
    for name in FakeOfExperts.card.experts:
        good, bad = (row[name] for row in rows)
        assert float(good) == 0.333333
        assert bad is None if suffix == "jsonl" else float(bad) == np.inf


def test_a_policy_in_a_file_replaces_that_of_the_model(vector_file, tmp_path, monkeypatch):
    own = ds.Predictor(vector_file).card.policy
    x, files = draw(300, 2, seed=3).numpy(), [tmp_path / "rows.csv", tmp_path / "out.csv"]
    answer = ds.Predictor(vector_file).predict(x)
    fitted = ds.Policy.fit(None, (answer, answer.labels), coverage=0.9, false_alarms=0.2)
    fitted.save(tmp_path / "policy.json")
    raw = x[:50] * TABLE["std"] + TABLE["mean"]
    np.savetxt(files[0], raw, "%.9g", ",", header="length,width", comments="")
    options = [files[0], "--out", files[1], "--policy", tmp_path / "policy.json", "--threads", "1"]
    arguments = ["density-softmax", "predict", vector_file, *options]
    monkeypatch.setattr(sys, "argv", [str(each) for each in arguments])
    with pytest.raises(SystemExit, match="0"):
        main()
    rows, expected = rows_of(files[1]), fitted.named(own.class_names)(answer)
    assert [row["action"] for row in rows] == expected.action[:50].tolist()
    assert [tuple(json.loads(row["set"])) for row in rows] == expected.set_names[:50]
    assert {"answer", "unknown"} == {row["action"] for row in rows}


def test_a_rate_that_would_void_a_bound_on_errors_is_refused():
    bounded = dataclasses.replace(policy(false_alarms=0.05), abstention=None)
    settings = dataclasses.replace(bounded.settings, max_error=0.1)
    bounded = dataclasses.replace(bounded, settings=settings)
    assert bounded.at(0.05) is bounded
    with pytest.raises(UserError, match="fit it with another rate"):
        bounded.at(0.01)


class FakeOfWholeNumbers(Fake):
    def predict(self, x):
        assert np.isfinite(x).all(), "no whole number stands for it"
        return super().predict(x)


@pytest.mark.parametrize("rows", [([1, 0], [np.nan, 0], [3, 0]), ([np.nan, 0],)])
def test_what_cannot_be_read_is_not_given_to_the_model(rows):
    chunk = chunk_of(*rows)
    (batch,) = _records(FakeOfWholeNumbers(), [chunk], policy(false_alarms=0.05))
    expected = {1.0: "in", 3.0: "out"}
    assert [r.flag for r in batch] == [expected.get(float(x[0]), "bad") for x in chunk.x]
    bad = [r for r in batch if r.flag == "bad"]
    assert {(r.confidence, r.epistemic, r.label) for r in bad} == {(0.5, np.inf, "")}


EXAMPLES = [
    Record('a "b",c.png', "cat", 0.75, 0.5, 12.5, "in", ""),
    Record("ü.png", "", 0.5, 0.25, float("inf"), "bad", "broken"),
]


def texts(record):
    return tuple("" if value is None else str(value) for value in record[:-1])


def written(path):
    with open_output(path) as write:
        for record in EXAMPLES:
            write([record])
    return path


def test_csv_holds_every_record(tmp_path):
    rows = rows_of(written(tmp_path / "out.csv"))
    assert [tuple(row.values()) for row in rows] == [texts(record) for record in EXAMPLES]


@pytest.mark.parametrize("name", ["=cmd().png", "-1.png", "'=x.png", "a\r\nb.png", "@x", "'tis"])
def test_csv_gives_no_spreadsheet_a_formula_and_every_name_back(tmp_path, name):
    record = EXAMPLES[0]._replace(input=name, label="-cat", note="=x", epistemic=-2.5)
    with open_output(tmp_path / "out.csv") as write:
        write([record])
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        _, cells = csv.reader(file)
    assert not any(cell[:1] in tuple("=+@-\t\r") for cell in (*cells[:2], *cells[5:]))
    assert cells[2:5] == ["0.75", "0.5", "-2.5"]
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv_reader(file)) == [list(Record._fields[:-1]), list(texts(record))]


def test_json_lines_hold_every_record_and_null_for_infinity(tmp_path):
    lines = written(tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    first, second = (json.loads(line, parse_constant=pytest.fail) for line in lines)
    assert tuple(first.values()) == EXAMPLES[0][:-1]
    assert tuple(second.values()) == EXAMPLES[1]._replace(epistemic=None)[:-1]


def test_parquet_holds_every_record(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(written(tmp_path / "out.parquet")).to_pylist()
    assert [tuple(row.values()) for row in table] == [record[:-1] for record in EXAMPLES]


def test_a_missing_pyarrow_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="Parquet needs pyarrow: pip install pyarrow"):
        written(tmp_path / "out.parquet")
    assert not list(tmp_path.iterdir())


def test_an_old_file_stays_until_the_new_one_is_complete(tmp_path):
    out = tmp_path / "out.csv"
    out.write_text("old")

    def broken_off():
        with open_output(out) as write:
            write(EXAMPLES)
            raise RuntimeError("broke off")

    with pytest.raises(RuntimeError, match="broke off"):
        broken_off()
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("name", "message"),
    [("folder.csv", "is a folder; choose"), ("file/out.csv", r"cannot be written \(.*exists")],
)
def test_an_output_that_cannot_be_written_is_named_before_the_work(tmp_path, name, message):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "rows.csv").write_text("1,2\n")
    model = Fake()
    with pytest.raises(UserError, match=rf"--out .*{name}: {message}"):
        predict_stream(model, tmp_path / "rows.csv", tmp_path / name)
    assert model.largest == 0
    assert len(list(tmp_path.iterdir())) == 3


def test_a_table_that_cannot_be_opened_is_named(tmp_path, monkeypatch):
    (tmp_path / "rows.csv").touch()
    monkeypatch.setattr(Path, "open", Mock(side_effect=PermissionError("denied")))
    with pytest.raises(UserError, match=r"^[^ ]*rows\.csv: cannot be read \(denied\)"):
        list(read_chunks(tmp_path / "rows.csv", PLAIN, batch_size=4))


def test_without_a_file_csv_goes_to_the_standard_output(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    written(None)
    assert sys.stdout.getvalue().startswith(
        "input,label,confidence,aleatoric,epistemic,flag,note,typicality,action,set,reason\n"
    )


@pytest.mark.parametrize("content", ["", "a,b,c\n1,2,3\n", "a,b\n", '"a,b\n'])
def test_nothing_is_printed_before_the_first_row(tmp_path, capsys, content):
    (tmp_path / "rows.csv").write_text(content)
    with pytest.raises(UserError, match=r"rows\.csv: "):
        predict_stream(Fake(), tmp_path / "rows.csv", None)
    assert capsys.readouterr().out == ""


def test_a_row_goes_out_for_every_row_that_comes_in(tmp_path):
    rows = [f"{n},0" for n in range(1000)]
    rows[200], rows[300], rows[400], rows[500] = '1,"2', "1,\x00", "1", "1,2,3"
    (tmp_path / "rows.csv").write_text("\n".join(["a,b", *rows]))
    found = predict_stream(Fake(), tmp_path / "rows.csv", tmp_path / "out.csv")
    written = rows_of(tmp_path / "out.csv")
    assert [row["input"] for row in written] == list(map(str, range(1000)))
    bad = {int(row["input"]): row["note"] for row in written if row["flag"] == "bad"}
    assert bad.keys() == {200, 300, 400, 500}
    assert all(f"line {row + 2}" in note for row, note in bad.items())
    assert (found.inputs, found.flags["bad"]) == (1000, 4)


@pytest.mark.parametrize("name", ["rows.csv", "rows.npz", "rows.CSV"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_neither_pipes_nor_folders_are_read_as_files(tmp_path, name, make):
    make(tmp_path / name)
    found = "a folder of images, but" if make is os.mkdir else "not a regular file"
    with pytest.raises(UserError, match=f"{name}: {found}"):
        list(read_chunks(tmp_path / name, PLAIN, batch_size=4))


def test_the_ending_of_a_table_may_be_in_capitals(tmp_path):
    (tmp_path / "ROWS.CSV").write_text("1,2\n")
    np.savez(tmp_path / "x.npz", x=np.ones((3, 2)))
    (tmp_path / "x.npz").rename(tmp_path / "X.NPZ")
    assert sum(len(chunk.x) for chunk in read_chunks(tmp_path / "ROWS.CSV", PLAIN, 4)) == 1
    assert sum(len(chunk.x) for chunk in read_chunks(tmp_path / "X.NPZ", PLAIN, 4)) == 3


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("width,width,length", "'width' is twice"),
        ("width,id", "'length' is not among width, id"),
        ("width;length", "among width;length; separate cells by commas, not by ';'"),
        ("width\tlength", r"separate cells by commas, not by '\\t'"),
    ],
)
def test_a_header_that_does_not_name_the_columns_is_explained(
    vector_file, tmp_path, header, message
):
    (tmp_path / "rows.csv").write_text(f"{header}\n1,2\n")
    with pytest.raises(UserError, match=rf"rows\.csv: line 1 must name .* {message}"):
        list(read_chunks(tmp_path / "rows.csv", ds.Predictor(vector_file).card, batch_size=4))


def fortran(path):
    np.savez(path, x=np.asfortranarray(np.ones((3, 2))))


def cut(path):
    np.savez(path, x=np.ones((3000, 2)))
    path.write_bytes(path.read_bytes()[:5000])


BAD_INPUTS = {
    "missing.csv": (None, "not found; check the path"),
    "empty.csv": (lambda path: path.write_text(""), "0 columns, but the model reads 2"),
    "wide.csv": (
        lambda path: path.write_text("a,b,c\n1,2,3\n"),
        "3 columns, but the model reads 2",
    ),
    "header.csv": (lambda path: path.write_text("a,b\n"), "holds no rows"),
    "other.txt": (lambda path: path.write_text(""), "predict reads an image folder"),
    "names.npz": (lambda path: np.savez(path, z=np.ones(3)), "holds z; it needs x"),
    "shape.npz": (lambda path: np.savez(path, x=np.ones((3, 5))), r"shape \(5,\), but the model"),
    "text.npz": (lambda path: np.savez(path, x=np.array(["a"])), "x is <U1 of shape"),
    "fortran.npz": (fortran, "Fortran order"),
    "cut.npz": (cut, "truncated or not an .npz file"),
    "image.png": (lambda path: path.write_bytes(b""), "an image, but the model reads inputs"),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_an_input_that_cannot_be_served_is_named(tmp_path, name):
    make, message = BAD_INPUTS[name]
    if make is not None:
        make(tmp_path / name)
    with pytest.raises(UserError, match=rf"{name}: .*{message}"):
        list(read_chunks(tmp_path / name, PLAIN, batch_size=4))


def test_a_folder_without_images_is_named(tmp_path):
    with pytest.raises(UserError, match="holds no images"):
        list(read_chunks(tmp_path, COLOUR, batch_size=4))


def test_images_need_a_model_that_says_how_they_are_normalised(folder):
    card = Card("1", "deterministic", ("a", "b"), (3, 8, 8))
    with pytest.raises(UserError, match="does not say how images are normalised"):
        list(read_chunks(folder, card, batch_size=4))


def test_a_monitor_predicts_the_images_that_are_new(image_file, folder, tmp_path):
    """With the experts of the model, and the broken one counted as not finite."""
    rng, model = np.random.default_rng(0), ds.Predictor(image_file)
    answer = model.predict(rng.standard_normal((100, 3, 8, 8)).astype(np.float32))
    policy = ds.Policy.fit(None, (answer, answer.labels))
    assert set(policy.bags) == {"epistemic", "confidence", *model.card.experts}
    watching = ds.Monitor(policy)
    monitoring._read_folder(watching, image_file, folder, tmp_path / "state.json")
    monitoring._read_folder(watching, image_file, folder, tmp_path / "state.json")
    assert (watching.inputs, watching.not_finite) == (4, 1)
    assert ds.Monitor.load(tmp_path / "state.json").to_dict() == watching.to_dict()
    assert set(watching.moved) == set(policy.bags)
    # A table that is newer than images, and named in capitals, keeps neither from being read.
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "e.png")
    predict_stream(model, folder / "a.png", folder / "f.csv")
    (folder / "f.csv").rename(folder / "F.CSV")
    os.utime(folder / "F.CSV", ns=((folder / "e.png").stat().st_mtime_ns + 10**9,) * 2)
    monitoring._read_folder(watching, image_file, folder, tmp_path / "state.json")
    assert watching.inputs == 6
