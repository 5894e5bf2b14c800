"""Predicts files batch by batch: the memory needed does not grow with the input."""

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
from density_softmax.serve.answer import Answer
from density_softmax.serve.card import Card
from density_softmax.serve.gallery import Gallery
from density_softmax.serve.inputs import Chunk, read_chunks
from density_softmax.serve.outputs import Flag, Record, open_output


class Served(Protocol):
    """A model that can be served: an exported file or a run."""

    @property
    def card(self) -> Card:
        """Its description of itself."""

    def predict(self, x: NDArray[np.float32]) -> Answer:
        """Probabilities and uncertainties of a batch of prepared inputs."""


class Throughput(NamedTuple):
    """Seconds spent so far, and how many inputs got each flag."""

    seconds: float
    flags: Counter[str]

    @property
    def inputs(self) -> int:
        """Number of inputs."""
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
    replica: Callable[[], Served] | None = None,
    report: Callable[[Throughput], None] = lambda throughput: None,
    gallery: Gallery | None = None,
) -> Throughput:
    """Predict all inputs at a path and write a record for each.

    Args:
        model: an exported model, or that of a run.
        path: a folder of images, an image, an .npz or a .csv file.
        out: the file to write; None is CSV to the standard output.
        false_alarms: share of in-domain inputs that may be flagged as `out`.
        batch_size: inputs in memory at a time.
        workers: threads that decode images.
        replica: opens the model in each process of a Ray cluster; None predicts in this process.
        report: called after each batch.
        gallery: collects the most and the least typical inputs; not on a cluster.
    """
    if replica is not None and gallery is not None:
        raise UserError("--page: is for --engine local, where the inputs are at hand")
    if out is not None and out.exists() and path.exists() and out.samefile(path):
        raise UserError(f"--out {out}: is the input, which it would replace; choose another name")
    threshold = model.card.threshold(false_alarms)
    if replica is None:
        chunks = read_chunks(path, model.card, batch_size, workers)
        batches = _records(model, chunks, threshold, gallery)
    else:
        from density_softmax.serve.cluster import records_on_cluster

        batches = records_on_cluster(replica, path, model.card, batch_size, threshold)
    flags: Counter[str] = Counter()
    began, found = perf_counter(), Throughput(0.0, flags)
    with open_output(out) as write:
        for batch in batches:
            write(batch)
            flags.update(record.flag for record in batch)
            found = Throughput(perf_counter() - began, flags)
            report(found)
    return found


def _records(
    model: Served, chunks: Iterable[Chunk], threshold: float | None, gallery: Gallery | None = None
) -> Iterator[list[Record]]:
    """The records of one batch after another."""
    for chunk in chunks:
        yield records_of(model, chunk, threshold, gallery)


def records_of(
    model: Served, chunk: Chunk, threshold: float | None, gallery: Gallery | None = None
) -> list[Record]:
    """The records of a batch.

    Args:
        model: an exported model, or that of a run.
        chunk: prepared inputs.
        threshold: of the epistemic uncertainty, above which an input is flagged as `out`.
        gallery: collects the most and the least typical inputs.
    """
    readable = np.array([np.isfinite(x).all() for x in chunk.x], bool)
    answer = _answer(model, chunk.x, readable)
    records = [
        _record(model.card, chunk, answer, row, bool(readable[row]), threshold)
        for row in range(len(chunk.x))
    ]
    if gallery is not None:
        gallery.add(chunk, answer, records)
    return records


def _answer(model: Served, x: NDArray[np.float32], readable: NDArray[np.bool_]) -> Answer:
    """The model's answers to readable rows; a graph that reads integers cannot be given NaN."""
    if readable.all():
        return model.predict(x)
    size, classes, experts = len(x), len(model.card.class_names), model.card.experts
    outputs = {
        "probs": np.full((size, classes), 1 / classes, np.float32),
        "aleatoric": np.full(size, math.log(classes), np.float32),
        "epistemic": np.full(size, math.inf, np.float32),
    }
    if experts:
        outputs["contributions"] = np.full((size, len(experts)), math.inf, np.float32)
    if readable.any():
        for name, served in model.predict(x[readable]).outputs().items():
            outputs[name][readable] = served
    return Answer.of(outputs, experts)


def _record(
    card: Card, chunk: Chunk, answer: Answer, row: int, readable: bool, threshold: float | None
) -> Record:
    probs, epistemic = answer.probs[row], float(answer.epistemic[row])
    flag, note = _flag(readable, epistemic, threshold)
    return Record(
        input=chunk.names[row],
        label=card.class_names[int(probs.argmax())] if readable else "",
        confidence=float(probs.max()),
        aleatoric=float(answer.aleatoric[row]),
        epistemic=epistemic,
        flag=flag,
        note=chunk.notes[row] or note,
    )


def _flag(readable: bool, epistemic: float, threshold: float | None) -> tuple[Flag, str]:
    """The flag of an input, and a note unless the threshold alone decides."""
    if not readable:
        return "bad", "not finite"
    if epistemic == math.inf:
        return "out", "too far from the training data to compute with"
    if threshold is None:
        return "", ""
    return ("out" if epistemic > threshold else "in"), ""
