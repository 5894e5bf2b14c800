"""Predicts files batch by batch: the memory needed does not grow with the input."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from density_softmax.decide.policy import Policy
from density_softmax.errors import UserError
from density_softmax.serve.answer import Answer
from density_softmax.serve.card import Card
from density_softmax.serve.gallery import Gallery
from density_softmax.serve.inputs import Chunk, read_chunks
from density_softmax.serve.outputs import Flag, Record, open_output

# What a record says of a decision, besides label and confidence.
DECIDED = ("typicality", "action", "set", "reason")
TOO_FAR = "too far from the training data to compute with"


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
    false_alarms: float | None = None,
    batch_size: int | None = None,
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
        false_alarms: share of in-domain inputs that may be flagged as `out`; None takes that of
            the model's policy, or 0.05 if it promises nothing.
        batch_size: inputs in memory at a time; by default as many as are computed at a time.
        workers: threads that decode images.
        replica: opens the model in each process of a Ray cluster; None predicts in this process.
        report: called after each batch.
        gallery: collects the most and the least typical inputs; not on a cluster.
    """
    if replica is not None and gallery is not None:
        raise UserError("--page: is for --engine local, where the inputs are at hand")
    if out is not None and out.exists() and path.exists() and out.samefile(path):
        raise UserError(f"--out {out}: is the input, which it would replace; choose another name")
    size = batch_size or model.card.batch_size
    policy = model.card.deciding(false_alarms)
    if replica is None:
        chunks = read_chunks(path, model.card, size, workers)
        batches = _records(model, chunks, policy, gallery)
    else:
        from density_softmax.serve.cluster import records_on_cluster

        batches = records_on_cluster(replica, path, model.card, size, policy)
    flags: Counter[str] = Counter()
    began, found = perf_counter(), Throughput(0.0, flags)
    with open_output(out, model.card.experts) as write:
        for batch in batches:
            write(batch)
            flags.update(record.flag for record in batch)
            found = Throughput(perf_counter() - began, flags)
            report(found)
    return found


def _records(
    model: Served, chunks: Iterable[Chunk], policy: Policy | None, gallery: Gallery | None = None
) -> Iterator[list[Record]]:
    """The records of one batch after another."""
    for chunk in chunks:
        yield records_of(model, chunk, policy, gallery)


def records_of(
    model: Served, chunk: Chunk, policy: Policy | None, gallery: Gallery | None = None
) -> list[Record]:
    """The records of a batch.

    Args:
        model: an exported model, or that of a run.
        chunk: prepared inputs.
        policy: what to do with predictions; None flags only what cannot be computed with.
        gallery: collects the most and the least typical inputs.
    """
    readable = np.array([np.isfinite(x).all() for x in chunk.x], bool)
    answer = _answer(model, chunk.x, readable)
    decided = [{}] * len(chunk.x) if policy is None else policy(answer).rows()
    rows = zip(readable, answer.epistemic.tolist(), decided, strict=True)
    records = [
        _record(model.card, chunk, answer, row, _flag(good, far, each.get("action", "")), each)
        for row, (good, far, each) in enumerate(rows)
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
    card: Card, chunk: Chunk, answer: Answer, row: int, flag: Flag, decided: Mapping[str, Any]
) -> Record:
    probs, epistemic = answer.probs[row], float(answer.epistemic[row])
    note = "not finite" if flag == "bad" else TOO_FAR * (epistemic == math.inf)
    return Record(
        input=chunk.names[row],
        label="" if flag == "bad" else card.class_names[int(probs.argmax())],
        confidence=float(probs.max()),
        aleatoric=float(answer.aleatoric[row]),
        epistemic=epistemic,
        flag=flag,
        note=chunk.notes[row] or note,
        contributions=() if answer.contributions is None else _short(answer.contributions[row]),
        **{name: decided[name] for name in DECIDED if name in decided},
    )


def _short(values: NDArray[np.float32]) -> tuple[float, ...]:
    """To six digits, nearly all that float32 has."""
    return tuple(float(f"{value:.6g}") for value in values.tolist())


def _flag(readable: bool, epistemic: float, action: str) -> Flag:
    """Whether an input is in the domain; only one that is infinitely far is out without a policy.

    What a policy answers or abstains from is in the domain.
    """
    if not readable:
        return "bad"
    if epistemic == math.inf or action == "unknown":
        return "out"
    return "in" if action else ""
