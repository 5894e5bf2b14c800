"""Serves on a Ray cluster, whose machines share the files and have the package."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from density_softmax.cluster import import_ray, in_cluster
from density_softmax.errors import UserError
from density_softmax.service.settings import Settings

# The name of the service on a cluster.
APPLICATION = "density-softmax"


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
    settings = replace(settings, threads=settings.threads or 1, replicas=replicas, **absolute)

    def build() -> Any:
        from density_softmax.service.app import create_app

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
