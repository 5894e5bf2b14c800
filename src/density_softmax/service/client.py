"""A client of a service, with nothing but the standard library and numpy."""

from __future__ import annotations

import json
from typing import Any, final
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import numpy as np

from density_softmax.errors import UserError


@final
class Client:
    """Asks a service that `density-softmax serve` started.

    Args:
        url: such as http://127.0.0.1:8000.
        model: its name; None is the first that is served.
        token: that the service asks for.
        timeout: seconds.
    """

    def __init__(
        self, url: str, model: str | None = None, token: str | None = None, timeout: float = 60.0
    ) -> None:
        self._url, self._timeout = url.rstrip("/"), timeout
        self._path = "" if model is None else f"/{quote(model, safe='')}"
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def predict(self, rows: Any) -> list[dict[str, Any]]:
        """A record for each row: label, confidence, typicality, action, set, reason.

        Args:
            rows: dicts with the model's columns, or numbers, (batch, ...).
        """
        values = rows if isinstance(rows, list) else np.asarray(rows).tolist()
        body = json.dumps({"rows": values}).encode()
        return self._ask("/predict", body, "application/json")["predictions"]

    def predict_image(self, content: bytes) -> dict[str, Any]:
        """The record of an image.

        Args:
            content: of an image file.
        """
        return self._ask("/predict", content, "image/*")["predictions"][0]

    def monitor(self) -> dict[str, Any]:
        """Monitor, decisions over time and latest unknown inputs."""
        return self._ask("/monitor", None, "")

    def acknowledge(self) -> dict[str, Any]:
        """Tell the monitor that its alarm was seen: it starts over, and answers as `monitor`."""
        return self._ask("/monitor", b"", "", "/acknowledge")

    def _ask(self, path: str, body: bytes | None, kind: str, end: str = "") -> dict[str, Any]:
        headers = self._headers | ({"Content-Type": kind} if kind else {})
        try:
            request = Request(f"{self._url}{path}{self._path}{end}", body, headers)
            with urlopen(request, timeout=self._timeout) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise UserError(f"{self._url}{path}: {error.code}, {_reason(error)}") from None
        except (URLError, TimeoutError) as error:
            reason = getattr(error, "reason", error)
            raise UserError(f"{self._url}: no answer ({reason}); is it running?") from None


def _reason(error: HTTPError) -> str:
    """What the service said; what stands before it, such as a proxy, sends no JSON."""
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)
