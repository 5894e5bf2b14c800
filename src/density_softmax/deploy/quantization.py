"""An encoder in 8 bits before density, scale and head in float32, and what it costs.

Convolutions, linear layers and what stands between them are quantised statically, weights per
channel. Everything behind the features stays in float32: a log density is a sum of hundreds of
terms, whose rounding errors would add up.
"""

from __future__ import annotations

import ast
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from density_softmax import metrics
from density_softmax.deploy.graph import as_read
from density_softmax.errors import UserError
from density_softmax.serve.predictor import Answer
from density_softmax.types import Source

__all__ = ["Change", "batches_of", "measured_change", "quantized"]

# What onnxruntime computes in integers between one convolution and the next.
OPERATIONS = ("Conv", "Gemm", "MatMul", "Add", "Relu")
NUM_CALIBRATION = 512
BATCH_SIZE = 64
SCOPES = "pkg.torch.onnx.name_scopes"

Run = Callable[[NDArray[Any]], Answer]


class Change(NamedTuple):
    """Figures on held-out data before and after quantisation.

    Attributes:
        accuracy: before, after.
        ece: before, after.
        log_density_shift: mean of log p after minus before, where −log p is the epistemic part.
        log_density_spread: standard deviation of the same difference.
        log_density_deviation: standard deviation of log p itself, for comparison.
        same_label: share of inputs whose label stays.
    """

    accuracy: tuple[float, float]
    ece: tuple[float, float]
    log_density_shift: float
    log_density_spread: float
    log_density_deviation: float
    same_label: float


def quantized(proto: Any, calibration: Source) -> Any:
    """The ONNX model with an encoder in 8 bits; the data give the ranges of activations."""
    import onnx
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.batches = calibration_batches(calibration)

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            return next(({"x": x} for x in self.batches), None)

    with tempfile.TemporaryDirectory() as folder, _quiet():
        files = [Path(folder) / name for name in ("float.onnx", "ready.onnx", "int8.onnx")]
        onnx.save(proto, files[0])
        quant_pre_process(files[0], files[1], skip_optimization=True, skip_symbolic_shape=True)
        quantize_static(
            files[1],
            files[2],
            Reader(),
            quant_format=QuantFormat.QDQ,
            nodes_to_quantize=encoder_nodes(onnx.load(files[1])),
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            # Weights of 7 bits: sums of 8-bit products saturate on processors without VNNI.
            reduce_range=True,
        )
        return onnx.load(files[2])


def encoder_nodes(proto: Any) -> list[str]:
    """Names of the encoder's operations that have an integer form.

    An addition of a constant is no part of the network's flow of activations: such are the
    epsilons of pooled statistics.
    """
    constants = {tensor.name for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        constants |= set(node.output) if node.op_type == "Constant" else set()
    names = [
        node.name
        for node in proto.graph.node
        if node.op_type in OPERATIONS
        and "encoder" in _scope(node)
        and not (node.op_type == "Add" and constants & set(node.input))
    ]
    if not names:
        raise UserError("quantize: the model has no encoder of layers that can be quantised")
    return names


def measured_change(before: Run, after: Run, heldout: Source) -> Change:
    """What quantisation did to predictions on labelled data."""
    found: dict[str, list[torch.Tensor]] = {"y": []}
    for x, y in batches_of(heldout):
        found["y"].append(y)
        for when, run in (("before", before), ("after", after)):
            answer = run(x)
            found.setdefault(f"{when} probs", []).append(torch.from_numpy(answer.probs))
            found.setdefault(f"{when} epistemic", []).append(torch.from_numpy(answer.epistemic))
    rows = {name: torch.cat(parts) for name, parts in found.items()}
    probs, y = (rows["before probs"], rows["after probs"]), rows["y"]
    shift = rows["before epistemic"] - rows["after epistemic"]
    return Change(
        accuracy=(metrics.accuracy(probs[0], y), metrics.accuracy(probs[1], y)),
        ece=(metrics.ece(probs[0], y), metrics.ece(probs[1], y)),
        log_density_shift=float(shift.mean()),
        log_density_spread=float(shift.std(correction=0)),
        log_density_deviation=float(rows["before epistemic"].std(correction=0)),
        same_label=float((probs[0].argmax(1) == probs[1].argmax(1)).float().mean()),
    )


def calibration_batches(source: Source) -> Iterator[NDArray[Any]]:
    """Up to 512 inputs, spread evenly over the data."""
    rows = np.linspace(0, len(source) - 1, min(len(source), NUM_CALIBRATION)).astype(int)
    for x, _ in batches_of(source, rows.tolist()):
        yield x


def batches_of(
    source: Source, rows: Sequence[int] | None = None
) -> Iterator[tuple[NDArray[Any], Tensor]]:
    """Inputs as arrays and labels of the rows of a source, or of all of them, in batches."""
    chosen = range(len(source)) if rows is None else rows
    batches = [chosen[i : i + BATCH_SIZE] for i in range(0, len(chosen), BATCH_SIZE)]
    for x, y in source.read(batches, torch.device("cpu")):
        yield as_read(x).numpy(), y


def _scope(node: Any) -> set[str]:
    """Names of the modules that an operation is from."""
    texts = [entry.value for entry in node.metadata_props if entry.key == SCOPES]
    return {part for text in texts for scope in ast.literal_eval(text) for part in scope.split(".")}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without onnxruntime's advice, which is for whoever calls it."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
