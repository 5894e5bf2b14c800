"""The models of a service: each with its batches and its monitor, and new when its file changes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from density_softmax.errors import UserError, choices
from density_softmax.serve.card import Card
from density_softmax.serve.predictor import Predictor
from density_softmax.service.batching import Batcher
from density_softmax.service.requests import RequestError
from density_softmax.service.settings import Settings
from density_softmax.service.watching import Watcher

NAME_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Outcome:
    """Answers to some rows: arrays by name, (rows, ...) each.

    Those of the model are probs, aleatoric, epistemic and, if it has experts, contributions; those
    of its policy are action, label, typicality, reason and, if it makes sets, sets.
    """

    columns: Columns

    def rows(self, chosen: slice) -> Outcome:
        """Some of the rows."""
        return Outcome({name: values[chosen] for name, values in self.columns.items()})

    @classmethod
    def join(cls, parts: Sequence[Outcome]) -> Outcome:
        """Several outcomes as one."""
        if len(parts) == 1:
            return parts[0]
        columns = {k: np.concatenate([p.columns[k] for p in parts]) for k in parts[0].columns}
        return cls(columns)


def answered(predictor: Predictor, x: NDArray[Any]) -> Outcome:
    """What a model and its policy say about a batch.

    Args:
        predictor: the model.
        x: prepared inputs, (rows, *input shape).
    """
    answer = predictor.predict(x)
    columns: dict[str, NDArray[Any]] = dict(answer.outputs())
    names = np.array(predictor.class_names)
    if predictor.policy is None:
        return Outcome({**columns, "label": names[answer.probs.argmax(axis=1)]})
    decision = predictor.policy(answer)
    columns.update(action=decision.action, label=np.array(decision.names))
    columns.update(typicality=decision.typicality, reason=decision.reason)
    if decision.sets is not None:
        columns["sets"] = decision.sets
    return Outcome(columns)


@final
class Model:
    """One version of a model, ready to serve.

    Args:
        name: in addresses.
        path: the file.
        settings: of the service.
        report: called with the outcome, the rows and the seconds of each batch.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        settings: Settings,
        report: Callable[[Outcome, int, float], None],
    ) -> None:
        self.name, self.path, self.stamp = name, path, stamp_of(path)
        threads = settings.threads or max(1, (os.cpu_count() or 1) - 1)
        # Threads that spin would take the cores that read requests.
        self.predictor = Predictor(path, threads, settings.policy, spinning=False)
        self.version = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        state = None
        if settings.state is not None:
            state = Path(settings.state) / f"{name}.{settings.replica}.json"
        self._settings, self._report, self._state = settings, report, state
        self._batcher: Batcher[Outcome] | None = None
        self._users, self._unused = 0, asyncio.Event()
        self._unused.set()
        self.watcher: Watcher

    @property
    def card(self) -> Card:
        """The model's description of itself."""
        return self.predictor.card

    @property
    def waiting(self) -> int:
        """Rows that wait."""
        return self._batcher.length if self._batcher is not None else 0

    def start(self, older: Model | None = None) -> None:
        """Begin to serve, in the event loop that runs.

        Args:
            older: the version that this one replaces.
        """
        settings, policy = self._settings, self.predictor.policy
        if older is not None and older.watcher.fits(policy):
            self.watcher = older.watcher
        else:
            if older is not None:
                older.watcher.retire()
            self.watcher = Watcher(
                self.card,
                policy,
                settings.false_alarms,
                self._state,
                settings.replica,
                settings.recent,
                settings.replicas,
            )
        self._batcher = Batcher(
            self._run,
            size=settings.batch,
            wait=settings.wait,
            capacity=settings.queue,
            report=self._report,
        )

    @contextmanager
    def used(self) -> Iterator[Model]:
        """This version, which serves for as long as a request needs it."""
        self._users += 1
        self._unused.clear()
        try:
            yield self
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    async def answer(self, x: NDArray[Any]) -> Outcome:
        """What the model and its policy say about some rows.

        Args:
            x: prepared inputs, (rows, *input shape).
        """
        assert self._batcher is not None
        checked = self.predictor.checked(x)
        return Outcome.join(await self._batcher.submit(checked))

    async def close(self) -> None:
        """Answer the requests that came for this version, then stop."""
        await self._unused.wait()
        if self._batcher is not None:
            await self._batcher.close()

    def _run(self, x: NDArray[Any]) -> Outcome:
        outcome = answered(self.predictor, x)
        self.watcher.record(x, outcome.columns)
        return outcome


