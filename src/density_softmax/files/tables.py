"""CSV files: every record is a row or says why it is none, and no cell that we write is executed.

A user's table is read line by line. A line with balanced quotes is a record, and so are several
lines that a quoted cell spans, if together they have as many cells as the header. Otherwise the
quote is a stray one: it spoils its own line, and reading goes on with the next.

A spreadsheet executes text that begins with =, +, -, @, a tab or a line end, also after spaces. We
write such text with an apostrophe before it, which reading takes away again. Text that begins with
apostrophes and would then be of this kind gets one more, so that every text comes back as it was.
Numbers are never changed, not even as text.
"""

from __future__ import annotations

import csv
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, final

from density_softmax.errors import DataError
from density_softmax.files import regular_file

# Characters of a line that is kept in memory, and read at a time.
LONGEST_LINE, BLOCK = 2**24, 2**16
# Characters of a cell, and columns, that a message shows.
NUM_SHOWN, NUM_COLUMNS = 40, 10
# What other files begin with, and what to do about them.
FOREIGN = {
    b"\x1f\x8b": "compressed with gzip; unpack it",
    b"PK\x03\x04": "a spreadsheet or zip file; save it as CSV",
    b"\xff\xfe": "in UTF-16; save it as UTF-8",
    b"\xfe\xff": "in UTF-16; save it as UTF-8",
}
EXECUTED = re.compile(
    r"'*(?![+-]?(?:inf|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\Z)"  # a number is harmless
    r"(?:[\t\r\n]|\s*[=+\-@＝＋－＠])"
)


class TableRow(NamedTuple):
    """A record of a table.

    Attributes:
        line: the number of its first line.
        cells: as they stand there; empty if the record cannot be divided into cells.
        numbers: in the columns asked for, all of them finite; NaN if there is a problem.
        problem: why the record cannot be used, with its line; empty if it can.
    """

    line: int
    cells: list[str]
    numbers: list[float]
    problem: str


@final
class CsvTable:
    """A table that is read once, from the header on.

    Args:
        path: the file, for error messages.
        file: the open file, whose lines all end in a line feed.
    """

    def __init__(self, path: Path, file: IO[str]) -> None:
        self.path, self._lines = path, _Lines(file)
        self._first = next(filter(None, iter(self._lines.take, None)), "")
        self._number = self._lines.number
        cells, problem = self._divide(self._first)
        if problem:
            raise DataError(f"{path}: line {self._number}{problem}; correct it")
        self.header = [cell.strip() for cell in cells] if self._first else []

    @property
    def hint(self) -> str:
        """What to do about a header that seems to be separated otherwise than by commas."""
        found = [c for c in ";\t|" if len(self.header) == 1 and c in self.header[0]]
        return f"; separate cells by commas, not by {found[0]!r}" if found else ""

    def rows(self, columns: Sequence[int], headless: bool = False) -> Iterator[TableRow]:
        """Every record after the header.

        Args:
            columns: that must hold finite numbers.
            headless: whether the first line is a row as well, and columns have no names.
        """
        if headless:
            self._lines.put_back([self._first])
        lines, isfinite = self._lines, math.isfinite
        while (text := lines.take()) is not None:
            if not text:
                continue
            number = lines.number
            cells, problem = self._divide(text, columns)
            if not problem:
                try:
                    numbers = [float(cells[column]) for column in columns]
                    # A sum is finite if all numbers are; and 2021_01 is no number but to Python.
                    if isfinite(sum(numbers)) and "_" not in text:
                        yield TableRow(number, cells, numbers, "")
                        continue
                except ValueError:
                    numbers = []
                problem = self._fault(cells, columns, headless)
            if problem:
                numbers, problem = [math.nan] * len(columns), f"line {number}{problem}"
            yield TableRow(number, cells, numbers, problem)

    def _divide(self, text: str, columns: Sequence[int] | None = None) -> tuple[list[str], str]:
        """The cells of the record that begins with a line, or why it has none."""
        if len(text) > LONGEST_LINE:
            return [], f" has more than {LONGEST_LINE:,} characters"
        if '"' in text:
            cells, problem = self._unquoted(text, columns)
        else:
            cells, problem = text.split(","), ""
        if columns is not None and len(cells) != len(self.header) and not problem:
            problem = f" has {len(cells)} cells, line {self._number} has {len(self.header)}"
        return cells, problem

    def _unquoted(self, text: str, columns: Sequence[int] | None) -> tuple[list[str], str]:
        """The cells of a record with quotes, which may go on in the next lines."""
        try:
            return next(csv.reader((text,), strict=True)), ""
        except csv.Error as error:
            taken, problem = [text], f" has a quote that is not closed or misplaced ({error})"
        try:
            cells = next(csv.reader(self._continued(taken, columns), strict=True))
            if columns is None or self._is_whole(cells, columns):
                return cells, ""
        except csv.Error:
            pass
        self._lines.put_back(taken[1:])
        return [], problem

    def _continued(self, taken: list[str], columns: Sequence[int] | None) -> Iterator[str]:
        """The line in `taken`, and those after it up to a row of numbers, which are added to it."""
        yield f"{taken[0]}\n"
        while (line := self._lines.take()) is not None:
            taken.append(line)
            if columns is not None and self._is_row(line, columns):
                return  # a row by itself: the quote before it is a stray one
            yield f"{line}\n"

    def _is_row(self, text: str, columns: Sequence[int]) -> bool:
        """Whether a line is a row of numbers by itself."""
        cells = text.split(",")
        return len(cells) == len(self.header) and all(
            math.isfinite(as_number(cells[column])) for column in columns
        )

    def _is_whole(self, cells: Sequence[str], columns: Sequence[int]) -> bool:
        """Whether several lines are one record: no number spans them."""
        return len(cells) == len(self.header) and all(
            "\n" not in cells[column].strip() for column in columns
        )

    def _fault(self, cells: Sequence[str], columns: Sequence[int], headless: bool) -> str:
        """What is wrong with the first cell that holds no finite number; empty if all do."""
        for column in columns:
            cell = cells[column].strip()
            if math.isnan(as_number(cell)):
                name = str(column + 1) if headless else f"'{_shown(self.header[column])}'"
                found = f": '{_shown(cell)}' is not a finite number" if cell else " is empty"
                return f", column {name}{found}"
        return ""


