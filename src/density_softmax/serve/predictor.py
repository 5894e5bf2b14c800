"""Serves an exported model with onnxruntime and numpy alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from density_softmax.decide.policy import Decision, Policy
from density_softmax.errors import UserError
from density_softmax.serve.answer import Answer, Floats
from density_softmax.serve.card import Card

# Of the inputs that an exported graph may have.
DTYPES = {
    "tensor(float)": np.float32,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
}


# Of inputs in memory, in bytes: onnxruntime would sum others in another order.
ALIGNMENT = 16
# Class names that the text of a predictor shows.
NUM_NAMED = 5
# Of each message of an ONNX file that can hold tensors: its fields that are messages, by number.
MESSAGES = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {
        **{5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
        **{22: "sparse", 23: "sparse"},
    },
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
# Of a tensor: the file that it is in, and whether it is in a file.
EXTERNAL_DATA, DATA_LOCATION = 13, 14
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


@final
class Predictor:
    """An exported model, which runs without torch. Several threads may call it at once.

    Args:
        path: an .onnx file that `density_softmax.export` wrote.
        threads: CPU threads per batch; 0 takes all.
        policy: what to do with predictions, or the .json file of one, in place of the one that
            the file holds.
        spinning: keep idle threads busy for some milliseconds, ready for the next batch. Turn it
            off where other threads need the cores.

    Attributes:
        card: what the file says about itself.
        policy: what decides about predictions; None if the model was exported without held-out
            data. If the one in the file promises nothing, inputs are called unknown at a rate of
            0.05: at most that share of inputs drawn like the held-out ones.
    """

    def __init__(
        self,
        path: str | Path,
        threads: int = 0,
        policy: Policy | str | Path | None = None,
        spinning: bool = True,
    ) -> None:
        self.path = Path(path)
        if self.path.suffix == ".pt2":
            raise UserError(
                f"{path}: .pt2 is for torch.export.load; export to a name that ends in .onnx"
            )
        if not self.path.is_file():
            found = "not a regular file" if self.path.exists() else "no such file"
            raise UserError(f"{path}: {found}; make it with density_softmax.export")
        self._session = onnx_session(self.path, threads, str(path), spinning)
        texts = self._session.get_modelmeta().custom_metadata_map
        self.card = Card.from_strings(texts, str(path)).with_policy(policy)
        self.policy = self.card.deciding()
        self._input = self._checked_input()
        self._outputs = [*Answer._fields, *["contributions"] * bool(self.card.experts)]

    def __repr__(self) -> str:
        names, thresholds = self.class_names, self.card.thresholds
        shown = ", ".join([*names[:NUM_NAMED], "..."] if len(names) > NUM_NAMED else names)
        alarms = ", ".join(f"{value:.4g} for {share:.0%}" for share, value in thresholds.items())
        policy = f", {self.policy!r}" if self.policy is not None else ""
        return (
            f"Predictor({str(self.path)!r}): {self.card.method}, {len(names)} classes ({shown}), "
            f"inputs {self.card.input_shape}, thresholds {alarms or 'none'}{policy}"
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the columns of `probs`."""
        return self.card.class_names

    @property
    def input_name(self) -> str:
        """The name of the graph's input."""
        return str(self._input.name)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the graph's input."""
        return np.dtype(DTYPES[self._input.type])

    def predict(self, x: Any, batch_size: int | None = None) -> Answer:
        """Class probabilities and both parts of the uncertainty, as `Method.predict` returns them.

        A row with a NaN, an infinite or a far too large value gets uniform probabilities and
        infinite epistemic uncertainty; the others are served as usual.

        Args:
            x: prepared inputs, (batch, *input shape).
            batch_size: how many are computed at a time; by default so many that their activations
                fit into the caches.
        """
        batch = self.checked(self._array(x))
        size = self.card.batch_size if batch_size is None else batch_size
        if size < 1:
            raise UserError(f"batch_size={size}: choose 1 or more, or None")
        if len(batch) <= size:
            return self._answer(batch)
        starts = range(0, len(batch), size)
        return Answer.joined([self._answer(batch[i : i + size]) for i in starts])

    def _answer(self, batch: NDArray[Any]) -> Answer:
        if len(batch) == 0:
            outputs = [np.zeros(shape, np.float32) for shape in self._shapes(0)]
        else:
            outputs = self._session.run(self._outputs, {self._input.name: batch})
        if (found := [each.shape for each in outputs]) != self._shapes(len(batch)):
            raise UserError(
                f"{self.path}: its card does not fit: {len(self.class_names)} class_names, but "
                f"the graph returned {tuple(found)} for {len(batch)} inputs; export it again"
            )
        by_name = dict(zip(self._outputs, outputs, strict=True))
        answer = Answer.of(by_name, self.card.experts)
        answer.typical = self.policy and self.policy.typical
        return answer

    def _shapes(self, size: int) -> list[tuple[int, ...]]:
        """Those of the outputs for a batch of this size."""
        shapes: list[tuple[int, ...]] = [(size, len(self.class_names)), (size,), (size,)]
        return [*shapes, (size, len(self.card.experts))] if self.card.experts else shapes

    def prepare(self, raw: Any) -> Floats:
        """Raw inputs as the network reads them.

        Args:
            raw: bytes (batch, height, width, channels) of images, or numbers (batch, columns).
        """
        if self.card.normalisation is None:
            raise UserError(
                f"{self.path}: does not say how inputs are prepared; "
                "export with normalisation=, or prepare them yourself"
            )
        raw = self._array(raw)
        if self.card.normalisation.kind == "images":
            raw = self._channels_first(raw)
        self._check_shape(raw)
        return self.card.normalisation(raw)

    def unknown(self, answer: Answer, false_alarms: float = 0.05) -> NDArray[np.bool_]:
        """Which inputs are unlike the training data, (batch,).

        Args:
            answer: of `predict`.
            false_alarms: share of in-domain inputs that may be flagged, from 1/(n + 1) for n
                held-out inputs.
        """
        return self._needed_policy().unknown(answer, false_alarms)

    def decide(self, x: Any) -> Decision:
        """What to do with each input, by the model's policy.

        Args:
            x: prepared inputs, (batch, *input shape).
        """
        return self._needed_policy()(self.predict(x))

    def _needed_policy(self) -> Policy:
        if self.policy is None:
            raise UserError(
                f"{self.path}: has no policy; export with policy= or heldout=, or from a run, or "
                "pass Predictor(path, policy=)"
            )
        return self.policy

    def _channels_first(self, images: NDArray[Any]) -> NDArray[Any]:
        """Bytes (batch, channels, height, width) from channels last, or from grey images."""
        channels, *size = self.card.input_shape
        if channels == 1 and images.shape[1:] == (*size,):
            images = images[..., None]
        if images.dtype != np.uint8 or images.shape[1:] != (*size, channels):
            raise UserError(
                f"images of type {images.dtype} and shape {images.shape}: {self.path} prepares "
                f"uint8 of shape (batch, {', '.join(map(str, (*size, channels)))}); "
                "np.uint8(np.rint(255 * x)) makes them of numbers between 0 and 1, "
                "x.transpose(0, 2, 3, 1) puts channels last, x[None] is a batch of one"
            )
        return np.moveaxis(images, -1, 1)

    def _checked_input(self) -> Any:
        """The graph's input, after checking that graph and card fit."""
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        shapes = {output.name: output.shape for output in outputs}
        try:
            if missing := [name for name in Answer._fields if name not in shapes]:
                raise UserError(f"the graph has no output {missing[0]}")
            self.card.check_graph({each.name: each.shape for each in inputs}, shapes)
            if inputs[0].type not in DTYPES:
                raise UserError(f"the graph reads {inputs[0].type}, not {', '.join(DTYPES)}")
        except UserError as error:
            raise UserError(
                f"{self.path}: its card does not fit: {error}; export it again"
            ) from None
        return inputs[0]

    def _array(self, x: Any) -> NDArray[Any]:
        """Inputs as an array of real numbers."""
        try:
            found = np.asarray(x)
        except ValueError as error:
            raise UserError(f"inputs do not make an array ({error})") from None
        if found.dtype.kind not in "biuf":
            raise UserError(f"inputs of type {found.dtype}: {self.path} reads real numbers")
        return found

    def _check_shape(self, x: NDArray[Any]) -> None:
        if x.shape[1:] != self.card.input_shape or x.ndim == 0:
            raise UserError(
                f"inputs of shape {x.shape}: {self.path} reads (batch, "
                f"{', '.join(map(str, self.card.input_shape))})"
            )

    def checked(self, x: NDArray[Any]) -> NDArray[Any]:
        """Prepared inputs as the graph reads them; an error if it cannot.

        Args:
            x: real numbers, (batch, *input shape).
        """
        self._check_shape(x)
        wanted = DTYPES[self._input.type]
        if x.dtype == np.uint8 and wanted != np.uint8:
            raise UserError("inputs are bytes: pass them through prepare() first")
        with np.errstate(over="ignore", invalid="ignore"):  # the graph flags what is infinite
            found = x.astype(wanted, copy=False)
        if np.issubdtype(wanted, np.integer) and (found != x).any():
            raise UserError(f"inputs of type {x.dtype}: {self.path} reads integers")
        if found.ctypes.data % ALIGNMENT:
            found = found.copy()
        return found