def stamp_of(path: Path) -> tuple[int, ...]:
    """What changes when a file does; nothing if there is none.

    Args:
        path: the file.
    """
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


@final
class Shelf:
    """The models of a service by name; the first is the one that is meant if none is named.

    Args:
        paths: .onnx files; the name of a model is that of its file.
        settings: of the service.
        report: called with the name of the model, the columns of the outcome, the rows and the
            seconds of each batch.
        reloaded: called with the name of a model whose file has changed, and whether it loads.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        settings: Settings,
        report: Callable[[str, Columns, int, float], None] = lambda *batch: None,
        reloaded: Callable[[str, bool], None] = lambda name, loads: None,
    ) -> None:
        named = named_files(paths)
        if settings.policy is not None and len(named) > 1:
            raise UserError(
                f"--policy for {len(named)} models: export each with its own, or serve one"
            )
        self._settings, self._report, self._reloaded = settings, report, reloaded
        self.models = {name: self._opened(name, path) for name, path in named.items()}
        self._stamps = {name: model.stamp for name, model in self.models.items()}
        self._closing: set[asyncio.Task[None]] = set()

    def _opened(self, name: str, path: Path) -> Model:
        def report(outcome: Outcome, rows: int, seconds: float) -> None:
            self._report(name, outcome.columns, rows, seconds)

        return Model(name, path, self._settings, report)

    def __getitem__(self, name: str) -> Model:
        if name not in self.models:
            raise RequestError(404, f"no model '{name[:80]}': {choices(name[:80], self.models)}")
        return self.models[name]

    @property
    def first(self) -> Model:
        """The model that is meant if none is named."""
        return next(iter(self.models.values()))

    def start(self) -> None:
        """Begin to serve, in the event loop that runs."""
        for model in self.models.values():
            model.start()

    async def tend(self) -> None:
        """Every second: keep the states of monitors. Look for changed files."""
        while True:
            await asyncio.sleep(self._settings.reload or 1.0)
            for name, model in list(self.models.items()):
                await asyncio.to_thread(self._keep, model)
                if self._settings.reload:
                    await self._renew(name, model)

    def _keep(self, model: Model) -> None:
        try:
            model.watcher.tend()
        except (UserError, OSError) as error:  # a full disk stops no answer
            print(f"density-softmax: {error}", file=sys.stderr)

    async def _renew(self, name: str, model: Model) -> None:
        """Replace a model whose file has changed; requests that wait get the old one's answers."""
        try:
            stamp = stamp_of(model.path)
            if stamp == self._stamps[name]:
                return
            self._stamps[name] = stamp
            newer = await asyncio.to_thread(self._opened, name, model.path)
            newer.start(older=model)
        except (UserError, OSError) as error:
            print(f"density-softmax: {error}; serving the version before", file=sys.stderr)
            self._reloaded(name, False)
            return
        self.models[name] = newer
        self._reloaded(name, True)
        closing = asyncio.create_task(model.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Answer what waits, then stop."""
        await asyncio.gather(*self._closing, *(model.close() for model in self.models.values()))
        for model in self.models.values():
            model.watcher.close()


def named_files(paths: Sequence[str | Path]) -> dict[str, Path]:
    """The files of models by their names.

    Args:
        paths: .onnx files.
    """
    found: dict[str, Path] = {}
    for path in map(Path, paths):
        name = path.stem
        if not name or not set(name) <= NAME_SIGNS:
            raise UserError(
                f"{path}: the name of a model is part of an address; use letters, digits, - and _"
            )
        if name in found:
            raise UserError(f"{path}: a model '{name}' is there already; rename the file")
        found[name] = path
    if not found:
        raise UserError("no models to serve: pass .onnx files that density_softmax.export wrote")
    return found
