"""Micro-batching: requests that wait together are computed together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar, final

import numpy as np
from numpy.typing import NDArray


class Rows(Protocol):
    """A result with a row for each input."""

    def rows(self, chosen: slice) -> Any:
        """Some of its rows."""


T = TypeVar("T", bound=Rows)


class OverloadedError(Exception):
    """The queue is full."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many requests wait; try again in {seconds:.0f} s")
        self.seconds = seconds


@dataclass(eq=False)
class _Item:
    x: NDArray[Any]
    done: asyncio.Future[Any]
    arrived: float


@final
class Batcher(Generic[T]):
    """Computes what waits, in the order of arrival, as many rows at a time as fit into a batch.

    A batch begins when it is full, or when the model is free and the oldest request has waited
    for `wait` seconds. It begins at once after a batch of a single request: nobody else seems to
    be there. A request of more rows than a batch is divided, so that it delays others little.

    Args:
        run: computes a batch, (rows, ...), in a thread of its own.
        size: rows of a batch.
        wait: seconds.
        capacity: rows; when so many wait, a request is refused.
        report: called with the result, the rows and the seconds of each batch.
    """

    def __init__(
        self,
        run: Callable[[NDArray[Any]], T],
        *,
        size: int,
        wait: float,
        capacity: int,
        report: Callable[[T, int, float], None] = lambda result, rows, seconds: None,
    ) -> None:
        self._run, self._size, self._wait, self._capacity = run, size, wait, capacity
        self._report = report
        self._waiting: deque[_Item] = deque()
        self._together, self._row_seconds = False, 0.0
        self._arrived, self._full, self._idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._pool = ThreadPoolExecutor(1, "batches")
        self._task = asyncio.get_running_loop().create_task(self._serve())
        self.length = 0  # rows that wait

    async def submit(self, x: NDArray[Any]) -> list[T]:
        """The results of some rows, in pieces that were computed together.

        Args:
            x: inputs, (rows, ...); at least one.

        Raises:
            OverloadedError: if the queue is full.
        """
        if self.length >= self._capacity:
            raise OverloadedError(max(1.0, self.length * self._row_seconds))
        loop, now = asyncio.get_running_loop(), perf_counter()
        starts = range(0, len(x), self._size)
        items = [_Item(x[i : i + self._size], loop.create_future(), now) for i in starts]
        self._waiting.extend(items)
        self._count(len(x))
        try:
            if len(items) == 1:
                return [await items[0].done]
            return await asyncio.gather(*(item.done for item in items))
        finally:
            self._forget([item for item in items if item.done.cancelled()])

    async def close(self) -> None:
        """Answer what waits, then stop."""
        await self._idle.wait()
        self._task.cancel()
        self._pool.shutdown()

    def _forget(self, items: list[_Item]) -> None:
        """Take requests out of the queue that nobody waits for."""
        for item in items:
            if item in self._waiting:
                self._waiting.remove(item)
                self._count(-len(item.x))

    def _count(self, rows: int) -> None:
        self.length += rows
        for event, is_set in (
            (self._arrived, self.length),
            (self._full, self.length >= self._size),
        ):
            (event.set if is_set else event.clear)()

    async def _serve(self) -> None:
        while True:
            await self._arrived.wait()
            self._idle.clear()
            if self._together:
                await self._others()
            if batch := self._take():
                self._together = len(batch) > 1
                await self._answer(batch)
            if not self._waiting:
                self._idle.set()

    async def _others(self) -> None:
        """Wait until the batch is full or its oldest request has waited long enough."""
        left = self._waiting[0].arrived + self._wait - perf_counter()
        if left > 0 and not self._full.is_set():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._full.wait(), left)

    def _take(self) -> list[_Item]:
        batch: list[_Item] = []
        free = self._size
        while self._waiting and len(self._waiting[0].x) <= free:
            batch.append(self._waiting.popleft())
            free -= len(batch[-1].x)
        self._count(free - self._size)
        return batch

    async def _answer(self, batch: list[_Item]) -> None:
        """Compute a batch; if that fails, each request by itself: none spoils another's."""
        loop, began = asyncio.get_running_loop(), perf_counter()
        x = np.concatenate([item.x for item in batch]) if len(batch) > 1 else batch[0].x
        try:
            found = await loop.run_in_executor(self._pool, self._run, x)
        except Exception as error:
            if len(batch) > 1:
                for item in batch:
                    await self._answer([item])
            elif not batch[0].done.done():
                batch[0].done.set_exception(error)
            return
        seconds = perf_counter() - began
        self._row_seconds = seconds / len(x)
        self._report(found, len(x), seconds)
        self._give(batch, found)

    def _give(self, batch: list[_Item], found: T) -> None:
        start = 0
        for item in batch:
            stop = start + len(item.x)
            if not item.done.done():
                item.done.set_result(found.rows(slice(start, stop)))
            start = stop
