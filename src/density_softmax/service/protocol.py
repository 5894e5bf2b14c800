"""The Open Inference Protocol, version 2: requests and answers as JSON, or as JSON and bytes.

https://github.com/kserve/open-inference-protocol, with the extension for binary tensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from density_softmax.service.requests import RequestError, parse_json

HEADER = "Inference-Header-Content-Length"
TYPES: dict[str, type[np.generic]] = {
    "BOOL": np.bool_,
    **{f"UINT{bits}": getattr(np, f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": getattr(np, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": getattr(np, f"float{bits}") for bits in (16, 32, 64)},
}
MOST_DIMENSIONS = 32  # of a tensor
NAMES = {np.dtype(kind): name for name, kind in TYPES.items()}


@dataclass(frozen=True)
class Infer:
    """What a request asks for.

    Attributes:
        tensors: the inputs by name.
        outputs: by the names asked for, whether as bytes; empty asks for all.
        binary: whether outputs are bytes unless a request says otherwise.
        id: of the request, which the answer repeats.
    """

    tensors: Mapping[str, NDArray[Any]]
    outputs: Mapping[str, bool]
    binary: bool
    id: str | None


def type_name(dtype: np.dtype[Any]) -> str:
    """The protocol's name of a type; texts are BYTES.

    Args:
        dtype: of an array.
    """
    return NAMES.get(dtype, "BYTES")


def parse_infer(body: bytes, header_length: str | None) -> Infer:
    """Read a request.

    Args:
        body: JSON, and after it the bytes of tensors.
        header_length: bytes of the JSON, as the header says; None if there is nothing else.
    """
    length = len(body)
    if header_length is not None:
        number = header_length.isascii() and header_length.isdigit() and len(header_length) < 20
        if not number or int(header_length) > length:
            raise RequestError(400, f"{HEADER} '{header_length[:40]}': the body has {length} bytes")
        length = int(header_length)
    request = parse_json(body[:length])
    try:
        return _checked(request, memoryview(body)[length:])
    except (KeyError, TypeError, AttributeError) as error:
        raise RequestError(
            400, f"not an inference request ({error!r}): send inputs with name, shape and datatype"
        ) from None


def _checked(request: Any, rest: memoryview) -> Infer:
    tensors: dict[str, NDArray[Any]] = {}
    for given in request["inputs"]:
        name = given["name"]
        if not isinstance(name, str) or name in tensors:
            raise RequestError(400, f"input {str(name)[:40]!r}: give each a name of its own")
        size = given.get("parameters", {}).get("binary_data_size")
        data = given["data"] if size is None else None
        if size is not None:
            if type(size) is not int or not 0 <= size <= len(rest):
                raise RequestError(400, f"binary_data_size {size!r}: {len(rest)} bytes are left")
            data, rest = rest[:size], rest[size:]
        tensors[name] = _tensor(name, given["datatype"], given["shape"], data)
    if len(rest):
        raise RequestError(400, f"{len(rest)} bytes too many after the last input")
    binary = request.get("parameters", {}).get("binary_data_output", False) is True
    outputs = {
        str(each["name"]): each.get("parameters", {}).get("binary_data", binary) is True
        for each in request.get("outputs", [])
    }
    found = request.get("id")
    return Infer(tensors, outputs, binary, None if found is None else str(found)[:200])


def _tensor(name: str, datatype: Any, shape: Any, data: Any) -> NDArray[Any]:
    if not isinstance(datatype, str) or datatype not in TYPES:
        raise RequestError(
            400, f"input '{name}' of datatype {str(datatype)[:40]!r}: choose {', '.join(TYPES)}"
        )
    sizes = isinstance(shape, list) and len(shape) <= MOST_DIMENSIONS
    if not sizes or not all(type(n) is int and 0 <= n < 2**31 for n in shape):
        raise RequestError(400, f"input '{name}' of shape {str(shape)[:80]}: send a list of sizes")
    kind = np.dtype(TYPES[datatype])
    values = _from_bytes(name, kind, data) if isinstance(data, memoryview) else None
    if values is None:
        values = _from_json(name, kind, data)
    if math.prod(shape) != values.size:
        raise RequestError(
            400, f"input '{name}': {values.size} values for the shape {str(shape)[:80]}"
        )
    return values.reshape(shape)


def _from_bytes(name: str, kind: np.dtype[Any], data: memoryview) -> NDArray[Any]:
    if len(data) % kind.itemsize:
        raise RequestError(
            400, f"input '{name}': {len(data)} bytes are no multiple of {kind.itemsize}"
        )
    return np.frombuffer(data, kind.newbyteorder("<"))


def _from_json(name: str, kind: np.dtype[Any], data: Any) -> NDArray[Any]:
    try:
        values = np.asarray(data)
        if values.dtype.kind not in "biuf":
            raise ValueError(f"values of type {values.dtype}")
        with np.errstate(over="ignore"):
            found = values.astype(kind)
        if kind.kind in "iu" and not (found == values).all():
            raise ValueError("values out of its range")
    except (ValueError, OverflowError) as error:
        raise RequestError(400, f"input '{name}': its data are no {kind} ({error})") from None
    return found.reshape(-1)


def render(
    head: Mapping[str, Any], outputs: Mapping[str, NDArray[Any]], request: Infer
) -> tuple[bytes, int | None]:
    """An answer, and the length of its JSON if bytes come after it.

    Args:
        head: model_name and model_version.
        outputs: arrays by name, (rows, ...).
        request: what was asked for.
    """
    wanted = request.outputs or dict.fromkeys(outputs, request.binary)
    if unknown := [name for name in wanted if name not in outputs]:
        raise RequestError(400, f"no output '{unknown[0][:40]}': there are {', '.join(outputs)}")
    described, parts = [], []
    for name, binary in wanted.items():
        values = outputs[name]
        entry: dict[str, Any] = {
            "name": name,
            "datatype": type_name(values.dtype),
            "shape": list(values.shape),
        }
        if binary:
            parts.append(_to_bytes(values))
            entry["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            entry["data"] = json_values(values.reshape(-1))
        described.append(entry)
    identity = {} if request.id is None else {"id": request.id}
    text = json.dumps({**head, **identity, "outputs": described}).encode()
    return b"".join([text, *parts]), len(text) if parts else None


def _to_bytes(values: NDArray[Any]) -> bytes:
    if type_name(values.dtype) != "BYTES":
        return np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).tobytes()
    texts = [str(text).encode() for text in values.reshape(-1)]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def json_values(values: NDArray[Any]) -> list[Any]:
    """The values of an array as JSON has them: what is not finite is null.

    Args:
        values: (n,).
    """
    found: list[Any] = values.tolist()
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        return [value if math.isfinite(value) else None for value in found]
    return found


def describe(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> dict[str, Any]:
    """The metadata of a tensor.

    Args:
        name: of the tensor.
        dtype: of its values.
        shape: without the batch.
    """
    return {"name": name, "datatype": type_name(dtype), "shape": [-1, *shape]}
