"""Predicts and serves on a Ray cluster, whose machines share the files and have the package.

Ray Data reads, answers and collects: one task finds the inputs, others decode and answer them, and
their records come back in order. A worker that is lost costs its tasks, which run again.
"""

from __future__ import annotations

import logging
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
from density_softmax.serve.settings import Settings
from density_softmax.serve.stream import Served, records_of

# Inputs per task, which costs some milliseconds by itself.
TASK_SIZE = 1024
# What Ray Data passes on: rows of pickled objects.
COLUMN = "pickled"
Rows = Mapping[str, Any]
# The name of the service on a cluster.
APPLICATION = "density-softmax"


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


def serve_on_cluster(
    models: Sequence[Path], settings: Settings, host: str, port: int, replicas: int
) -> None:
    """Serve models as an application of Ray Serve until a signal says stop.

    Args:
        models: .onnx files, which all machines see under the same paths.
        settings: of the service.
        host: the address on which every machine with a replica listens.
        port: likewise.
        replicas: as many as there may be under load; at rest there is one.
    """
    with in_cluster():
        stopped = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopped.set())
        serve = import_ray("ray.serve")
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.start(proxy_location="EveryNode", http_options={"host": host, "port": port})
        try:
            serve.run(application(models, settings, replicas), name=APPLICATION)
            print(f"serving at http://{host}:{port}", flush=True)
            stopped.wait()
        except RuntimeError as error:  # of Ray, whose text has the reason
            raise UserError(f"Ray Serve cannot serve the models: {error}") from None
        finally:
            serve.delete(APPLICATION)  # answers what was accepted


def application(models: Sequence[Path], settings: Settings, replicas: int) -> Any:
    """What `serve_on_cluster` runs, for `ray.serve.run`.

    Args:
        models: .onnx files.
        settings: of the service.
        replicas: as many as there may be.
    """
    serve = import_ray("ray.serve")
    paths = [str(model.absolute()) for model in models]
    files = {name: getattr(settings, name) for name in ("policy", "state")}
    absolute: dict[str, Any] = {k: str(Path(v).absolute()) for k, v in files.items() if v}
    settings = replace(settings, threads=settings.threads or 1, **absolute)

    def build() -> Any:
        from density_softmax.serve.app import create_app

        rank = serve.get_replica_context().rank.rank
        return create_app(paths, replace(settings, replica=rank))

    deployment = serve.deployment(
        serve.ingress(build)(),
        name=APPLICATION,
        # A replica has a queue of its own, and says itself what is too much.
        max_ongoing_requests=2 * settings.queue,
        max_queued_requests=settings.queue,
        autoscaling_config={
            "min_replicas": 1,
            "max_replicas": replicas,
            "target_ongoing_requests": settings.batch,
        },
        ray_actor_options={"num_cpus": settings.threads},
        graceful_shutdown_timeout_s=settings.seconds,
    )
    return deployment.bind()
