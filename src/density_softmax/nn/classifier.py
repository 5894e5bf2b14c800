"""A classifier as it is used: whether it is fitted, what it predicts, what it says of itself."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from density_softmax.decide.explain import Explanation, Part
from density_softmax.decide.policy import Policy
from density_softmax.errors import UserError
from density_softmax.nn import batches as batching
from density_softmax.nn.answer import Answer
from density_softmax.nn.execution import (
    CallerLock,
    as_batch,
    digests,
    evaluating,
    explained,
    first_parameter,
    seeded,
)
from density_softmax.nn.explaining import explained_inputs
from density_softmax.serve.batches import SMALLEST
from density_softmax.serve.batches import batch_size as chosen
from density_softmax.serve.card import Card, Normalisation
from density_softmax.serve.inputs import read_chunks
from density_softmax.types import Calibration, Inputs, Prediction, tensors_of, without_labels

C = TypeVar("C", bound="Classifier")
# Inputs of a path that are in memory at once.
PATH_BATCH = 64


class Classifier(nn.Module, ABC):
    """An encoder and what stands behind it. It answers only once it is fitted.

    `fit`, `attach` and `load` fit it, and so does loading a complete state: weights that somebody
    kept are trained. The mark is a plain attribute, so copies have it and a state does not.

    Args:
        encoder: maps inputs to features, (batch, ...) to (batch, features).
        num_classes: how many classes there are.
        example: a batch of inputs like those that it will read.

    Attributes:
        num_features: the width of the features.
        calibration: what `attach` measured; None if the model was trained in another way.
        policy: what to do with predictions; kept with the model, and exported with it.
        sums: by stage, the sums over the training data that `update` adds to, in float64 on the
            CPU; none of a model that no `fit` of this process and no file gave them.
    """

    encoder: nn.Module
    num_features: int

    def __init__(self, encoder: nn.Module, num_classes: int, example: Tensor | None = None) -> None:
        super().__init__()
        if not isinstance(encoder, nn.Module):
            raise UserError(f"the encoder is a {type(encoder).__name__}: pass a torch.nn.Module")
        if num_classes < 2:
            raise UserError(
                f"num_classes={num_classes}: a classifier needs at least two, also for yes or no"
            )
        self.encoder, self.num_classes = encoder, num_classes
        self.example_shape: tuple[int, ...] | None = None
        self.example_dtype: torch.dtype | None = None
        self.example_inputs: dict[str, tuple[list[int], str]] | None = None
        if example is not None:
            self.describe_inputs(example)
        self.calibration: Calibration | None = None
        self.policy: Policy | None = None
        self.sums: dict[str, dict[str, Tensor]] = {}
        self._fitted = False
        self._lock = CallerLock()
        self._batch_sizes: dict[Any, int] = {}

    def describe_inputs(self, example: Tensor | Inputs) -> None:
        """Note what inputs look like: shape and type, or those of each of several tensors.

        Args:
            example: a batch of inputs, (batch, ...).
        """
        if isinstance(example, Inputs):
            self.example_inputs = {
                name: (list(each.shape[1:]), str(each.dtype).removeprefix("torch."))
                for name, each in example.tensors.items()
            }
        else:
            self.example_shape, self.example_dtype = tuple(example.shape[1:]), example.dtype

    @property
    def experts(self) -> tuple[str, ...]:
        """Names of what adds up to the epistemic uncertainty; by default none."""
        return ()

    @abstractmethod
    def forward(self, x: Tensor) -> Prediction:
        """Class probabilities and both parts of the uncertainty."""

    def features(self, x: Tensor) -> Tensor:
        """z = f(x), checked to be vectors of the width the method was built for."""
        z: Tensor = self.encoder(x)
        if z.ndim != 2 or z.shape[1] != self.num_features:
            raise UserError(
                f"the encoder returned features of shape {tuple(z.shape)}, expected "
                f"(batch, {self.num_features}): flatten them, or build with example=, a batch"
            )
        return z

    def on_features(self: C) -> C:
        """A copy that reads features in place of inputs. It shares the encoder and nothing else."""
        twin = copy.deepcopy(self, {id(each): each for each in (self.encoder, self.sums)})
        twin.features = lambda x: x  # type: ignore[method-assign]
        return twin

    @property
    def is_fitted(self) -> bool:
        """Whether it may predict; an ensemble may once all of its members may."""
        if self._fitted:
            return True
        members = self._members()
        return bool(members) and all(member.is_fitted for member in members)

    def mark_fitted(self: C, fitted: bool = True) -> C:
        """Note that its training is complete, or has begun; returns the model.

        Args:
            fitted: whether everything that it needs to predict has been learned.
        """
        self._fitted = fitted
        for member in self._members():
            member._fitted = fitted
        return self

    def _members(self) -> list[Classifier]:
        return [m for m in self.modules() if isinstance(m, Classifier) and m is not self]

    def check_fitted(self, deed: str) -> None:
        """Refuse to go on with a model that has not learned anything.

        Args:
            deed: what was asked of it, such as `predict`.
        """
        if not self.is_fitted:
            raise UserError(
                f"{deed}: this {type(self).__name__} is not fitted, its answers would be random; "
                "call density_softmax.fit(model, train, heldout) first, attach a trained network, "
                "or read a saved model with density_softmax.load"
            )

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Take over the state of a trained model; one that is incomplete leaves it unfitted."""
        found = super().load_state_dict(state_dict, strict, assign)
        self.mark_fitted(not found.missing_keys)
        return found

    @torch.no_grad()
    def predict(
        self,
        x: Any,
        seed: int | None = None,
        progress: bool = False,
        normalisation: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
    ) -> Answer:
        """Serve a batch in evaluation mode, on the model's device. Threads are served in turn.

        A row that is not finite, or too large to compute with, gets uniform probabilities and
        infinite epistemic uncertainty. A DataLoader and what a path leads to are served batch by
        batch, in memory for one of them, and what is returned is on the CPU.

        Args:
            x: a batch of inputs, (batch, ...): a tensor, an array, a data frame or lists of
                numbers; a dict or a tuple of them for a network that is called with several; a
                DataLoader, whose labels are ignored; or the path of a folder of images, an image,
                an .npz or a .csv file.
            seed: with one, a method that draws samples repeats itself.
            progress: draw a progress bar, of a DataLoader or a path.
            normalisation: of a path, how raw inputs become what the network reads, as `export`
                takes it; images need it.
            batch_size: how many inputs are computed at a time; by default so many that their
                activations fit into the caches of a CPU.
        """
        self.check_fitted("predict")
        if isinstance(x, str | Path):
            return self._predict_path(Path(x), seed, progress, normalisation, batch_size)
        if isinstance(x, DataLoader):
            batches = (without_labels(batch) for batch in x)
            return self._predict_all(batches, seed, progress, len(x), batch_size)
        x = self.as_batch(x)
        with self.served(seed, x.device):
            try:
                return self._answer(self._in_batches(x, batch_size))
            except (RuntimeError, IndexError) as error:
                raise explained(error, x, self.example_shape, self.example_dtype) from error

    @contextmanager
    def served(self, seed: int | None, device: torch.device) -> Iterator[None]:
        """A context in which one thread at a time has the model, in evaluation mode.

        Args:
            seed: of a method that draws samples; None leaves the generators alone.
            device: where the inputs are.
        """
        # Modes and generators are those of all threads, and not every encoder can be shared.
        with self._lock, evaluating(self), seeded(seed, device):
            yield

    def _answer(self, prediction: Prediction) -> Answer:
        answer = Answer(*prediction).made_of(prediction.contributions)
        known = self.policy or self.calibration
        answer.typical = known.typical if known else None
        answer.experts = () if prediction.contributions is None else self.experts
        return answer

    def as_batch(self, x: Any) -> Tensor | Inputs:
        """Inputs as the network takes them, on its device.

        Args:
            x: a batch of inputs, as for `predict`.
        """
        like, several = first_parameter(self), self.example_inputs is not None
        assert like is not None  # of the head
        return as_batch(x, like, self.example_shape, self.example_dtype, several)

    def digests(self, x: Any) -> NDArray[np.int64]:
        """64 bits for each input, alike just if the inputs are, (batch,).

        Args:
            x: a batch of inputs, as for `predict`.
        """
        return digests(self.as_batch(x)).numpy()

    def _predict_path(
        self, path: Path, seed: int | None, progress: bool, normalisation: Any, size: int | None
    ) -> Answer:
        inputs: list[str] = []
        notes: list[str] = []
        batches = self._chunks(path, normalisation, inputs, notes)
        answer = self._predict_all(batches, seed, progress, size=size)
        answer.inputs, answer.notes = tuple(inputs), tuple(notes)
        return answer

    def _chunks(
        self, path: Path, normalisation: Any, inputs: list[str], notes: list[str]
    ) -> Iterator[Tensor]:
        """What a path leads to, batch by batch; adds the names of inputs, and what is wrong."""
        if self.example_shape is None:
            raise UserError(
                f"{path}: it is not known which inputs the model reads, or there are several; pass "
                "a batch or a DataLoader"
            )
        prepared = Normalisation.of(normalisation) if normalisation else None
        names = tuple(map(str, range(self.num_classes)))
        card = Card("", type(self).__name__, names, self.example_shape, prepared)
        for chunk in read_chunks(path, card, PATH_BATCH):
            inputs.extend(chunk.names)
            notes.extend(chunk.notes)
            yield torch.from_numpy(chunk.x).to(self.example_dtype)

    def _predict_all(
        self,
        batches: Iterable[Any],
        seed: int | None,
        progress: bool,
        total: int | None = None,
        size: int | None = None,
    ) -> Answer:
        from rich.progress import track

        shown = track(batches, "predict", total=total, disable=not progress)
        parts = [batching.on_cpu(self.predict(batch, seed, batch_size=size)) for batch in shown]
        if not parts:
            raise UserError("the DataLoader gives no batch: there is nothing to predict")
        return self._answer(batching.joined(parts))

    def _in_batches(self, x: Tensor | Inputs, size: int | None) -> Prediction:
        if size is None:
            size = SMALLEST if len(x) <= SMALLEST else self.batch_size_for(x)
        if len(x) <= size:
            return self.guarded(x)
        return batching.joined([self.guarded(part) for part in batching.divided(x, size)])

    def batch_size_for(self, x: Tensor | Inputs) -> int:
        """How many inputs like these to compute at a time; the first call runs the model once.

        Args:
            x: a batch of inputs, (batch, ...).
        """
        shapes = tuple((part.shape[1:], part.device.type) for part in tensors_of(x))
        if shapes not in self._batch_sizes:
            accelerated = x.device.type != "cpu"
            self._batch_sizes[shapes] = chosen(batching.widest_layer(self, x[:2]), accelerated)
        return self._batch_sizes[shapes]

    def example(self, device: torch.device) -> Tensor | Inputs | None:
        """Two inputs of the shape and type that it was built with, all zero, if it knows them.

        Args:
            device: where they are made.
        """
        return batching.zeros(self.example_shape, self.example_dtype, self.example_inputs, device)

    def guarded(self, x: Tensor | Inputs) -> Prediction:
        """`forward` with bad rows flagged: what `predict` serves and what is exported."""
        clean = batching.surely_finite(tensors_of(x))
        total, given = (0.0, x) if clean else batching.without_bad_rows(x)
        found = self(given)
        if clean and batching.surely_finite(found):
            return found
        probs, aleatoric, epistemic = found
        # An input so large that the density overflows is as unknown as one that is no number.
        good = (total + probs.sum(1) + aleatoric + epistemic).abs() < math.inf
        probs = probs.where(good[:, None], 1 / self.num_classes)
        aleatoric = aleatoric.where(good, math.log(self.num_classes))
        guarded = Prediction(probs, aleatoric, epistemic.where(good, math.inf))
        if found.contributions is None:
            return guarded
        return guarded.made_of(found.contributions.where(good[:, None], math.inf))

    def parts(self, x: Tensor) -> tuple[Tensor, tuple[Part, ...]]:
        """The epistemic uncertainty as a sum, (batch, parts), and what its parts are due to.

        By default, in methods without experts, it is one part.
        """
        return self(x).epistemic[:, None], (Part(type(self).__name__, "", ""),)

    def explain(
        self,
        x: Any,
        *,
        columns: Sequence[str] | None = None,
        reference: Any = None,
        occlusion: bool = True,
        normalisation: Mapping[str, Any] | None = None,
    ) -> Explanation:
        """What makes each input strange: numbers that add up to its epistemic uncertainty.

        They tell the expert, the layer and the channel. Of rows of numbers the columns are told
        too, by Shapley values that add up to the difference from a reference row: a few passes for
        each column. Of images a map tells where to cover them for less uncertainty: some hundred
        passes for each image.

        Args:
            x: what `predict` takes: a batch of inputs, a DataLoader or a path. What is returned is
                as large as the inputs: explain those that are of interest.
            columns: their names, of a table; by default those of a data frame, or numbers.
            reference: a typical row, (columns,); by default the most typical one of the
                calibration data, which `attach` kept. Without one columns are not told.
            occlusion: whether to make the maps of images.
            normalisation: of a path, as for `predict`.
        """
        if isinstance(x, str | Path):
            parts: Iterable[Any] = self._chunks(Path(x), normalisation, [], [])
        else:
            several = isinstance(x, DataLoader)
            parts = (without_labels(batch) for batch in x) if several else [x]
        return explained_inputs(self, parts, columns, reference, occlusion)

    def update(
        self, data: Any, *, calibration: Any = None, before: Any = None, progress: bool = False
    ) -> None:
        """Merge more training data into the density: `density_softmax.update` of this model."""
        import density_softmax

        model: Any = self  # a Method, which stands above
        options: dict[str, Any] = {"calibration": calibration, "before": before}
        density_softmax.update(model, data, **options, progress=progress)

    def summary(self) -> str:
        """What the model is and, if `attach` made it, what that did to it, in a few lines."""
        lines = [repr(self), *(self.calibration.lines() if self.calibration else ())]
        if self.policy is not None:
            lines += [f"  {line}" for line in self.policy.summary().splitlines()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        """One line; `print(torch.nn.Module.__repr__(model))` shows the tree of modules."""
        members, encoder = self._members(), self._modules.get("encoder")
        inner = encoder and encoder._modules.get("model", encoder)  # of a Headless
        around = f"{len(members)} members" if inner is None else f"a {type(inner).__name__}"
        count = sum(parameter.numel() for parameter in self.parameters())
        return (
            f"{type(self).__name__} around {around}: {self.num_features} features, "
            f"{self.num_classes} classes, {count:,} parameters, "
            f"{'fitted' if self.is_fitted else 'not fitted'}"
        )
