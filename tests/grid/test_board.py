"""Which job starts when, what becomes of it, and what is known meanwhile."""

import csv
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
from rich.console import Console

from density_softmax.grid.board import Board, Entry, State, execute
from density_softmax.grid.jobs import Job, Outcome
from density_softmax.grid.view import GridView, duration


class Scripted:
    """An engine whose jobs end as they are told to, when they are told to."""

    def __init__(self, capacity: int | None = None, **errors: str | Exception | Outcome) -> None:
        self.capacity, self.errors = capacity, errors
        self.started: list[str] = []
        self.words: list[tuple[str, ...]] = []
        self.most_at_once = self.busy = 0

    def submit(self, job: Job) -> Future[Outcome]:
        self.started.append(job.name)
        self.words.append(job.words[2:])
        self.busy += 1
        self.most_at_once = max(self.most_at_once, self.busy)
        job.log.parent.mkdir(parents=True, exist_ok=True)
        job.log.touch()
        return Ending(self, self.errors.pop(job.name, ""))

    def stop(self) -> None:
        """Nothing runs."""


class Ending(Future):  # type: ignore[type-arg]
    """Ends at the second look."""

    def __init__(self, engine: Scripted, error: str | Exception | Outcome) -> None:
        super().__init__()
        self.engine, self.error = engine, error
        if isinstance(error, Exception):
            self.set_exception(error)
        else:
            self.set_result(error if isinstance(error, Outcome) else Outcome(2.0, error))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.engine.busy -= 1
        return super().exception(timeout)


