"""Serves an exported model with onnxruntime and numpy alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from density_softmax.errors import UserError
from density_softmax.serve.card import Card

Floats = NDArray[np.float32]

# Of the inputs that an exported graph may have.
DTYPES = {
    "tensor(float)": np.float32,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
}


class Answer(NamedTuple):
    """A model's answer to a batch, as arrays; the fields are those of `Prediction`."""

    probs: Floats
    aleatoric: Floats
    epistemic: Floats


@final
class Predictor:
    """An exported model, which runs without torch. Several threads may call it at once.

    Args:
        path: an .onnx file that `density_softmax.export` wrote.
        threads: CPU threads per batch; 0 takes all.
    """

    def __init__(self, path: str | Path, threads: int = 0) -> None:
        self.path = Path(path)
        if self.path.suffix == ".pt2":
            raise UserError(
                f"{path}: .pt2 is for torch.export.load; export to a name that ends in .onnx"
            )
        if not self.path.is_file():
            raise UserError(f"{path}: no such file; make it with density_softmax.export")
        self._session = onnx_session(self.path, threads, name=str(path))
        texts = self._session.get_modelmeta().custom_metadata_map
        self.card = Card.from_strings(texts, str(path))
        self._input = self._session.get_inputs()[0]

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the columns of `probs`."""
        return self.card.class_names

    def predict(self, x: Any) -> Answer:
        """Class probabilities and both parts of the uncertainty, as `Method.predict` returns them.

        A row with a NaN, an infinite or a far too large value gets uniform probabilities and
        infinite epistemic uncertainty; the others are served as usual.

        Args:
            x: prepared inputs, (batch, *input shape).
        """
        batch = self._checked(np.asarray(x))
        if len(batch) == 0:
            empty = np.zeros(0, np.float32)
            return Answer(np.zeros((0, len(self.class_names)), np.float32), empty, empty)
        return Answer(*self._session.run(list(Answer._fields), {self._input.name: batch}))

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
        raw = np.asarray(raw)
        if self.card.normalisation.kind == "images":
            raw = self._channels_first(raw)
        self._check_shape(raw)
        return self.card.normalisation(raw)

    def unknown(self, answer: Answer, false_alarms: float = 0.05) -> NDArray[np.bool_]:
        """Which inputs are unlike the training data, (batch,).

        Args:
            answer: of `predict`.
            false_alarms: share of in-domain inputs that may be flagged: 0.01, 0.05 or 0.1.
        """
        threshold = self.card.threshold(false_alarms, str(self.path))
        if threshold is None:
            raise UserError(f"{self.path}: has no thresholds; export with heldout=, or from a run")
        return answer.epistemic > threshold

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

    def _check_shape(self, x: NDArray[Any]) -> None:
        if x.shape[1:] != self.card.input_shape or x.ndim == 0:
            raise UserError(
                f"inputs of shape {x.shape}: {self.path} reads (batch, "
                f"{', '.join(map(str, self.card.input_shape))})"
            )

    def _checked(self, x: NDArray[Any]) -> NDArray[Any]:
        self._check_shape(x)
        wanted = DTYPES[self._input.type]
        if x.dtype == np.uint8 and wanted != np.uint8:
            raise UserError("inputs are bytes: pass them through prepare() first")
        with np.errstate(over="ignore", invalid="ignore"):  # the graph flags what is infinite
            found = x.astype(wanted, copy=False)
        if np.issubdtype(wanted, np.integer) and (found != x).any():
            raise UserError(f"inputs of type {x.dtype}: {self.path} reads integers")
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
    if not spinning:
        options.add_session_config_entry("session.force_spinning_stop", "1")
    source = model if isinstance(model, bytes) else str(model)
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have nothing in common but this
        raise UserError(
            f"{name}: truncated or not an ONNX model ({' '.join(str(error).split())}); export again"
        ) from None
