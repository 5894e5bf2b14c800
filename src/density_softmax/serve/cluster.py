"""Predicts on a Ray cluster, whose machines share the files and have the package.

Ray Data reads, answers and collects: one task finds the inputs, others decode and answer them, and
their records come back in order. A worker that is lost costs its tasks, which run again.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from density_softmax.cluster import import_ray, in_cluster
from density_softmax.decide.policy import Policy
from density_softmax.errors import UserError
from density_softmax.serve.card import Card
from density_softmax.serve.inputs import chunk_of, read_parts
from density_softmax.serve.outputs import Record
from density_softmax.serve.stream import Served, records_of

# Inputs per task, which costs some milliseconds by itself.
TASK_SIZE = 1024
# What Ray Data passes on: rows of pickled objects.
COLUMN = "pickled"
Rows = Mapping[str, Any]


def records_on_cluster(
    replica: Callable[[], Served], path: Path, card: Card, batch_size: int, policy: Policy | None
) -> Iterator[list[Record]]:
    """The records of one batch after another, as a single process would give them.

    Args:
        replica: opens the model; it is called once in every process.
        path: a folder of images, an image, an .npz or a .csv file.
        card: of the model.
        batch_size: inputs that the model answers at a time.
        policy: what to do with predictions.
    """
    with in_cluster() as ray:
        source = _source(import_ray("ray.data"), (path.absolute(), card, batch_size))
        # Another share of a core than for answers keeps Ray from making one task of both.
        parts = source.map_batches(_found, batch_size=None, num_cpus=0)
        answer = partial(_answered, ray.cloudpickle.dumps(replica), policy)
        answers = parts.map_batches(answer, batch_size=None, num_cpus=1)
        for rows in answers.iter_batches(batch_size=None):
            for batches in map(pickle.loads, rows[COLUMN]):
                if isinstance(batches, UserError):
                    raise batches
                yield from batches


def _source(data: Any, value: object) -> Any:
    """A dataset of one row, which keeps the order, passes every row on at once and is quiet."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    source = data.from_items([{COLUMN: pickle.dumps(value)}])
    source.context.execution_options.preserve_order = True
    source.context.target_max_block_size = 1
    source.context.enable_progress_bars = False
    return source


def _found(rows: Rows) -> Iterator[Rows]:
    """The inputs, as rows with the work of one task each; or the error that ends them."""
    path, card, batch_size = pickle.loads(rows[COLUMN][0])
    size = max(1, TASK_SIZE // batch_size)
    try:
        parts = read_parts(path, card, batch_size)
        while some := list(islice(parts, size)):
            yield {COLUMN: [pickle.dumps(some)]}
    except UserError as error:
        yield {COLUMN: [pickle.dumps(error)]}


def _answered(replica: bytes, policy: Policy | None, rows: Rows) -> Rows:
    """The records of some parts, batch by batch; an error is passed on."""
    (found,) = map(pickle.loads, rows[COLUMN])
    if not isinstance(found, UserError):
        model = _opened(replica)
        with ThreadPoolExecutor(1) as pool:
            chunks = [chunk_of(part, model.card, pool) for part in found]
        found = [records_of(model, chunk, policy) for chunk in chunks]
    return {COLUMN: [pickle.dumps(found)]}


@lru_cache(maxsize=1)
def _opened(replica: bytes) -> Served:
    """The model, once in every process."""
    return pickle.loads(replica)()
