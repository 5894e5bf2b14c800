"""What stands before every request: token, origin, size of the body; errors become JSON."""

from __future__ import annotations

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or the life of the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = perf_counter(), 0

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        try:
            headers = dict(scope["headers"])
            self._check(scope["path"], headers)
            await self._app(scope, self._limited(headers, receive), answer)
        except Exception as error:
            if status:  # the answer has begun: only the connection can tell
                raise
            await refuse(error, answer)
        finally:
            self._count(scope, status, perf_counter() - began)

    def _check(self, path: str, headers: dict[bytes, bytes]) -> None:
        origin = headers.get(b"origin")
        if origin is not None and _host(origin) != headers.get(b"host", b"").lower():
            raise RequestError(403, "a page of another site may not send requests")
        if self._token is None or path in OPEN:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
            raise RequestError(401, "send the header 'Authorization: Bearer TOKEN'")

    def _limited(self, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        """What refuses to read more than the limit."""
        most, read = self._settings.body, 0
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > most:
            raise RequestError(413, f"a body of {int(length):,} bytes, more than {most:,}")
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise RequestError(415, "a compressed body: send it as it is")

        async def limited() -> MutableMapping[str, Any]:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > most:
                raise RequestError(413, f"a body of more than {most:,} bytes")
            return message

        return limited

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        endpoint = getattr(scope.get("endpoint"), "__name__", "none")
        self._metrics.requests.labels(endpoint, str(status)).inc()
        self._metrics.seconds.labels(endpoint).observe(seconds)


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
