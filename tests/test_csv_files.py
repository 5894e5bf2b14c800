"""Every record of a table is a row or says why it is none; every text survives, unexecuted."""

import csv
import io
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from density_softmax.errors import DataError
from density_softmax.files import tables
from density_softmax.files.tables import csv_reader, csv_writer, open_csv


def read(path, content, columns=(0, 1)):
    """The rows of a file with this content, and its header."""
    path = path / "rows.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with open_csv(path) as table:
        return table.header, list(table.rows(columns))


def test_a_stray_quote_spoils_its_own_line_alone(tmp_path):
    lines = ["a,b,c,d", *(f"0,1,2,{'' if n != 200 else chr(34)}3" for n in range(1, 1001))]
    _, rows = read(tmp_path, "\n".join(lines), columns=range(4))
    assert len(rows) == 1000
    assert [row.line for row in rows] == list(range(2, 1002))
    (bad,) = (row for row in rows if row.problem)
    assert bad.problem.startswith("line 201 has a quote that is not closed")
    assert all(row.numbers == [0, 1, 2, 3] for row in rows if row is not bad)


STRAY = {
    "two that never close": ('1,"2,x', '3,4,"y'),
    "two that would make one cell": ('1,2,"x', '3,4,y"'),
    "in the first cell": ('"1,2,x', "3,4,y"),
    "before text": ('1,2,"x"y', "3,4,z"),
}


@pytest.mark.parametrize("case", STRAY)
def test_lines_between_stray_quotes_are_rows(tmp_path, case):
    first, last = STRAY[case]
    between = [f"{n},{n},z" for n in range(50)]
    _, rows = read(tmp_path, "\n".join(["a,b,c", first, *between, last]))
    assert len(rows) == 52
    assert rows[0].problem
    assert [row.numbers for row in rows[1:51]] == [[n, n] for n in range(50)]


def test_a_number_never_spans_lines(tmp_path):
    _, rows = read(tmp_path, 'a,b\n1,"2\n3,4"\n5,6\n')
    assert [bool(row.problem) for row in rows] == [True, True, False]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_quoted_cells_may_span_lines_and_hold_commas_and_quotes(tmp_path, end, mark):
    text = f'{mark}a,b,note{end}1,2,"first{end}{end}second, ""third"""{end}{end}"3",4,5" pipe{end}'
    header, rows = read(tmp_path, text)
    assert header == ["a", "b", "note"]
    assert [row.numbers for row in rows] == [[1, 2], [3, 4]]
    assert [row.cells[2] for row in rows] == ['first\n\nsecond, "third"', '5" pipe']
    assert [row.line for row in rows] == [2, 6]


@given(
    st.lists(st.tuples(st.integers(), st.text(), st.floats(allow_nan=False, allow_infinity=False)))
)
def test_whatever_a_csv_writer_wrote_is_read(tmp_path_factory, records):
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([("a", "note", "b"), *records])
    content = text.getvalue().encode("utf-8", "replace")
    _, rows = read(tmp_path_factory.getbasetemp(), content, columns=(0, 2))
    assert [row.problem for row in rows] == [""] * len(records)
    assert [row.numbers for row in rows] == [[float(a), b] for a, _, b in records]


@given(st.binary(max_size=300))
@example(b'a,b\n"')
@example(b'\n\n"\n1,2\n')
@example(b"\x00,\xff\n1,2\n")
def test_any_bytes_end_in_rows_or_one_error(tmp_path_factory, garbage):
    try:
        header, rows = read(tmp_path_factory.getbasetemp(), b"a,b\n" + garbage)
    except DataError as error:
        pytest.fail(str(error))
    assert header == ["a", "b"]
    for row in rows:
        assert bool(row.problem) == any(map(math.isnan, row.numbers))
        row.problem.encode()  # as every output needs it


