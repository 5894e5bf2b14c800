"""Progress bars: one line per stage, with its name and loss."""

from __future__ import annotations

from types import TracebackType

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)


class Bars:
    """A group of progress bars that can be silent."""

    def __init__(self, show: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<16}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            disable=not show,
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

    def add(self, name: str, steps: int, done: int = 0) -> Bar:
        """A new bar of so many steps."""
        task = self._progress.add_task(name, total=steps, completed=done, note="")
        return Bar(self._progress, task)


class Bar:
    """One bar."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def advance(self) -> None:
        """One step further."""
        self._progress.advance(self._task)

    def note(self, text: str) -> None:
        """Text beside the bar, such as the loss."""
        self._progress.update(self._task, note=text)
