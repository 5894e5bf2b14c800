"""What stands before every request: host, origin, token, size and time; errors become JSON."""

from __future__ import annotations

import asyncio
import hmac
import json
import sys
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from time import perf_counter
from typing import Any, final
from urllib.parse import urlsplit

from density_softmax.service.batching import OverloadedError
from density_softmax.service.metrics import Metrics
from density_softmax.service.requests import RequestError
from density_softmax.service.settings import Settings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# Without a token: what tells nothing about models and inputs.
OPEN = ("/", "/page.js", "/page.css", "/v2/health/live", "/v2/health/ready")
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; "
        b"frame-ancestors 'none'",
    ),
)


@final
class Guard:
    """An ASGI application around another.

    Args:
        app: the other.
        settings: token and limits.
        metrics: that count requests.
    """

    def __init__(self, app: Application, settings: Settings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._token = None if settings.token is None else settings.token.encode()
        self._hosts = frozenset(map(str.lower, settings.hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or the life of the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, exchange = perf_counter(), _Exchange(receive, send, self._settings)
        try:
            headers = dict(scope["headers"])
            self._check(scope["path"], headers)
            exchange.check_body(headers)
            await exchange.within_time(self._app(scope, exchange.receive, exchange.send))
        except Exception as error:
            if exchange.status:  # the answer has begun: only the connection can tell
                raise
            await refuse(error, exchange.send)
        finally:
            self._count(scope, exchange.status, perf_counter() - began)

    def _check(self, path: str, headers: dict[bytes, bytes]) -> None:
        asked, origin = headers.get(b"host", b"").lower(), headers.get(b"origin")
        if self._hosts and _name(asked) not in self._hosts:
            name = _name(asked)[:80]
            raise RequestError(
                403, f"nothing is served under the name '{name}': start with --allow-host {name}"
            )
        if origin is not None and _host(origin) != asked:
            raise RequestError(403, "a page of another site may not send requests")
        if self._token is None or path in OPEN:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
            raise RequestError(401, "send the header 'Authorization: Bearer TOKEN'")

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        endpoint = getattr(scope.get("endpoint"), "__name__", "none")
        self._metrics.requests.labels(endpoint, str(status)).inc()
        self._metrics.seconds.labels(endpoint).observe(seconds)


@final
class _Exchange:
    """A request and its answer, within limits.

    Args:
        receive: gives the body.
        send: takes the answer.
        settings: the limits.
    """

    def __init__(self, receive: Receive, send: Send, settings: Settings) -> None:
        self._receive, self._send, self._settings = receive, send, settings
        self._read, self._is_whole, self._is_late = 0, False, False
        self.status = 0  # of the answer; 0 before it begins

    def check_body(self, headers: dict[bytes, bytes]) -> None:
        """Refuse a body that says itself that it cannot be read."""
        most, length = self._settings.body, headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > most:
            raise RequestError(413, f"a body of {int(length):,} bytes, more than {most:,}")
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise RequestError(415, "a compressed body: send it as it is")

    async def receive(self) -> MutableMapping[str, Any]:
        """The next part of the body, if all of it is within the limit."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise RequestError(400, "the connection ended within the request")
        self._read += len(message.get("body", b""))
        if self._read > self._settings.body:
            raise RequestError(413, f"a body of more than {self._settings.body:,} bytes")
        self._is_whole = not message.get("more_body", False)
        return message

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """A part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        await self._send(message)

    async def within_time(self, work: Awaitable[None]) -> None:
        """Give up what has not begun to answer in time."""
        task, seconds = asyncio.current_task(), self._settings.seconds
        assert task is not None

        def give_up() -> None:
            self._is_late = not self.status
            if self._is_late:
                task.cancel()

        timer = asyncio.get_running_loop().call_later(seconds, give_up)
        try:
            await work
        except asyncio.CancelledError:
            if not self._is_late:
                raise
            reason = f"not done within {seconds:g} s; try again later, with less"
            raise RequestError(503 if self._is_whole else 408, reason) from None
        finally:
            timer.cancel()


def _name(host: bytes) -> str:
    """The name or address in a Host header, without the port."""
    text = host.decode("latin-1")
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]


def _host(origin: bytes) -> bytes:
    try:
        return urlsplit(origin.decode("latin-1")).netloc.lower().encode("latin-1")
    except ValueError:
        return b""


async def refuse(error: Exception, send: Send) -> None:
    """Answer with an error: its reason if a client can cure it, never a stack trace.

    Args:
        error: what went wrong.
        send: of the request.
    """
    status, reason, headers = 500, "internal error", []
    if isinstance(error, RequestError):
        status, reason = error.status, str(error)
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
    elif isinstance(error, OverloadedError):
        status, reason = 429, str(error)
        headers.append((b"retry-after", f"{error.seconds:.0f}".encode()))
    else:
        traceback.print_exception(error, file=sys.stderr)
    if status in (408, 413):  # the rest of the body is not read
        headers.append((b"connection", b"close"))
    body = json.dumps({"error": reason}).encode()
    kind = (b"content-type", b"application/json")
    headers += [kind, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
