"""Progress bars: one line per stage, with its name and loss."""

from __future__ import annotations

import io
import time
from datetime import timedelta
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

# Seconds between two drawings in a notebook, and the width of a line there.
PAUSE, WIDTH = 0.25, 100
# Seconds between two lines in a file.
MINUTE = 60.0


class Bars:
    """A group of progress bars that can be silent.

    In a notebook they are text that is replaced as it changes: rich would need ipywidgets there. In
    a file or a pipe, where rich shows the end only, a line a minute says how far a long stage is.
    """

    def __init__(self, show: bool) -> None:
        console = Console()
        self._text = text_instead(console) if show else None
        self._progress = Progress(
            TextColumn("{task.description:<16}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not show or isinstance(self._text, Notebook),
        )

    def __enter__(self) -> Bars:
        """Start drawing."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop drawing, whatever happened."""
        if not self._progress.disable:  # up to rich 14, stopping a silent one prints a line
            self._progress.stop()
        self._draw(final=True)

    def add(self, name: str, steps: int, done: int = 0) -> Bar:
        """A new bar of so many steps."""
        task = self._progress.add_task(name, total=steps, completed=done, note="")
        self._draw()
        return Bar(self, task)

    def change(self, task: TaskID, **values: Any) -> None:
        """Update a bar, as rich's progress does."""
        if self._progress.disable and self._text is None:
            return
        self._progress.update(task, **values)
        self._draw()

    def _draw(self, final: bool = False) -> None:
        if self._text is not None:
            self._text.draw(self._progress, final)


class Bar:
    """One bar."""

    def __init__(self, bars: Bars, task: TaskID) -> None:
        self._bars, self._task = bars, task

    def advance(self) -> None:
        """One step further."""
        self._bars.change(self._task, advance=1)

    def note(self, text: str) -> None:
        """Text beside the bar, such as the loss."""
        self._bars.change(self._task, note=text)


class Notebook:
    """The output of a cell, which shows the last drawing alone."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = 0.0

    def draw(self, progress: Progress, final: bool = False) -> None:
        """Replace what is shown, at most a few times per second unless it is the last time."""
        if not progress.tasks or (not final and time.monotonic() - self._drawn < PAUSE):
            return
        self._drawn = time.monotonic()
        shown = {"text/plain": as_text(progress)}
        if self._handle is None:
            from IPython.display import display

            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


class Log:
    """A file or a pipe, which gets a line a minute."""

    def __init__(self, console: Console) -> None:
        self._console, self._written = console, time.monotonic()

    def draw(self, progress: Progress, final: bool = False) -> None:
        """Say how far the stages under way are; at the end rich draws all bars."""
        if final or time.monotonic() - self._written < MINUTE:
            return
        self._written = time.monotonic()
        for task in progress.tasks:
            if not task.finished:
                steps = f"{task.completed:.0f}/{task.total:.0f} {task.fields['note']}".rstrip()
                left = task.time_remaining
                rest = "" if left is None else f", {timedelta(seconds=round(left))} left"
                line = f"{task.description} {steps}{rest}"
                self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def text_instead(console: Console) -> Notebook | Log | None:
    """What shows the bars as text, where the output is no terminal.

    Args:
        console: the output.
    """
    if console.is_jupyter:
        return Notebook()
    return None if console.is_terminal else Log(console)


def as_text(progress: Progress) -> str:
    """The bars as lines of plain text.

    Args:
        progress: those of rich.
    """
    console = Console(file=io.StringIO(), width=WIDTH, force_jupyter=False, force_terminal=False)
    with console.capture() as capture:
        console.print(progress.get_renderable())
    return capture.get()
