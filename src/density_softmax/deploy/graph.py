"""A method as a graph, with one input, named outputs and any batch size, and its file formats."""

from __future__ import annotations

import io
import json
import logging
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from density_softmax.errors import UserError
from density_softmax.methods.base import Method
from density_softmax.serve.answer import Answer
from density_softmax.serve.card import Card
from density_softmax.serve.predictor import onnx_session
from density_softmax.types import Prediction

# Under which the exporter says what modules an operation belongs to.
SCOPES = "pkg.torch.onnx.name_scopes"

CARD_FILE = "density_softmax.json"
OUTPUTS = [*Prediction._fields, "contributions"]
# Elements of a constant that the ONNX exporter may compute: any number of them.
UNLIMITED = 2**40


@final
class Graph(nn.Module):
    """What is exported: a method from its encoder to its head, with bad rows flagged.

    Args:
        method: a trained method.
    """

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """`probs`, `aleatoric`, `epistemic` and, if there are any, `contributions` by name."""
        prediction = self.method.guarded(x)
        found: dict[str, Tensor] = prediction._asdict()
        if prediction.contributions is not None:
            found["contributions"] = prediction.contributions
        return found


def as_graph_input(x: Tensor) -> Tensor:
    """Inputs in the type that a graph reads: float32, or integers as they are.

    Args:
        x: (batch, ...).
    """
    return x.float() if x.is_floating_point() else x


@torch.no_grad()
def trace(network: nn.Module, example: Tensor) -> ExportedProgram:
    """The graph of a network in evaluation mode, for batches of any size.

    Args:
        network: takes a batch.
        example: (batch, ...), of which the first row is used.
    """
    # A trace treats a batch of one as a special case: two rows stand for any number.
    batch = example[:1].repeat(2, *[1] * (example.ndim - 1))
    try:
        with quiet():
            network(batch)  # from here on, values derived from its buffers are constants
            return torch.export.export(
                network, (batch,), dynamic_shapes=({0: Dim("batch")},), strict=False
            )
    except UserError:
        raise
    except Exception as error:  # of many kinds, from tracing through any code
        raise UserError(f"the model cannot be traced: {_traced_reason(error)}") from error


class Artifact(ABC):
    """An exported model, which runs here as it will run where it is deployed."""

    @abstractmethod
    def run(self, x: NDArray[Any]) -> Answer:
        """Its answer to a batch."""

    @abstractmethod
    def content(self, card: Card) -> bytes:
        """The content of its file, which includes the card."""


@final
class OnnxArtifact(Artifact):
    """An ONNX graph, run by onnxruntime; the card is its metadata.

    Args:
        proto: an ONNX `ModelProto`.
    """

    def __init__(self, proto: Any) -> None:
        self.proto = proto

    def run(self, x: NDArray[Any]) -> Answer:
        """As a predictor runs it."""
        names = [output.name for output in self.proto.graph.output]
        return Answer.of(dict(zip(names, self._session.run(names, {"x": x}), strict=True)))

    @cached_property
    def _session(self) -> Any:
        return onnx_session(self.proto.SerializeToString())

    def content(self, card: Card) -> bytes:
        """The serialised model."""
        import onnx

        onnx.helper.set_model_props(self.proto, card.to_strings())
        data: bytes = self.proto.SerializeToString()
        return data


@final
class Pt2Artifact(Artifact):
    """A program of torch.export; the card is an extra file in its archive.

    Loading one can execute code: the archive holds pickles.

    Args:
        program: a traced model.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program

    @torch.no_grad()
    def run(self, x: NDArray[Any]) -> Answer:
        """As `torch.export.load` runs it."""
        outputs = self._module(torch.from_numpy(x))
        return Answer.of({name: each.numpy() for name, each in outputs.items()})

    @cached_property
    def _module(self) -> nn.Module:
        return torch.export.load(io.BytesIO(self._saved({}))).module()

    def content(self, card: Card) -> bytes:
        """The archive."""
        return self._saved({CARD_FILE: json.dumps(card.to_strings())})

    def _saved(self, extra: Mapping[str, Any]) -> bytes:
        buffer = io.BytesIO()
        torch.export.save(self.program, buffer, extra_files=dict(extra))
        return buffer.getvalue()


def to_onnx(program: ExportedProgram) -> Any:
    """A traced model as an ONNX `ModelProto`.

    Args:
        program: of `trace`.
    """
    try:
        from onnxscript import optimizer
    except ModuleNotFoundError:
        raise UserError("ONNX export needs onnx: pip install 'density-softmax[onnx]'") from None
    try:
        with quiet():
            exported = torch.onnx.export(
                program,
                (),
                dynamo=True,
                input_names=["x"],
                output_names=OUTPUTS[: len(program.graph_signature.user_outputs)],
                verbose=False,
            )
            assert exported is not None, "the dynamo exporter returns a program"
            # By default large constants, such as a weight over its norm, would not be folded.
            optimizer.optimize(
                exported.model, input_size_limit=UNLIMITED, output_size_limit=UNLIMITED
            )
    except Exception as error:
        raise UserError(f"the model cannot be written as ONNX: {_first_line(error)}") from error
    model = exported.model_proto  # a new object on each access
    _name_batch(model.graph)
    _forget_sources(model.graph)
    return model


def _forget_sources(graph: Any) -> None:
    """Remove the lines of code that each node comes from, which name paths of this machine.

    They are half of a small file. The modules that a node belongs to stay.
    """
    for part in (graph, *graph.node, *graph.value_info, *graph.input, *graph.output):
        kept = [entry for entry in part.metadata_props if entry.key == SCOPES]
        del part.metadata_props[:]
        part.metadata_props.extend(kept)
        part.ClearField("doc_string")


def _name_batch(graph: Any) -> None:
    """Call the free dimension `batch`, which the trace calls something like s77."""
    symbol = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            # Multiples of it keep their own names: equal names mean equal sizes.
            if dimension.dim_param == symbol:
                dimension.dim_param = "batch"


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what the exporters say about themselves, which a user cannot act on."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _traced_reason(error: Exception) -> str:
    """What a model does that a graph for all batches cannot, and how to write it instead."""
    text, where = str(error), _where(error)
    if "specialized it to be a constant" in text or "Constraints violated" in text:
        return (
            f"it turns the batch size into a fixed number{where}, as len(x), int(x.shape[0]) and "
            "reshape(2, ...) do; write x.shape[0], or -1 in expand, reshape and view"
        )
    if "data-dependent" in text:
        return (
            f"it decides by the values of a tensor{where}, which a graph cannot; write torch.where "
            f"in place of if ({_first_line(error)})"
        )
    return _first_line(error)


def _where(error: Exception) -> str:
    """The line of the user's code that torch names, if it does."""
    found = re.search(r'File "([^"]+)", line (\d+), in \w+\n\s+(.+)', str(error))
    return f' at {found[1]}:{found[2]} "{found[3].strip()}"' if found else ""


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
