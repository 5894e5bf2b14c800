"""The OpenAPI description of a service, with the fields and classes of its models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from density_softmax import __version__
from density_softmax.decide.policy import ACTIONS
from density_softmax.serve.card import Card
from density_softmax.service.models import Model
from density_softmax.service.settings import Settings

NUMBER = {"type": "number"}
NULLABLE = {"type": ["number", "null"]}
TEXT = {"type": "string"}
ERROR = {"type": "object", "properties": {"error": TEXT}, "required": ["error"]}
REFUSALS = {
    "400": "not what the endpoint reads",
    "401": "no token, or a wrong one",
    "403": "asked under a name, or from a page, that is not allowed",
    "408": "the body did not come in time",
    "413": "too large, or too many rows",
    "415": "a type of content that is not read",
    "422": "no input can be read; the reasons",
    "429": "too many requests wait; Retry-After says when to try again",
    "503": "not answered in time",
}


def describe_service(models: Mapping[str, Model], settings: Settings) -> dict[str, Any]:
    """The description as JSON values.

    Args:
        models: by name; the first is meant if none is named.
        settings: of the service.
    """
    first = next(iter(models.values()))
    paths: dict[str, Any] = {"/predict": {"post": _predict(first.card, first.name, settings)}}
    for name, model in models.items():
        paths[f"/predict/{name}"] = {"post": _predict(model.card, name, settings)}
        paths[f"/v2/models/{name}"] = _get(f"Inputs and outputs of {name}.", "metadata")
        paths[f"/v2/models/{name}/ready"] = _get(f"Whether {name} is ready.", "ready")
        paths[f"/v2/models/{name}/infer"] = {"post": _infer(model)}
        paths[f"/monitor/{name}"] = _get(f"Has the stream of {name} changed?", "monitor")
        paths[f"/monitor/{name}/acknowledge"] = _acknowledge(name)
    paths["/v2/health/live"] = _get("Whether the process answers.", "live")
    paths["/v2/health/ready"] = _get("Whether requests are served.", "ready")
    paths["/v2"] = _get("The server and its extensions.", "server")
    paths["/monitor"] = _get(f"Has the stream of {first.name} changed?", "monitor")
    paths["/monitor/acknowledge"] = _acknowledge(first.name)
    paths["/metrics"] = _get("Numbers for Prometheus.", "metrics", "text/plain")
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": f"density-softmax: {', '.join(models)}", "version": __version__},
        "paths": paths,
        "components": {"schemas": {"Error": ERROR}},
    }
    if settings.token is not None:
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
    return found


def _get(summary: str, what: str, kind: str = "application/json") -> dict[str, Any]:
    content = {kind: {"schema": {"type": "string" if kind == "text/plain" else "object"}}}
    return {"get": {"summary": summary, "responses": {"200": _answer(what, content)}}}


def _acknowledge(name: str) -> dict[str, Any]:
    summary = f"An alarm of {name} was seen: start the monitor over."
    return {"post": _get(summary, "monitor")["get"]}


def _answer(description: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": dict(content)}


def _refusals() -> dict[str, Any]:
    schema = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: _answer(reason, schema) for status, reason in REFUSALS.items()}


def _predict(card: Card, name: str, settings: Settings) -> dict[str, Any]:
    answers = {
        "application/json": {"schema": prediction_schema(card)},
        "text/csv": {"schema": TEXT},
    }
    return {
        "summary": f"Predict with {name}",
        "description": f"At most {settings.rows} inputs and {settings.body:,} bytes.",
        "requestBody": {"required": True, "content": _contents(card, settings)},
        "responses": {"200": _answer("A record for each input.", answers), **_refusals()},
    }


def _contents(card: Card, settings: Settings) -> dict[str, Any]:
    """What may be sent to a model."""
    normalisation = card.normalisation
    file = {"type": "string", "format": "binary"}
    rows = {"type": "array", "items": row_schema(card), "maxItems": settings.rows}
    body = {"type": "object", "properties": {"rows": rows}, "required": ["rows"]}
    found: dict[str, Any] = {"application/json": {"schema": body}}
    many = {"type": "object", "properties": {"file": {"type": "array", "items": file}}}
    if normalisation is not None and normalisation.kind == "images":
        found["image/*"] = {"schema": file}
        found["multipart/form-data"] = {"schema": many}
    elif len(card.input_shape) == 1:
        columns = ",".join(normalisation.columns) if normalisation is not None else ""
        found["text/csv"] = {"schema": {**TEXT, "description": f"A table {columns}".strip()}}
        found["multipart/form-data"] = {"schema": many}
    return found


def row_schema(card: Card) -> dict[str, Any]:
    """A row: an object with the model's columns, or nested lists of numbers.

    Args:
        card: of the model.
    """
    schema: dict[str, Any] = dict(NUMBER)
    for size in reversed(card.input_shape):
        schema = {"type": "array", "items": schema, "minItems": size, "maxItems": size}
    columns = card.normalisation.columns if card.normalisation is not None else ()
    if not columns:
        return schema
    fields = dict.fromkeys(columns, NUMBER)
    named = {"type": "object", "properties": fields, "required": list(columns)}
    return {"anyOf": [named, schema]}


def prediction_schema(card: Card) -> dict[str, Any]:
    """The answer to a request.

    Args:
        card: of the model.
    """
    label = {"type": "string", "enum": list(card.class_names)}
    record = {
        "input": {**TEXT, "description": "the name of a file, or the number of a row"},
        "label": label,
        "confidence": {**NUMBER, "description": "probability of the label"},
        "aleatoric": {**NUMBER, "description": "entropy in nats that more data would not remove"},
        "epistemic": {**NULLABLE, "description": "higher = less known; null is infinite"},
        "typicality": {**NUMBER, "description": "share of known inputs at least as unusual"},
        "action": {"type": "string", "enum": [*ACTIONS, "bad"]},
        "set": {"type": "array", "items": label},
        "reason": {**TEXT, "description": "why the input is not answered"},
        "probs": {"type": "object", "propertyNames": label, "additionalProperties": NUMBER},
        "contributions": {
            "type": "object",
            "description": "what each expert adds to the epistemic score",
            "properties": dict.fromkeys(card.experts, NULLABLE),
        },
    }
    rows = {"type": "array", "items": {"type": "object", "properties": record}}
    return {
        "type": "object",
        "properties": {"model": TEXT, "version": TEXT, "predictions": rows},
        "required": ["model", "version", "predictions"],
    }


def _infer(model: Model) -> dict[str, Any]:
    shape = model.card.input_shape
    example = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, *shape], "data": []}]}
    body = {"application/json": {"schema": {"type": "object"}, "example": example}}
    return {
        "summary": f"Open Inference Protocol, version 2: tensors for {model.name}",
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": _answer("Tensors.", {"application/json": {"schema": {"type": "object"}}}),
            **_refusals(),
        },
    }
