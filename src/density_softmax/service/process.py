"""Runs a service: one process, or several that share a port and are started again if they die."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, final

from density_softmax.errors import UserError
from density_softmax.service.metrics import forget_process, share_numbers
from density_softmax.service.settings import Settings

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

BACKLOG = 2048
LONGEST_HEAD = 2**16  # bytes of the headers of a request
LINGER = 0.3  # seconds in which connections that were accepted may still send a request
QUICK = 5.0  # a worker that dies sooner was not able to start
TURN = 0.0005  # seconds after which Python lets another thread run: the default holds answers up
GRACE = 60.0  # seconds for what was accepted to be answered


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Args:
        host: a name or an address.
        port: 0 takes any that is free.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise _not_bound(host, port, error) from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise _not_bound(host, port, error) from None
    found.listen(BACKLOG)
    found.setblocking(False)
    return found


def _not_bound(host: str, port: int, error: OSError) -> UserError:
    return UserError(f"--host {host} --port {port}: {error}; choose another, or stop what uses it")


def serve(
    models: Sequence[str | Path], settings: Settings, listening: socket.socket, workers: int = 1
) -> None:
    """Serve until a signal says stop; then answer what was accepted.

    Args:
        models: .onnx files.
        settings: of the service.
        listening: of `bind`.
        workers: processes that share the port.
    """
    if workers == 1:
        run(models, settings, listening)
        return
    threads = settings.threads or max(1, (os.cpu_count() or 1) // workers)
    with _shared(replace(settings, threads=threads, replicas=workers)) as shared:
        Supervisor(models, shared, listening, workers).run()


def run(models: Sequence[str | Path], settings: Settings, listening: socket.socket) -> None:
    """Serve in this process.

    Args:
        models: .onnx files.
        settings: of the service.
        listening: of `bind`.
    """
    import uvicorn

    from density_softmax.service.app import create_app

    class Server(uvicorn.Server):
        """Answers requests on connections that it has accepted before it was told to stop."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for server in self.servers:
                server.close()
            await asyncio.sleep(LINGER)
            await super().shutdown(sockets)

    config = uvicorn.Config(
        create_app(models, settings),
        http=_protocol(settings.seconds),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=int(GRACE),
    )
    sys.setswitchinterval(TURN)
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, _stopped)  # which uvicorn raises again when it has stopped
    Server(config).run(sockets=[listening])


def _protocol(seconds: float) -> type[Any]:
    """HTTP on a connection, on which a request comes within some seconds."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class Protocol(HttpToolsProtocol):
        """Bounds the headers of a request; closes connections on which none comes."""

        timer: asyncio.TimerHandle | None = None
        head: int | None = None  # bytes of the headers that are being read

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_another(None)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.head is not None:
                self.head += len(data)
                if self.head > LONGEST_HEAD and not self.transport.is_closing():
                    self.send_400_response(f"headers of more than {LONGEST_HEAD} bytes")

        def on_message_begin(self) -> None:
            self.head = 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self.head = None
            super().on_headers_complete()

        def on_response_complete(self) -> None:
            answered = self.cycle
            super().on_response_complete()
            self._expect_another(answered)

        def _expect_another(self, last: object) -> None:
            """Wait for the request after the last, which is None before the first."""
            if self.timer is not None:
                self.timer.cancel()
            self.timer = self.loop.call_later(seconds, self._give_up, last)

        def _give_up(self, last: object) -> None:
            if self.cycle is last:
                self.transport.close()

    return Protocol


def _stopped(*_: Any) -> None:
    """A service that was told to stop has ended well."""


@contextmanager
def _shared(settings: Settings) -> Iterator[Settings]:
    """Settings with a folder that all processes share."""
    with tempfile.TemporaryDirectory(prefix="density-softmax-") as folder:
        share_numbers(Path(folder) / "metrics")
        yield settings if settings.state is not None else replace(settings, state=folder)


def _work(models: Sequence[str | Path], settings: Settings, listening: socket.socket) -> None:
    """The life of a worker, which ends with that of the process that started it."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    try:
        run(models, settings, listening)
    except UserError as error:
        sys.exit(f"density-softmax: {error}")


@final
class Supervisor:
    """Starts workers, and starts those again that die.

    Args:
        models: .onnx files.
        settings: of the service.
        listening: the socket that they share: what waits in it is taken by those that live.
        workers: how many.
    """

    def __init__(
        self,
        models: Sequence[str | Path],
        settings: Settings,
        listening: socket.socket,
        workers: int,
    ) -> None:
        self._models, self._settings, self._listening = models, settings, listening
        self._context = multiprocessing.get_context("spawn")
        self._stopping = self._failed = False
        self._workers: dict[int, SpawnProcess] = {}
        self._began: dict[int, float] = {}
        self._number = workers

    def run(self) -> None:
        """Watch the workers until a signal says stop."""
        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, self._stop)
        for replica in range(self._number):
            self._start(replica)
        while not self._stopping:
            connection.wait([each.sentinel for each in self._workers.values()], timeout=0.5)
            for replica, worker in list(self._workers.items()):
                if not worker.is_alive() and not self._stopping:
                    self._replace(replica, worker)
        self._listening.close()
        for worker in self._workers.values():
            worker.terminate()  # SIGTERM: it answers what it has accepted
        for worker in self._workers.values():
            worker.join(GRACE)
        if self._failed:
            raise UserError("a worker cannot start; its reason is above")

    def _start(self, replica: int) -> None:
        settings = replace(self._settings, replica=replica)
        worker = self._context.Process(
            target=_work, args=(self._models, settings, self._listening), daemon=False
        )
        worker.start()
        self._workers[replica], self._began[replica] = worker, monotonic()

    def _replace(self, replica: int, worker: SpawnProcess) -> None:
        forget_process(worker.pid or 0)
        if monotonic() - self._began[replica] < QUICK and (worker.exitcode or 0) > 0:
            self._stopping = self._failed = True  # it said why
            return
        print(
            f"density-softmax: worker {replica} ended ({worker.exitcode}); starting it again",
            file=sys.stderr,
        )
        self._start(replica)

    def _stop(self, *_: Any) -> None:
        self._stopping = True
