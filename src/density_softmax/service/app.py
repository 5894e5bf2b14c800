"""The service as an ASGI application: it binds nothing, whatever runs it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import resources
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from density_softmax import __version__
from density_softmax.errors import UserError
from density_softmax.service.guard import Guard, refuse
from density_softmax.service.metrics import Metrics
from density_softmax.service.models import Model, Outcome, Shelf
from density_softmax.service.openapi import describe_service
from density_softmax.service.protocol import HEADER, Infer, describe, parse_infer, render
from density_softmax.service.records import NUM_PROBS, as_csv, records
from density_softmax.service.requests import (
    INLINE,
    RequestError,
    Upload,
    is_small,
    read_inputs,
)
from density_softmax.service.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

    from density_softmax.decide.policy import Policy

# The files of the page; no other file can be asked for.
PAGE = {"/": ("page.html", "text/html"), "/page.js": ("page.js", "text/javascript")}
PAGE["/page.css"] = ("page.css", "text/css")


def create_app(models: Sequence[str | Path], settings: Settings | None = None) -> FastAPI:
    """The application that serves some models.

    Args:
        models: .onnx files that `density_softmax.export` wrote.
        settings: of the service; None takes the defaults.
    """
    try:
        from fastapi import FastAPI
        from starlette.exceptions import HTTPException
    except ModuleNotFoundError:
        raise UserError("serve needs more packages: pip install 'density-softmax[serve]'") from None
    service = Service(models, settings or Settings())
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=service.lifespan)
    for path, methods, endpoint in service.routes():
        app.add_route(path, endpoint, methods=methods, include_in_schema=False)
    app.add_exception_handler(HTTPException, _plain_error)
    app.add_middleware(Guard, settings=service.settings, metrics=service.metrics)
    app.state.service = service
    return app


async def _plain_error(request: Request, error: Exception) -> Any:
    """Errors of the framework, such as an unknown path, in the form of all others."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        status, detail = getattr(error, "status_code", 500), str(getattr(error, "detail", ""))
        await refuse(RequestError(status, detail), send)

    return answer


