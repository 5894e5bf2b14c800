"""A method as a graph: one input, three named outputs, any batch size."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from density_softmax.errors import UserError
from density_softmax.methods.base import Method
from density_softmax.types import Prediction

__all__ = ["Graph", "as_read", "to_onnx", "trace"]


@final
class Graph(nn.Module):
    """What is exported: the prediction by name, bad rows flagged, from encoder to head."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """`probs`, `aleatoric` and `epistemic`."""
        return self.method.guarded(x)._asdict()


def as_read(x: Tensor) -> Tensor:
    """Inputs in the type that graphs read: float32, or whole numbers as they are."""
    return x.float() if x.is_floating_point() else x


@torch.no_grad()
def trace(network: nn.Module, example: Tensor) -> ExportedProgram:
    """The graph of a network in evaluation mode, for batches of any size."""
    # Batches of one are special in a trace: two rows stand for any number.
    batch = example[:1].repeat(2, *[1] * (example.ndim - 1))
    try:
        with _quiet():
            return torch.export.export(
                network, (batch,), dynamic_shapes=({0: Dim("batch")},), strict=False
            )
    except UserError:
        raise
    except Exception as error:  # of many kinds, from tracing through any code
        raise UserError(f"the model cannot be traced: {_first_line(error)}") from error


def to_onnx(program: ExportedProgram) -> Any:
    """The model as an ONNX `ModelProto`."""
    try:
        import onnxscript  # noqa: F401
    except ModuleNotFoundError:
        raise UserError("ONNX export needs onnx: pip install 'density-softmax[onnx]'") from None
    try:
        with _quiet():
            exported = torch.onnx.export(
                program,
                (),
                dynamo=True,
                input_names=["x"],
                output_names=list(Prediction._fields),
                verbose=False,
            )
    except Exception as error:
        raise UserError(f"the model cannot be written as ONNX: {_first_line(error)}") from error
    assert exported is not None, "the dynamo exporter returns a program"
    model = exported.model_proto  # made anew whenever it is asked for
    _name_batch(model.graph)
    return model


def _name_batch(graph: Any) -> None:
    """Call the free dimension `batch`, which the trace calls something like s77."""
    symbol = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            # Multiples of it keep their own names: equal names mean equal sizes.
            if dimension.dim_param == symbol:
                dimension.dim_param = "batch"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's own remarks about its own parts, which a user can do nothing about."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
