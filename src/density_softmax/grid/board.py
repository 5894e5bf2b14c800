"""A grid under way: which jobs wait, run, are done or failed, up to the report on them."""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from rich.console import Console

from density_softmax.engine import EngineConfig
from density_softmax.files import write_text
from density_softmax.files.tables import csv_reader, csv_writer
from density_softmax.grid.jobs import Engine, Job, Outcome
from density_softmax.grid.latency import drop_latencies, were_timed_together
from density_softmax.grid.plan import Cell
from density_softmax.grid.view import GridView
from density_softmax.report import write_report
from density_softmax.runs.run import Run

State = Literal["waiting", "running", "done", "failed"]

FIELDS = ("cell", "state", "seconds", "error", "log")
# Seconds between two looks at the jobs.
TICK = 0.5


@dataclass
class Entry:
    """A job and what became of it.

    Attributes:
        job: what to do.
        line: where it stands in a table, the method and variant.
        column: likewise, the seed.
        needs: names of the jobs that have to be done before.
        state: how far it is.
        seconds: how long it took; None if that is not known.
        error: why it failed.
        began: when it was first seen to run, by a clock that only ever goes forward.
        ran: whether it was this grid that ran it.
        shares: whether another job may be training a stage that it needs.
        put_off: whether it found so. Others come first then, and it waits the next time.
    """

    job: Job
    line: str
    column: str
    needs: tuple[str, ...] = ()
    state: State = "waiting"
    seconds: float | None = None
    error: str = ""
    began: float = 0.0
    ran: bool = False
    shares: bool = False
    put_off: bool = False

    @property
    def name(self) -> str:
        """What its job is called."""
        return self.job.name

    @property
    def attempt(self) -> Job:
        """Its job, which at first leaves its place to others rather than wait."""
        if self.put_off or not self.shares:
            return self.job
        return replace(self.job, words=(*self.job.words, "--no-wait"))


@dataclass
class Board:
    """All entries of a grid, kept in a file as well: killed or not, it says what happened."""

    entries: list[Entry]
    file: Path
    at_once: int | None = None
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Learn from an earlier call how long things took."""
        self._earlier = _read_seconds(self.file)
        entries, self.entries = self.entries, []
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """One more entry."""
        if entry.state == "done":
            entry.seconds = self._earlier.get(entry.name)
        self.entries.append(entry)

    def having(self, *states: State) -> list[Entry]:
        """The entries in one of these states, in order."""
        return [entry for entry in self.entries if entry.state in states]

    def count(self) -> Counter[State]:
        """How many entries are in each state."""
        return Counter(entry.state for entry in self.entries)

    def seconds_left(self) -> float | None:
        """About how long the rest takes; None as long as nothing is done to judge by."""
        known = [e for e in self.having("done") if e.seconds is not None]
        if not known:
            return None
        left, now = 0.0, time.monotonic()
        for entry in self.having("waiting", "running"):
            alike = [
                e for e in known if e.line == entry.line and bool(e.needs) == bool(entry.needs)
            ]
            times = [e.seconds or 0.0 for e in alike or known]
            elapsed = now - entry.began if entry.state == "running" else 0.0
            left += max(sum(times) / len(times) - elapsed, 0.0)
        return left / (self.at_once or max(len(self.having("running")), 1))

    def save(self) -> None:
        """Write the state of every job to the file."""
        text = io.StringIO()
        write = csv_writer(text)
        write([FIELDS])
        for entry in self.entries:
            seconds = "" if entry.seconds is None else f"{entry.seconds:.1f}"
            write([(entry.name, entry.state, seconds, entry.error, entry.job.log)])
        write_text(self.file, text.getvalue())


class Watcher(Protocol):
    """Shows a grid while it changes."""

    def look(self, board: Board, changed: Sequence[Entry]) -> None:
        """See the board, and which entries have another state since the last look."""


def execute(board: Board, engine: Engine, watcher: Watcher) -> None:
    """Run all jobs that wait, each after those it needs; what fails stops no other.

    Args:
        board: the jobs, whose states change.
        engine: runs them.
        watcher: is shown every change.
    """
    board.save()
    for entry in board.having("waiting"):
        entry.job.log.unlink(missing_ok=True)  # of an earlier attempt
    futures: dict[Future[Outcome], Entry] = {}
    submitted: set[str] = set()
    while True:
        changed = _fail_without_needs(board)
        free = None if engine.capacity is None else engine.capacity - len(futures)
        for entry in list(islice(_startable(board, submitted), free)):
            futures[engine.submit(entry.attempt)] = entry
            submitted.add(entry.name)
        changed += _notice_begun(futures.values())
        _report(board, watcher, changed)
        if not futures:
            break
        ended, _ = wait(futures, timeout=TICK, return_when=FIRST_COMPLETED)
        concluded = [_conclude(futures.pop(future), future) for future in ended]
        submitted -= {entry.name for entry in concluded if entry.state == "waiting"}
        _report(board, watcher, concluded)


def _startable(board: Board, submitted: set[str]) -> Iterator[Entry]:
    """What can be given to an engine now, in order; last what was put off."""
    done = {entry.name for entry in board.having("done")}
    for entry in sorted(board.having("waiting"), key=lambda entry: entry.put_off):
        if entry.name not in submitted and done.issuperset(entry.needs):
            yield entry


def _fail_without_needs(board: Board) -> list[Entry]:
    """Jobs that will never have what they need, and those that need them."""
    failed = {entry.name for entry in board.having("failed")}
    hopeless = [e for e in board.having("waiting") if not failed.isdisjoint(e.needs)]
    for entry in hopeless:
        missing = next(name for name in entry.needs if name in failed)
        entry.state, entry.error, entry.ran = "failed", f"it needs {missing}, which failed", True
    return hopeless + _fail_without_needs(board) if hopeless else []


def _notice_begun(entries: Iterable[Entry]) -> list[Entry]:
    """Jobs that left the engine's queue: wherever they run, their log appears."""
    begun = [entry for entry in entries if entry.state == "waiting" and entry.job.log.exists()]
    for entry in begun:
        entry.state, entry.began, entry.ran = "running", time.monotonic(), True
    return begun