def onnx_session(
    model: Path | bytes, threads: int = 0, name: str = "the model", spinning: bool = True
) -> Any:
    """A session of onnxruntime on the CPU.

    Args:
        model: an ONNX file, or its content.
        threads: CPU threads per batch; 0 takes all.
        name: of the model, for error messages.
        spinning: keep idle threads busy for some milliseconds, ready for the next batch.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise UserError("serving needs onnxruntime: pip install 'density-softmax[onnx]'") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only
    options.add_session_config_entry("session.load_model_format", "ONNX")
    if not spinning:
        options.add_session_config_entry("session.force_spinning_stop", "1")
    content = model if isinstance(model, bytes) else model.read_bytes()
    refuse_external_data(content, name)
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have nothing in common but this
        raise UserError(
            f"{name}: truncated or not an ONNX model ({' '.join(str(error).split())}); export again"
        ) from None


def refuse_external_data(content: bytes, name: str) -> None:
    """Refuse an ONNX model with tensors in other files, which may be any file that we can read.

    Some versions of onnxruntime read them, wherever they are. The content is followed along the
    protocol buffers that can hold tensors; other fields are skipped.

    Args:
        content: of an ONNX file.
        name: of the model, for error messages.
    """
    waiting = [("model", 0, len(content))]
    try:
        while waiting:
            kind, begin, end = waiting.pop()
            for field, value, start in _fields(content, begin, end):
                if kind == "tensor" and (
                    field == EXTERNAL_DATA or (field == DATA_LOCATION and value)
                ):
                    raise UserError(
                        f"{name}: has tensors in other files, which are not read; export again, "
                        "into one file"
                    )
                if field in MESSAGES[kind] and start is not None:
                    waiting.append((MESSAGES[kind][field], start, start + value))
    except IndexError:
        raise UserError(f"{name}: truncated or not an ONNX model; export again") from None


def _fields(content: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int | None]]:
    """The fields of a protocol buffer: number; value or length; where the bytes begin, if any.

    Raises:
        IndexError: if it is none.
    """
    at = begin
    while at < end:
        tag, at = _varint(content, at)
        field, wire = (tag & 0xFFFFFFFF) >> 3, tag & 7
        value, start = 0, None
        if wire in (VARINT, LENGTH):
            value, at = _varint(content, at)
        if wire == LENGTH:
            start, at = at, at + value
        elif wire in (FIXED32, FIXED64):
            at += 4 if wire == FIXED32 else 8
        elif wire != VARINT:
            raise IndexError("groups are not used in ONNX")
        if at > end:
            raise IndexError("it ends early")
        yield field, value, start


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError("longer than ten bytes")
