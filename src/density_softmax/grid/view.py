"""A live view of a grid: a table of methods and seeds in a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from density_softmax.grid.board import Board, Entry


MARKS = {"waiting": "·", "running": "▶", "done": "✓", "failed": "✗"}
STYLES = {"waiting": "dim", "running": "cyan", "done": "green", "failed": "red"}


class GridView:
    """Shows a board while it changes."""

    def __init__(self, title: str, console: Console) -> None:
        self.title, self.console = title, console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> GridView:
        """Start drawing."""
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the last state on the screen."""
        if self._live:
            self._live.stop()

    def look(self, board: Board, changed: Sequence[Entry]) -> None:
        """Draw the table anew; where nothing can be redrawn, print a line per change."""
        if self._live:
            self._live.update(self._table(board), refresh=True)
            return
        for entry in changed:
            ended = len(board.having("done", "failed"))
            line = f"[{ended}/{len(board.entries)}] {entry.state} {entry.name}{_details(entry)}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
            if entry.state in ("done", "failed"):
                self.console.print(f"  {_summary(board)}", highlight=False, soft_wrap=True)

    def _table(self, board: Board) -> RenderableType:
        columns = list(dict.fromkeys(entry.column for entry in board.entries))
        table = Table("", *columns, box=box.SIMPLE)
        for line in dict.fromkeys(entry.line for entry in board.entries):
            alike = [entry for entry in board.entries if entry.line == line]
            marks = [_marks([e for e in alike if e.column == column]) for column in columns]
            table.add_row(line, *marks)
        now = time.monotonic()
        notes = [
            Text(f"{MARKS['running']} {e.name}, {duration(now - e.began)}", STYLES["running"])
            for e in board.having("running")
        ]
        notes += [
            Text(f"{MARKS['failed']} {e.name}{_details(e)}", STYLES["failed"])
            for e in board.having("failed")
        ]
        return Group(Text(f"{self.title}: {_summary(board)}", "bold"), table, *notes)


def _summary(board: Board) -> str:
    """How far a grid is, in a line."""
    count, left = board.count(), board.seconds_left()
    words = [f"{count['done']} of {len(board.entries)} done"]
    words += [f"{count[state]} {state}" for state in ("running", "failed") if count[state]]
    words.append(f"{duration(time.monotonic() - board.began)} so far")
    if left is not None and count["waiting"] + count["running"]:
        words.append(f"about {duration(left)} left")
    return ", ".join(words)


def duration(seconds: float) -> str:
    """Seconds as people say them.

    Args:
        seconds: any number of them.
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _marks(entries: Sequence[Entry]) -> Text:
    """A mark per job of a cell: an ensemble has one for each member before its own."""
    return Text.assemble(*((MARKS[e.state], STYLES[e.state]) for e in entries))


def _details(entry: Entry) -> str:
    if entry.state == "failed":
        return f": {entry.error} ({entry.job.log})"
    if entry.state == "waiting" and entry.put_off:
        return " for a stage that another run trains"
    return f" in {duration(entry.seconds)}" if entry.state == "done" and entry.seconds else ""