class Recorder:
    """Writes down every change of a state."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, State]] = []

    def look(self, board: Board, changed: list[Entry]) -> None:
        self.seen += [(entry.name, entry.state) for entry in changed]


def entry(folder: Path, name: str, *needs: str, state: State = "waiting") -> Entry:
    job = Job(name, ("list", "methods"), folder / "logs" / f"{name}.log", folder)
    return Entry(job, line=name[0], column=name[1:], needs=needs, state=state)


def states(board: Board) -> dict[str, State]:
    return {entry.name: entry.state for entry in board.entries}


def test_a_job_starts_after_those_it_needs(tmp_path: Path) -> None:
    board = Board(
        [entry(tmp_path, "b", "a", "c"), *(entry(tmp_path, n) for n in "ac")],
        tmp_path / "cells.csv",
    )
    engine, seen = Scripted(), Recorder()
    execute(board, engine, seen)
    assert engine.started == ["a", "c", "b"]
    assert set(states(board).values()) == {"done"}
    assert seen.seen.index(("b", "running")) > seen.seen.index(("c", "done"))


def test_what_is_done_does_not_start(tmp_path: Path) -> None:
    board = Board(
        [entry(tmp_path, "a", state="done"), entry(tmp_path, "b", "a")], tmp_path / "cells.csv"
    )
    execute(board, engine := Scripted(), Recorder())
    assert engine.started == ["b"]
    assert [entry.ran for entry in board.entries] == [False, True]


def test_a_failure_takes_only_those_along_that_need_it(tmp_path: Path) -> None:
    entries = [entry(tmp_path, "a"), entry(tmp_path, "b", "a"), entry(tmp_path, "c", "b")]
    board = Board([*entries, entry(tmp_path, "d")], tmp_path / "cells.csv")
    execute(board, engine := Scripted(a="no memory"), Recorder())
    assert engine.started == ["a", "d"]
    assert states(board) == {"a": "failed", "b": "failed", "c": "failed", "d": "done"}
    assert [entry.error for entry in entries] == [
        "no memory",
        "it needs a, which failed",
        "it needs b, which failed",
    ]


def test_an_engine_that_loses_a_job_is_a_failure_of_the_job(tmp_path: Path) -> None:
    board = Board([entry(tmp_path, "a"), entry(tmp_path, "b")], tmp_path / "cells.csv")
    execute(board, Scripted(a=RuntimeError("the node\ndied")), Recorder())
    assert states(board) == {"a": "failed", "b": "done"}
    assert board.entries[0].error == "the node died"


def test_a_job_that_would_wait_for_another_run_lets_others_go_first(tmp_path: Path) -> None:
    board = Board([entry(tmp_path, n) for n in "abc"], tmp_path / "cells.csv")
    for each in board.entries:
        each.shares = True
    busy = Outcome(1.0, "another run trains the same stage", busy=True)
    engine, seen = Scripted(capacity=1, a=busy), Recorder()
    execute(board, engine, seen)
    assert engine.started == ["a", "b", "c", "a"]
    assert engine.words == [("--no-wait",)] * 3 + [()]  # the second time it waits
    assert set(states(board).values()) == {"done"}
    assert [state for name, state in seen.seen if name == "a"][-3:] == [
        "waiting",
        "running",
        "done",
    ]


@pytest.mark.parametrize("capacity", [1, 2, None])
def test_no_more_jobs_than_the_engine_takes(capacity: int | None, tmp_path: Path) -> None:
    board = Board([entry(tmp_path, n) for n in "abcde"], tmp_path / "cells.csv")
    execute(board, engine := Scripted(capacity), Recorder())
    assert engine.started == list("abcde")
    assert engine.most_at_once == (capacity or 5)


def test_the_file_says_what_happened_to_every_job(tmp_path: Path) -> None:
    board = Board([entry(tmp_path, n) for n in "ab"], tmp_path / "cells.csv")
    execute(board, Scripted(b='says "no", twice'), Recorder())
    with (tmp_path / "cells.csv").open(encoding="utf-8") as lines:
        a, b = csv.DictReader(lines)
    assert (a["cell"], a["state"], a["seconds"], a["error"]) == ("a", "done", "2.0", "")
    assert (b["state"], b["error"]) == ("failed", 'says "no", twice')
    assert b["log"] == str(tmp_path / "logs" / "b.log")


def test_time_left_is_what_such_jobs_took(tmp_path: Path) -> None:
    (tmp_path / "cells.csv").write_text("cell,seconds\na0,10\nb0,40\n")
    done = [entry(tmp_path, "a0", state="done"), entry(tmp_path, "b0", state="done")]
    running = entry(tmp_path, "b1", state="running")
    running.began = time.monotonic() - 15
    waiting = [entry(tmp_path, "a1"), entry(tmp_path, "c1")]
    board = Board([*done, running, *waiting], tmp_path / "cells.csv")
    expected = 10 + (40 - 15) + (10 + 40) / 2  # of c nothing is known: the mean of all
    assert board.seconds_left() == pytest.approx(expected, abs=0.1)
    board.at_once = 2
    assert board.seconds_left() == pytest.approx(expected / 2, abs=0.1)
    assert Board(waiting, tmp_path / "none.csv").seconds_left() is None


def show(board: Board, changed: list[Entry], terminal: bool) -> str:
    console = Console(force_terminal=terminal, width=100, record=True, quiet=False, file=None)
    with console.capture() as captured, GridView("toy", console) as view:
        view.look(board, changed)
    return captured.get()


@pytest.fixture
def mixed(tmp_path: Path) -> Board:
    entries = [
        entry(tmp_path, f"a{n}", state=state)
        for n, state in enumerate(("done", "running", "failed", "waiting"))
    ]
    entries[0].seconds, entries[1].began = 30.0, time.monotonic()
    entries[2].error = "the loss is nan"
    board = Board(entries, tmp_path / "cells.csv")
    entries[0].seconds = 30.0
    return board


def test_a_terminal_shows_all_cells_and_why_some_failed(mixed: Board) -> None:
    shown = show(mixed, [], terminal=True)
    assert "1 of 4 done, 1 running, 1 failed" in shown
    assert "about 60 s left" in shown
    assert all(mark in shown for mark in "✓▶✗·")
    assert "the loss is nan" in shown


def test_elsewhere_every_change_is_a_line(mixed: Board) -> None:
    lines = show(mixed, mixed.entries[:3], terminal=False).splitlines()
    assert lines[0] == "[2/4] done a0 in 30 s"
    assert "about 60 s left" in lines[1]
    assert lines[2] == "[2/4] running a1"
    assert lines[3].startswith("[2/4] failed a2: the loss is nan (")
    assert show(mixed, [], terminal=False) == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(4.6, "5 s"), (89, "89 s"), (600, "10 min"), (3600 * 25.5, "25 h 30 min")],
)
def test_durations_are_said_in_the_unit_that_fits(seconds: float, words: str) -> None:
    assert duration(seconds) == words
