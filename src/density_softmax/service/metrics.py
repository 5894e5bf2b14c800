"""What Prometheus reads: requests, latency, decisions, typicality, queue and monitor."""

from __future__ import annotations

import os
from collections import Counter as Counts
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from numpy.typing import NDArray

if TYPE_CHECKING:
    from density_softmax.service.models import Shelf

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SHARES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"  # where several processes keep their numbers together


@final
class Metrics:
    """The numbers of one process; several processes share them through files."""

    def __init__(self) -> None:
        from prometheus_client import (
            CollectorRegistry,
            Counter,
            Gauge,
            Histogram,
            disable_created_metrics,
        )

        disable_created_metrics()
        self._registry = CollectorRegistry()
        register: Any = {"registry": self._registry, "namespace": "density_softmax"}
        self.requests = Counter(
            "requests", "Requests by endpoint and status.", ["endpoint", "status"], **register
        )
        self.seconds = Histogram(
            "request_seconds", "From request to answer.", ["endpoint"], buckets=SECONDS, **register
        )
        self.batches = Histogram(
            "batch_rows", "Rows computed together.", ["model"], buckets=ROWS, **register
        )
        self.batch_seconds = Histogram(
            "batch_seconds", "Computing a batch.", ["model"], buckets=SECONDS, **register
        )
        self.decisions = Counter("decisions", "Inputs by action.", ["model", "action"], **register)
        self.typicality = Histogram(
            "typicality",
            "Share of known inputs at least as unusual.",
            ["model"],
            buckets=SHARES,
            **register,
        )
        self.reloads = Counter("reloads", "Changed files.", ["model", "loaded"], **register)
        self.queue = Gauge(
            "queue_rows", "Rows that wait.", ["model"], multiprocess_mode="livesum", **register
        )

    def count_batch(
        self, name: str, columns: Mapping[str, NDArray[Any]], rows: int, seconds: float
    ) -> None:
        """Count a batch and its decisions.

        Args:
            name: of the model.
            columns: of the outcome.
            rows: of the batch.
            seconds: that it took.
        """
        self.batches.labels(name).observe(rows)
        self.batch_seconds.labels(name).observe(seconds)
        if "action" not in columns:
            self.decisions.labels(name, "none").inc(rows)
            return
        for action, count in Counts(columns["action"].tolist()).items():
            self.decisions.labels(name, action).inc(count)
        typicality = self.typicality.labels(name)
        for value in columns["typicality"].tolist():
            typicality.observe(value)

    def text(self, shelf: Shelf) -> bytes:
        """All numbers, of all processes, in the format of Prometheus.

        Args:
            shelf: the models, whose monitors are asked.
        """
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        for name, model in shelf.models.items():
            self.queue.labels(name).set(model.waiting)
        registry = self._registry
        if DIRECTORY in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        monitors = CollectorRegistry()
        monitors.register(_Monitors(shelf))
        return generate_latest(registry) + generate_latest(monitors)


@final
class _Monitors:
    """What the monitors say at this moment."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def collect(self) -> Iterator[Any]:
        """The metrics, for prometheus_client."""
        from prometheus_client.core import GaugeMetricFamily

        words = {
            "evidence": "Log of the evidence that the stream has changed.",
            "threshold": "The evidence that raises an alarm.",
            "alarm": "Whether the stream has changed.",
            "inputs": "Inputs that the monitor has read.",
        }
        families = {
            key: GaugeMetricFamily(f"density_softmax_monitor_{key}", text, labels=["model"])
            for key, text in words.items()
        }
        for name, model in self._shelf.models.items():
            if (monitor := model.watcher.view()["monitor"]) is not None:
                for key, family in families.items():
                    family.add_metric([name], float(monitor[key]))
        yield from families.values()


def forget_process(pid: int) -> None:
    """Leave a process that has ended out of what is summed over those that live.

    Args:
        pid: of the process.
    """
    from prometheus_client import multiprocess

    multiprocess.mark_process_dead(pid, os.environ[DIRECTORY])


def share_numbers(folder: Path) -> None:
    """Let the processes that are started next share their numbers.

    Args:
        folder: for their files; those of before are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.db"):
        file.unlink()
    os.environ[DIRECTORY] = str(folder)