def test_bytes_that_are_not_utf8_spoil_their_own_cell_alone(tmp_path):
    _, rows = read(tmp_path, b"a,b,name\n1,2,caf\xe9\n1,\xe9,x\n3,4,y\n")
    assert [row.numbers for row in rows if not row.problem] == [[1, 2], [3, 4]]
    assert rows[1].problem == r"line 3, column 'b': '\udce9' is not a finite number"


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_huge_cell_spoils_its_own_row_at_most(tmp_path, quote):
    _, rows = read(tmp_path, f"a,b,c\n1,2,{quote}{'x' * 10**6}{quote}\n3,4,y\n")
    assert [bool(row.problem) for row in rows] == [bool(quote), False]
    assert len(rows[0].problem) < 200


def test_an_endless_line_is_not_kept_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "LONGEST_LINE", 100)
    monkeypatch.setattr(tables, "BLOCK", 30)
    _, rows = read(tmp_path, f"a,b\n1,{'2' * 10_000}\n3,4\n")
    assert rows[0].problem == "line 2 has more than 100 characters"
    assert len(rows[0].cells) == 0
    assert rows[1].numbers == [3, 4]


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("", "column 'b' is empty"),
        ("  ", "column 'b' is empty"),
        ("nan", "column 'b': 'nan' is not a finite number"),
        ("-inf", "column 'b': '-inf' is not a finite number"),
        ("2021_01", "column 'b': '2021_01' is not a finite number"),
        ("1\x00", r"column 'b': '1\x00' is not a finite number"),
        ('"1,5"', "column 'b': '1,5' is not a finite number"),
        ("x" * 99, f"column 'b': '{'x' * 40}…' is not a finite number"),
    ],
)
def test_a_cell_without_a_number_is_named_with_its_line_and_column(tmp_path, cell, problem):
    _, (row, good) = read(tmp_path, f"a,b,under_score\n1,{cell},z\n3,4,_\n")
    assert row.problem == f"line 2, {problem}"
    assert good.numbers == [3, 4]


@pytest.mark.parametrize("row", ["1", "1,2", "1,2,3,4", ",,,,"])
def test_a_row_of_another_length_is_not_guessed_at(tmp_path, row):
    _, rows = read(tmp_path, f"a,b,c\n{row}\n")
    assert rows[0].problem == f"line 2 has {row.count(',') + 1} cells, line 1 has 3"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x1f\x8b\x08\x00", "compressed with gzip; unpack it"),
        (b"PK\x03\x04", "a spreadsheet or zip file; save it as CSV"),
        ("a,b\n1,2\n".encode("utf-16"), "in UTF-16; save it as UTF-8"),
        (b'a,"b\n1,2\n', r"line 1 has a quote that is not closed"),
    ],
)
def test_a_file_of_another_kind_is_told_from_a_table(tmp_path, content, message):
    with pytest.raises(DataError, match=rf"rows\.csv: {message}"):
        read(tmp_path, content)


EXECUTED = ["=cmd()", "+1+1", "-x", "@SUM(A1)", "\t=1", "\r=1", "\n", " =1", "＝1", "--5", "'=1"]
HARMLESS = ["cat", "", "'tis", "a=b", "-1", "+1.5e-3", "-inf", "5-", "'-1"]


def written(texts):
    file = io.StringIO(newline="")
    csv_writer(file)([[text] for text in texts])
    file.seek(0)
    return file


@pytest.mark.parametrize("text", EXECUTED)
def test_text_that_a_spreadsheet_would_execute_begins_with_an_apostrophe(text):
    assert next(csv.reader(written([text]))) == [f"'{text}"]


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_and_numbers_are_written_as_they_are(text):
    assert next(csv.reader(written([text]))) == [text]


def test_negative_numbers_stay_numbers():
    file = io.StringIO()
    csv_writer(file)([(-1, -2.5, -math.inf)])
    assert file.getvalue() == "-1,-2.5,-inf\n"


@given(st.lists(st.text(alphabet="'=+-@\t\r\n ,\"1ae.", max_size=8) | st.text(), min_size=1))
@example(EXECUTED + HARMLESS)
def test_every_text_comes_back_as_it_was(texts):
    assert [row for (row,) in csv_reader(written(texts))] == texts
