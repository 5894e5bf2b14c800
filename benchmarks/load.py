"""Clients of an HTTP service that cost little, so that two cores can hold both sides.

Requests are bytes that are prepared beforehand; each connection sends one at a time.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


@dataclass
class Load:
    """What came of some requests.

    Attributes:
        seconds: from the first request to the last answer.
        latency: of the requests that were answered with 200, in seconds.
        statuses: how many answers had each status; 0 is a connection that broke.
        answers: what `check` returned, for each answer with 200.
    """

    seconds: float = 0.0
    latency: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    answers: list[Any] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Requests per second that were answered with 200."""
        return self.statuses.get(200, 0) / self.seconds

    def add(self, other: Load) -> None:
        """What came of some more requests."""
        self.seconds += other.seconds
        self.answers += other.answers
        for status, count in other.statuses.items():
            self.statuses[status] = self.statuses.get(status, 0) + count

    def quantile(self, share: float) -> float:
        """Of the latency, in milliseconds."""
        return 1000 * float(np.quantile(self.latency, share)) if self.latency else float("nan")


class Connection(asyncio.Protocol):
    """A connection that is kept open."""

    def __init__(self) -> None:
        self._data, self._size = bytearray(), -1
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """Called by asyncio."""
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio."""
        self.transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((0, b""))

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._data += data
        if self._size < 0 and (end := self._data.find(b"\r\n\r\n")) >= 0:
            found = LENGTH.search(self._data, 0, end)
            self._size = end + 4 + (int(found[1]) if found else 0)
        if 0 <= self._size <= len(self._data) and self._answer is not None:
            status, body = int(self._data[9:12]), bytes(self._data[: self._size])
            self._data, self._size = bytearray(), -1
            self._answer.set_result((status, body[body.find(b"\r\n\r\n") + 4 :]))

    def ask(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        """Send a request."""
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._answer


def request(path: str, body: bytes, kind: str, headers: dict[str, str] | None = None) -> bytes:
    """The bytes of a request."""
    given = {"Host": "localhost", "Content-Type": kind, **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"POST {path} HTTP/1.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


def binary(path: str, name: str, kind: str, x: Any, outputs: Sequence[str]) -> bytes:
    """An inference request with binary tensors."""
    data, size = x.tobytes(), "binary_data_size"
    entry = {"name": name, "datatype": kind, "shape": list(x.shape)}
    wanted = [{"name": each, "parameters": {"binary_data": True}} for each in outputs]
    text = {"inputs": [{**entry, "parameters": {size: len(data)}}], "outputs": wanted}
    head = json.dumps(text).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    return request(path, head + data, "application/octet-stream", length)


def drive(
    port: int,
    requests: Sequence[bytes],
    clients: int,
    seconds: float,
    rate: float | None = None,
    check: Callable[[int, bytes], Any] | None = None,
) -> Load:
    """Send requests for some seconds.

    Args:
        port: of the service, on this machine.
        requests: sent in turn.
        clients: connections.
        seconds: to send for.
        rate: requests per second that are due, however long answers take, which counts as
            latency; None sends the next when the last is answered.
        check: called with the number of the request and the body of its answer.
    """
    return asyncio.run(_drive(port, requests, clients, seconds, rate, check))


async def _drive(
    port: int,
    requests: Sequence[bytes],
    clients: int,
    seconds: float,
    rate: float | None,
    check: Callable[[int, bytes], Any] | None,
) -> Load:
    load, loop, began, sent = Load(), asyncio.get_running_loop(), perf_counter(), 0

    async def client() -> None:
        nonlocal sent
        connection = Connection()
        while True:
            number, sent = sent, sent + 1
            due = perf_counter() if rate is None else began + number / rate
            if due >= began + seconds:
                return
            if (wait := due - perf_counter()) > 0:
                await asyncio.sleep(wait)
            if connection.transport is None:
                _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
            status, body = await connection.ask(requests[number % len(requests)])
            load.statuses[status] = load.statuses.get(status, 0) + 1
            if status == 200:
                load.latency.append(perf_counter() - due)
                if check is not None:
                    load.answers.append(check(number % len(requests), body))

    await asyncio.gather(*(client() for _ in range(clients)))
    load.seconds = perf_counter() - began
    return load