@contextmanager
def open_csv(path: Path) -> Iterator[CsvTable]:
    """Open a user's table.

    Args:
        path: a CSV file in UTF-8 with cells between commas. Bytes that are not UTF-8 spoil only
            the cells that they are in.
    """
    regular_file(path)
    try:
        with path.open("rb") as start:
            begin = start.read(4)
        for magic, found in FOREIGN.items():
            if begin.startswith(magic):
                raise DataError(f"{path}: {found}")
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
            yield CsvTable(path, file)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from None


def as_number(cell: str) -> float:
    """The finite number in a cell, or NaN.

    Args:
        cell: as it stands in a table.
    """
    try:
        value = float(cell)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) and "_" not in cell else math.nan


def listed(names: Sequence[str]) -> str:
    """The names of columns for a message.

    Args:
        names: any number of them, of any length.
    """
    shown = [_shown(name) for name in names[:NUM_COLUMNS]]
    more = len(names) - len(shown)
    return ", ".join([*shown, f"and {more} more"] if more else shown) or "nothing"


def _shown(text: str) -> str:
    """A text that can be printed, on a line, and is not too long for it."""
    text = text if len(text) <= NUM_SHOWN else f"{text[:NUM_SHOWN]}…"
    return text if text.isprintable() else repr(text)[1:-1]


@final
class _Lines:
    """The lines of a file without their ends, one after another; what is too long is cut."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self._rest, self.number = file, "", 0
        self._waiting: deque[str] = deque()

    def take(self) -> str | None:
        """The next line, whose number is then `number`; None after the last."""
        if not self._waiting and not self._fill():
            return None
        self.number += 1
        return self._waiting.popleft()

    def put_back(self, lines: Sequence[str]) -> None:
        """Return these lines again, next."""
        self._waiting.extendleft(reversed(lines))
        self.number -= len(lines)

    def _fill(self) -> bool:
        """Read some more lines; whether there were any."""
        while not self._waiting and (text := self._file.read(BLOCK)):
            first, *others = text.split("\n")
            self._rest += first[: LONGEST_LINE + 1 - len(self._rest)]
            if others:
                self._waiting.extend([self._rest, *others[:-1]])
                self._rest = others[-1]
        if not self._waiting and self._rest:
            self._waiting.append(self._rest)
            self._rest = ""
        return bool(self._waiting)


def csv_writer(file: IO[str]) -> Callable[[Iterable[Sequence[Any]]], None]:
    """A function that writes rows to a CSV file, with text that no spreadsheet executes.

    Args:
        file: open for writing.
    """
    # Whose own line ends make it quote carriage returns, too.
    writer = csv.writer(_LineFeeds(file), lineterminator="\r\n")

    def write(rows: Iterable[Sequence[Any]]) -> None:
        writer.writerows([c if type(c) is float else _harmless(c) for c in row] for row in rows)

    return write


@final
class _LineFeeds:
    """A file that ends in a line feed what is written to it with a carriage return and one."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, line: str) -> None:
        """Write a line."""
        self._file.write(f"{line[:-2]}\n")


def csv_reader(file: Iterable[str]) -> Iterator[list[str]]:
    """The rows of a CSV file that `csv_writer` wrote, with every text as it was.

    Args:
        file: its lines, opened with newline="".
    """
    return (list(map(_original, row)) for row in csv.reader(file))


def _harmless(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell or cell[0].isalnum():
        return cell
    return f"'{cell}" if EXECUTED.match(cell) else cell


def _original(text: str) -> str:
    return text[1:] if text.startswith("'") and EXECUTED.match(text) else text
