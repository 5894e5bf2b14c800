"""The two forms of an exported model: both run here as they will run where they are deployed."""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from density_softmax.deploy.graph import to_onnx
from density_softmax.deploy.quantization import quantized
from density_softmax.serve.card import Card
from density_softmax.serve.predictor import Answer, onnx_session
from density_softmax.types import Source

__all__ = ["CARD_FILE", "Artifact", "OnnxArtifact", "Pt2Artifact"]

CARD_FILE = "density_softmax.json"


class Artifact(ABC):
    """A model outside of this package."""

    @abstractmethod
    def run(self, x: NDArray[Any]) -> Answer:
        """What it says about a batch."""

    @abstractmethod
    def content(self, card: Card) -> bytes:
        """Its file, with the card inside."""


@final
class OnnxArtifact(Artifact):
    """An ONNX graph, run by onnxruntime; the card is its metadata."""

    def __init__(self, proto: Any) -> None:
        self.proto = proto

    @classmethod
    def of(cls, program: ExportedProgram) -> OnnxArtifact:
        """From a traced model."""
        return cls(to_onnx(program))

    def run(self, x: NDArray[Any]) -> Answer:
        """As a predictor runs it."""
        return Answer(*self._session.run(list(Answer._fields), {"x": x}))

    @cached_property
    def _session(self) -> Any:
        return onnx_session(self.proto.SerializeToString())

    def content(self, card: Card) -> bytes:
        """The serialised model."""
        import onnx

        onnx.helper.set_model_props(self.proto, card.to_strings())
        data: bytes = self.proto.SerializeToString()
        return data

    def quantized(self, calibration: Source) -> OnnxArtifact:
        """The same with an encoder in 8 bits."""
        return OnnxArtifact(quantized(self.proto, calibration))


@final
class Pt2Artifact(Artifact):
    """A program of torch.export; the card is an extra file in its archive."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program

    @torch.no_grad()
    def run(self, x: NDArray[Any]) -> Answer:
        """As whoever loads the file runs it."""
        outputs = self._module(torch.from_numpy(x))
        return Answer(*(outputs[name].numpy() for name in Answer._fields))

    @cached_property
    def _module(self) -> torch.nn.Module:
        return torch.export.load(io.BytesIO(self._saved({}))).module()

    def content(self, card: Card) -> bytes:
        """The archive."""
        return self._saved({CARD_FILE: json.dumps(card.to_strings())})

    def _saved(self, extra: Mapping[str, Any]) -> bytes:
        buffer = io.BytesIO()
        torch.export.save(self.program, buffer, extra_files=dict(extra))
        return buffer.getvalue()
