"""From inputs to records, batch by batch: the memory needed does not grow with the input."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from density_softmax.errors import UserError
from density_softmax.serve.card import Card
from density_softmax.serve.inputs import Chunk, read_chunks
from density_softmax.serve.outputs import Flag, Record, open_output
from density_softmax.serve.predictor import Answer

__all__ = ["Served", "Throughput", "predict_stream", "records"]


class Served(Protocol):
    """A model that answers: an exported one or that of a run."""

    @property
    def card(self) -> Card:
        """What it says about itself."""

    def predict(self, x: NDArray[np.float32]) -> Answer:
        """Probabilities and uncertainties of a batch of prepared inputs."""


class Throughput(NamedTuple):
    """How many inputs were served in how many seconds, and how many of each flag."""

    seconds: float
    flags: Counter[str]

    @property
    def inputs(self) -> int:
        """How many were served."""
        return sum(self.flags.values())

    @property
    def rate(self) -> float:
        """Inputs per second."""
        return self.inputs / max(self.seconds, 1e-9)


def predict_stream(
    model: Served,
    path: Path,
    out: Path | None,
    *,
    false_alarms: float = 0.05,
    batch_size: int = 64,
    workers: int = 1,
    report: Callable[[Throughput], None] = lambda throughput: None,
) -> Throughput:
    """Predict everything at `path` and write a record for each input; returns the throughput."""
    if out is not None and out.exists() and path.exists() and out.samefile(path):
        raise UserError(f"--out {out}: is the input, which it would replace; choose another name")
    threshold = model.card.threshold(false_alarms)
    chunks = read_chunks(path, model.card, batch_size, workers)
    flags: Counter[str] = Counter()
    began, found = perf_counter(), Throughput(0.0, flags)
    with open_output(out) as writer:
        for batch in records(model, chunks, threshold):
            writer.write(batch)
            flags.update(record.flag for record in batch)
            found = Throughput(perf_counter() - began, flags)
            report(found)
    return found


def records(
    model: Served, chunks: Iterable[Chunk], threshold: float | None
) -> Iterator[list[Record]]:
    """The records of one batch after another."""
    for chunk in chunks:
        answer = _answer(model, chunk.x)
        yield [_record(model.card, chunk, answer, row, threshold) for row in range(len(chunk.x))]


def _answer(model: Served, x: NDArray[np.float32]) -> Answer:
    """The answers to what could be read; of the rest a graph of whole numbers could say nothing."""
    readable = np.isfinite(x).reshape(len(x), -1).all(axis=1)
    if readable.all():
        return model.predict(x)
    size, classes = len(x), len(model.card.class_names)
    answer = Answer(
        np.full((size, classes), 1 / classes, np.float32),
        np.full(size, math.log(classes), np.float32),
        np.full(size, math.inf, np.float32),
    )
    if readable.any():
        for values, served in zip(answer, model.predict(x[readable]), strict=True):
            values[readable] = served
    return answer


def _record(card: Card, chunk: Chunk, answer: Answer, row: int, threshold: float | None) -> Record:
    probs, epistemic = answer.probs[row], float(answer.epistemic[row])
    readable = bool(np.isfinite(chunk.x[row]).all())
    flag, note = _judged(readable, epistemic, threshold)
    return Record(
        input=chunk.names[row],
        label=card.class_names[int(probs.argmax())] if readable else "",
        confidence=float(probs.max()),
        aleatoric=float(answer.aleatoric[row]),
        epistemic=epistemic,
        flag=flag,
        note=chunk.notes[row] or note,
    )


def _judged(readable: bool, epistemic: float, threshold: float | None) -> tuple[Flag, str]:
    """The flag of an input, and a note where it is not a matter of the threshold."""
    if not readable:
        return "bad", "not finite"
    if epistemic == math.inf:
        return "out", "too far from the training data to compute with"
    if threshold is None:
        return "", ""
    return ("out" if epistemic > threshold else "in"), ""