def _conclude(entry: Entry, future: Future[Outcome]) -> Entry:
    """Note how a job ended; that its engine could not run it is a failure of the job."""
    error = future.exception()
    if error is None and future.result().busy and not entry.put_off:
        entry.job.log.unlink(missing_ok=True)
        entry.state, entry.put_off = "waiting", True
        return entry
    if error is None:
        entry.seconds, entry.error, _ = future.result()
    else:
        entry.error = " ".join(str(error).split()) or type(error).__name__
    entry.state, entry.ran = "failed" if entry.error else "done", True
    return entry


def _report(board: Board, watcher: Watcher, changed: Sequence[Entry]) -> None:
    if changed:
        board.save()
    watcher.look(board, changed)


def _read_seconds(file: Path) -> dict[str, float]:
    """How long the cells of an earlier call took, as far as its file can tell."""
    if not file.is_file():
        return {}
    with file.open(encoding="utf-8", newline="") as lines:
        rows = csv_reader(lines)
        header = next(rows, [])
        cells = [dict(zip(header, row, strict=False)) for row in rows]
    return {cell["cell"]: float(cell["seconds"]) for cell in cells if cell.get("seconds")}


LATENCY = "latency"


class Finished(NamedTuple):
    """What a grid ended with: every job, and the page of the report if any run is finished."""

    entries: list[Entry]
    page: Path | None

    @property
    def failed(self) -> list[Entry]:
        """The jobs that failed."""
        return [entry for entry in self.entries if entry.state == "failed"]


def run_grid(cells: Sequence[Cell], out: Path, engine: Engine, console: Console) -> Finished:
    """Run the cells that are not finished, measure latencies, and report on all that are.

    Called again, it continues: whatever is finished stays as it is.

    Args:
        cells: the plan.
        out: the folder of the grid.
        engine: runs the jobs.
        console: where progress is shown.
    """
    board = Board([entry_of(cell, out) for cell in cells], out / "cells.csv", engine.capacity)
    with GridView(cells[0].run.recipe.name, console) as view:
        try:
            execute(board, engine, view)
            runs = [cell.run for cell in cells if cell.member is None and cell.is_finished()]
            for run in runs:
                run.claim(resume=True)  # the data may have moved since it was made
            _time(runs, out, board, engine, view)
        finally:
            engine.stop()
    page = write_report([run.path for run in runs], out / "report") if runs else None
    return Finished(board.entries, page)


def entry_of(cell: Cell, out: Path) -> Entry:
    """The job of a cell, done already if its directory says so.

    Args:
        cell: one run of the grid, or a member of one.
        out: the folder of the grid.
    """
    job = _job(cell.name, cell.command(), cell.run.recipe.engine, out)
    state: State = "done" if cell.is_finished() else "waiting"
    column = f"seed {cell.run.seed}"
    return Entry(job, cell.run.line, column, cell.needs, state, shares=True)


def _job(name: str, words: tuple[str, ...], engine: EngineConfig, out: Path) -> Job:
    on_gpu = engine.accelerator in ("auto", "cuda", "gpu")
    return Job(
        name,
        words,
        log=out / "logs" / f"{name}.log",
        folder=Path.cwd(),
        num_cpus=engine.devices * (engine.threads or 1),
        num_gpus=engine.devices * on_gpu,
    )


def _time(runs: Sequence[Run], out: Path, board: Board, engine: Engine, view: GridView) -> None:
    """Time all methods and variants in turn, by the runs with the lowest seeds.

    What the other runs measured by themselves is removed.
    """
    chosen: dict[str, Run] = {}
    for run in runs:
        chosen.setdefault(run.line, run)
    timed = list(chosen.values())
    if not timed:
        return
    words = (LATENCY, *(str(run.path) for run in timed))
    job = _job(LATENCY, words, timed[0].recipe.engine, out)
    state: State = "done" if were_timed_together(timed) else "waiting"
    board.add(Entry(job, LATENCY, f"seed {timed[0].seed}", state=state))
    execute(board, engine, view)
    if were_timed_together(timed):
        for run in runs:
            if run not in timed:
                drop_latencies(run)
