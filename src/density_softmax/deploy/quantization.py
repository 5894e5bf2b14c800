"""Quantises the encoder to 8 bits, and measures what that changes.

Convolutions, linear layers and the operations between them are quantised statically, weights per
channel. Density, scale and head stay in float32: a log density is a sum of hundreds of terms,
whose rounding errors would add up.
"""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from density_softmax import metrics
from density_softmax.deploy.graph import SCOPES, as_graph_input, quiet
from density_softmax.errors import UserError
from density_softmax.serve.answer import Answer
from density_softmax.types import Source

# The operations from one convolution to the next that onnxruntime has integer forms of.
OPERATIONS = ("Conv", "Gemm", "MatMul", "Add", "Relu")
NUM_CALIBRATION = 512
BATCH_SIZE = 64

Run = Callable[[NDArray[Any]], Answer]


class Change(NamedTuple):
    """Results on held-out data before and after quantisation.

    Attributes:
        accuracy: before, after.
        ece: before, after.
        log_density_shift: mean of log p after minus before, where −log p is the epistemic
            uncertainty.
        log_density_spread: standard deviation of the same difference.
        log_density_deviation: standard deviation of log p itself, for comparison.
        same_label: share of inputs that keep their label.
    """

    accuracy: tuple[float, float]
    ece: tuple[float, float]
    log_density_shift: float
    log_density_spread: float
    log_density_deviation: float
    same_label: float


def quantized(proto: Any, calibration: Source) -> Any:
    """The ONNX model with an encoder in 8 bits.

    Args:
        proto: an ONNX `ModelProto`.
        calibration: data that sets the ranges of the activations.
    """
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    feeds = ({"x": x} for x in _calibration_batches(calibration))
    with tempfile.TemporaryDirectory() as folder, quiet():
        files = [Path(folder) / name for name in ("float.onnx", "ready.onnx", "int8.onnx")]
        onnx.save(proto, files[0])
        quant_pre_process(files[0], files[1], skip_optimization=True, skip_symbolic_shape=True)
        quantize_static(
            files[1],
            files[2],
            SimpleNamespace(get_next=lambda: next(feeds, None)),
            quant_format=QuantFormat.QDQ,
            nodes_to_quantize=_encoder_nodes(onnx.load(files[1])),
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            # Weights of 7 bits: sums of 8-bit products saturate on processors without VNNI.
            reduce_range=True,
        )
        return onnx.load(files[2])


def _encoder_nodes(proto: Any) -> list[str]:
    """Names of the encoder's operations that have an integer form.

    Additions of constants, such as the epsilons of pooled statistics, are left in float.
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
    """What quantisation changed in the answers to labelled data.

    Args:
        before: runs the exact model on a batch.
        after: runs the quantised model on a batch.
        heldout: labelled in-domain data.
    """
    rows = [(y, before(x), after(x)) for x, y in batches_of(heldout)]
    labels, exact, rounded = zip(*rows, strict=True)
    y, answers = torch.cat(labels), (Answer.joined(exact), Answer.joined(rounded))
    probs = [torch.from_numpy(answer.probs) for answer in answers]
    shift = answers[0].epistemic - answers[1].epistemic
    return Change(
        accuracy=(metrics.accuracy(probs[0], y), metrics.accuracy(probs[1], y)),
        ece=(metrics.ece(probs[0], y), metrics.ece(probs[1], y)),
        log_density_shift=float(shift.mean()),
        log_density_spread=float(shift.std()),
        log_density_deviation=float(answers[0].epistemic.std()),
        same_label=float((probs[0].argmax(1) == probs[1].argmax(1)).float().mean()),
    )


def _calibration_batches(source: Source) -> Iterator[NDArray[Any]]:
    """Up to 512 inputs, spread evenly over the data."""
    rows = np.linspace(0, len(source) - 1, min(len(source), NUM_CALIBRATION)).astype(int)
    for x, _ in batches_of(source, rows.tolist()):
        yield x


def batches_of(
    source: Source, rows: Sequence[int] | None = None
) -> Iterator[tuple[NDArray[Any], Tensor]]:
    """Inputs, as arrays, and labels of a source, in batches of 64.

    Args:
        source: labelled data.
        rows: indices of the rows to read; None reads all.
    """
    chosen = range(len(source)) if rows is None else rows
    batches = [chosen[i : i + BATCH_SIZE] for i in range(0, len(chosen), BATCH_SIZE)]
    for x, y in source.read(batches, torch.device("cpu")):
        yield as_graph_input(x).numpy(), y


def _scope(node: Any) -> set[str]:
    """Names of the modules that an operation belongs to."""
    texts = [entry.value for entry in node.metadata_props if entry.key == SCOPES]
    return {part for text in texts for scope in ast.literal_eval(text) for part in scope.split(".")}