@final
class Service:
    """What the endpoints do.

    Args:
        models: .onnx files.
        settings: of the service.
    """

    def __init__(self, models: Sequence[str | Path], settings: Settings) -> None:
        self.settings, self.metrics = settings, Metrics()
        self.shelf = Shelf(models, settings, self.metrics.count_batch, self._reloaded)
        self.ready = False

    def _reloaded(self, name: str, loads: bool) -> None:
        self.metrics.reloads.labels(name, str(loads).lower()).inc()

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Start what serves; at the end, answer what waits."""
        self.shelf.start()
        tending = asyncio.create_task(self.shelf.tend())
        self.ready = True
        try:
            yield
        finally:
            self.ready = False
            tending.cancel()
            with suppress(asyncio.CancelledError):
                await tending
            await self.shelf.close()

    def routes(self) -> list[tuple[str, list[str], Any]]:
        """Paths, methods and endpoints."""
        model, version = "/v2/models/{name}", "/v2/models/{name}/versions/{version}"
        get = {
            "/v2/health/live": self.live,
            "/v2/health/ready": self.is_ready,
            "/v2": self.server,
            "/v2/models": self.list_models,
            model: self.metadata,
            version: self.metadata,
            f"{model}/ready": self.model_ready,
            f"{version}/ready": self.model_ready,
            "/monitor": self.monitor,
            "/monitor/{name}": self.monitor,
            "/metrics": self.numbers,
            "/openapi.json": self.openapi,
            **dict.fromkeys(PAGE, self.page),
        }
        post = {
            f"{model}/infer": self.infer,
            f"{version}/infer": self.infer,
            "/predict": self.predict,
            "/predict/{name}": self.predict,
            "/monitor/acknowledge": self.acknowledge,
            "/monitor/{name}/acknowledge": self.acknowledge,
        }
        found = [(path, ["POST"], endpoint) for path, endpoint in post.items()]
        return [*found, *((path, ["GET"], endpoint) for path, endpoint in get.items())]

    async def live(self, request: Request) -> Response:
        """Whether the process answers."""
        return _json({"live": True})

    async def is_ready(self, request: Request) -> Response:
        """Whether requests are served."""
        return _json({"ready": self.ready}, 200 if self.ready else 503)

    async def server(self, request: Request) -> Response:
        """The server and its extensions."""
        names = ["binary_tensor_data"]
        return _json({"name": "density-softmax", "version": __version__, "extensions": names})

    async def list_models(self, request: Request) -> Response:
        """The names of the models."""
        return _json({"models": list(self.shelf.models)})

    async def metadata(self, request: Request) -> Response:
        """Inputs, outputs and what else a client can know about a model."""
        return _json(described(self._model(request)))

    async def model_ready(self, request: Request) -> Response:
        """Whether a model is served."""
        model = self._model(request)
        return _json({"name": model.name, "ready": self.ready}, 200 if self.ready else 503)

    async def monitor(self, request: Request) -> Response:
        """Monitor, decisions over time and latest unknown inputs of a model."""
        return await self._watched(self._model(request))

    async def acknowledge(self, request: Request) -> Response:
        """Somebody has seen the alarm of a model: its monitor starts over."""
        model = self._model(request)
        await asyncio.to_thread(model.watcher.acknowledge)
        return await self._watched(model)

    async def _watched(self, model: Model) -> Response:
        view = await asyncio.to_thread(model.watcher.view)
        return _json({"model": model.name, "version": model.version, **view})

    async def numbers(self, request: Request) -> Response:
        """What Prometheus reads."""
        text = await asyncio.to_thread(self.metrics.text, self.shelf)
        return _response(text, "text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, request: Request) -> Response:
        """The description of all this."""
        return _json(describe_service(self.shelf.models, self.settings))

    async def page(self, request: Request) -> Response:
        """A file of the page."""
        name, kind = PAGE[request.url.path]
        content = resources.files("density_softmax.service").joinpath("page", name).read_bytes()
        return _response(content, f"{kind}; charset=utf-8")

    async def infer(self, request: Request) -> Response:
        """Tensors, by the Open Inference Protocol."""
        with self._model(request).used() as model:
            return await self._infer(model, request)

    async def _infer(self, model: Model, request: Request) -> Response:
        body, header = await request.body(), request.headers.get(HEADER)
        small = len(body) < INLINE
        call = await self._read(small, parse_infer, body, header)
        x = network_input(model, call, self.settings)
        outcome = await self._answer(model, x)
        head = {"model_name": model.name, "model_version": model.version}
        content, length = render(head, outcome.columns, call)
        if length is None:
            return _response(content, "application/json")
        return _response(content, "application/octet-stream", {HEADER: str(length)})

    async def predict(self, request: Request) -> Response:
        """What people have at hand: images, JSON rows, CSV."""
        with self._model(request).used() as model:
            return await self._predict(model, request)

    async def _predict(self, model: Model, request: Request) -> Response:
        until = perf_counter() + self.settings.seconds
        uploads = await self._uploads(request)
        small = is_small(uploads)
        chunk = await self._read(small, read_inputs, uploads, model.card, self.settings, until)
        readable = np.isfinite(chunk.x).all(axis=tuple(range(1, chunk.x.ndim)))
        if not readable.any():
            pairs = zip(chunk.names, chunk.notes, strict=True)
            notes = [f"{name}: {note or 'not finite'}" for name, note in pairs]
            raise RequestError(422, f"no input can be read: {'; '.join(notes[:5])}")
        outcome = await self._answer(model, chunk.x[readable])
        wanted = len(model.card.class_names) if "all" in request.query_params else NUM_PROBS
        found = records(chunk, readable, outcome, model.card, wanted)
        if "text/csv" in request.headers.get("accept", ""):
            return _response(as_csv(found).encode(errors="replace"), "text/csv; charset=utf-8")
        return _json({"model": model.name, "version": model.version, "predictions": found})

    def _model(self, request: Request) -> Model:
        name, version = (request.path_params.get(key) for key in ("name", "version"))
        model = self.shelf.first if name is None else self.shelf[name]
        if version not in (None, model.version):
            raise RequestError(404, f"no version '{version[:80]}': there is {model.version}")
        return model

    async def _uploads(self, request: Request) -> list[Upload]:
        """The files of a form, or the body as one."""
        kind = request.headers.get("content-type", "")
        if not kind.lower().startswith("multipart/form-data"):
            body = await request.body()
            return [Upload("", kind, body)] if body else []
        most = self.settings.rows
        async with request.form(max_files=most, max_fields=most) as form:
            parts = [part for _, part in form.multi_items() if not isinstance(part, str)]
            return [
                Upload(part.filename or "", part.content_type or "", await part.read())
                for part in parts
            ]

    async def _read(self, small: bool, read: Any, *arguments: Any) -> Any:
        """What is not small is read in a thread: others are answered meanwhile."""
        return read(*arguments) if small else await asyncio.to_thread(read, *arguments)

    async def _answer(self, model: Model, x: NDArray[Any]) -> Outcome:
        try:
            return await model.answer(x)
        except RequestError:
            raise
        except UserError as error:
            raise RequestError(422, str(error).replace(str(model.path), model.name)) from None


def network_input(model: Model, call: Infer, settings: Settings) -> NDArray[Any]:
    """The rows of a request as the network reads them.

    Args:
        model: which is to read them.
        call: the request: has `x`, prepared inputs, or `raw`, which are prepared here.
        settings: the limits.
    """
    name, tensors = model.predictor.input_name, dict(call.tensors)
    if list(tensors) not in ([name], ["raw"]):
        found = ", ".join(tensors)[:200] or "nothing"
        raise RequestError(400, f"inputs {found}: send {name}, or raw to have it prepared")
    key, values = tensors.popitem()
    if not values.ndim or not 0 < len(values) <= settings.rows:
        raise RequestError(
            400 if not values.ndim or not len(values) else 413,
            f"input '{key}' of shape {list(values.shape)}: send 1 to {settings.rows} rows",
        )
    try:
        return values if key == name else model.predictor.prepare(values)
    except UserError as error:
        raise RequestError(400, str(error).replace(str(model.path), model.name)) from None


def described(model: Model) -> dict[str, Any]:
    """The metadata of a model: those of the protocol, and what the page needs.

    Args:
        model: which.
    """
    card, policy = model.card, model.predictor.policy
    number = np.dtype(np.float32)
    names = {"probs": [len(card.class_names)], "aleatoric": [], "epistemic": []}
    outputs = [describe(name, number, shape) for name, shape in names.items()]
    if card.experts:
        outputs.append(describe("contributions", number, [len(card.experts)]))
    text = np.dtype(np.str_)
    outputs.append(describe("label", text, []))
    if policy is not None:
        outputs += [describe(name, text, []) for name in ("action", "reason")]
        outputs.append(describe("typicality", np.dtype(np.float64), []))
        if policy.sets is not None:
            outputs.append(describe("sets", np.dtype(np.bool_), [len(card.class_names)]))
    normalisation = card.normalisation
    return {
        "name": model.name,
        "versions": [model.version],
        "platform": "onnxruntime",
        "inputs": [describe(model.predictor.input_name, model.predictor.dtype, card.input_shape)],
        "outputs": outputs,
        "parameters": {
            "method": card.method,
            "class_names": list(card.class_names),
            "experts": list(card.experts),
            "normalisation": None if normalisation is None else vars(normalisation),
            "policy": None if policy is None else _promised(policy),
        },
    }


def _promised(policy: Policy) -> dict[str, Any]:
    settings = policy.settings
    return {
        "promises": [line.strip() for line in policy.summary().splitlines()[1:-1]],
        "coverage": settings.coverage,
        "max_error": settings.max_error,
        "false_alarms": settings.false_alarms,
    }


def _json(value: Any, status: int = 200) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(value, status)


def _response(content: bytes, kind: str, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import Response

    return Response(content, media_type=kind, headers=headers)
