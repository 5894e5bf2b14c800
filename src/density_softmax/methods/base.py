"""The contract of every method: a training story and one forward pass."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from density_softmax.config import Family, from_dict, to_dict
from density_softmax.errors import UserError
from density_softmax.files import StorageError, differences, load_tensors, save_tensors, under
from density_softmax.nn.backbones.base import feature_width
from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.execution import CallerLock, as_batch, evaluating, seeded
from density_softmax.training import Stage
from density_softmax.types import Prediction
from density_softmax.version import __version__

__all__ = ["FirstStage", "Method", "MethodConfig", "load"]


class Method(nn.Module, ABC):
    """A classifier that says what it does not know.

    A concrete method adds its parts, `stages()` and `forward()`. It holds no loop over data, no
    optimizer, no device and no metric, and everything it learns or estimates is a parameter or a
    buffer.

    Attributes:
        draws_samples: whether `forward` draws random numbers. A graph that answers differently
            every time, or always with the same draw, is not what a user expects of an exported
            model: such a method is not exported.
    """

    draws_samples: bool = False

    def __init__(
        self,
        encoder: nn.Module,
        num_classes: int,
        config: MethodConfig,
        example: Tensor | None = None,
    ) -> None:
        super().__init__()
        if num_classes < 2:
            raise UserError(f"num_classes={num_classes}: a classifier needs at least two")
        self.encoder = encoder
        self.config = config
        self.num_classes = num_classes
        self.num_features = feature_width(encoder, example)
        self.example_shape = None if example is None else tuple(example.shape[1:])
        self.example_dtype = None if example is None else example.dtype
        self._lock = CallerLock()

    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """The training story, in order."""

    @abstractmethod
    def forward(self, x: Tensor) -> Prediction:
        """Class probabilities and both parts of the uncertainty."""

    def parts(self) -> tuple[Method, ...]:
        """The methods inside this one that the configs of `MethodConfig.parts` made."""
        return ()

    def features(self, x: Tensor) -> Tensor:
        """z = f(x), checked to be vectors of the width the method was built for."""
        z: Tensor = self.encoder(x)
        if z.ndim != 2 or z.shape[1] != self.num_features:
            raise UserError(
                f"the encoder returned features of shape {tuple(z.shape)}, expected "
                f"(batch, {self.num_features}): flatten them, or build with example=, a batch"
            )
        return z

    @torch.no_grad()
    def predict(self, x: Any, seed: int | None = None) -> Prediction:
        """Serve a batch: evaluation mode, on the model's device, bad rows flagged.

        A row with a NaN or an infinite value, or one too large to compute with, gets uniform
        probabilities and infinite epistemic uncertainty; the others are served as usual. A seed
        makes the prediction of a method that draws samples reproducible; without one it varies.
        Threads may share a method: they are served one after another.
        """
        reference = next(self.parameters())
        x = as_batch(x, reference, self.example_dtype)
        # Modes and generators are those of all threads, and not every encoder can be shared.
        with self._lock, evaluating(self), seeded(seed, x.device):
            return self.guarded(x)

    def guarded(self, x: Tensor) -> Prediction:
        """`forward` with bad rows flagged: what `predict` serves and what is exported."""
        # Few operations: 0 times a number is 0, and times anything else NaN, which a sum keeps.
        zero = (x * 0).flatten(1).sum(1)
        probs, aleatoric, epistemic = self(x.where(_per_row(zero == 0, x), 0))
        # An input so large that the density overflows is as unknown as one that is no number.
        good = (zero + probs.sum(1) + aleatoric + epistemic).abs() < math.inf
        return Prediction(
            probs.where(good[:, None], 1 / self.num_classes),
            aleatoric.where(good, math.log(self.num_classes)),
            epistemic.where(good, math.inf),
        )

    def save(self, path: str | Path) -> None:
        """Write weights, estimates and configuration to one safetensors file."""
        metadata = {
            "method": json.dumps(to_dict(self.config)),
            "num_classes": str(self.num_classes),
            "version": __version__,
        }
        if self.example_shape is not None:
            metadata["example_shape"] = json.dumps(self.example_shape)
            metadata["example_dtype"] = str(self.example_dtype).removeprefix("torch.")
        save_tensors(Path(path), self.state_dict(), metadata)


class FirstStage(NamedTuple):
    """What a first stage depends on, and what it changes; the rest of the method may be any.

    Attributes:
        training: its name. Methods that give it the same name compute the same in it.
        settings: the entries of the config that it depends on, in the order of all who share it.
        parts: the parts of the method that it changes, built from those settings and the encoder.
    """

    training: str
    settings: tuple[str, ...]
    parts: tuple[str, ...]


class MethodConfig(Family, ABC):
    """The family of methods; `kind` is the registry key."""

    @abstractmethod
    def build(self, encoder: nn.Module, num_classes: int, example: Tensor | None = None) -> Method:
        """An untrained method around `encoder`; `example` is a batch to measure widths with."""

    def parts(self) -> tuple[MethodConfig, ...]:
        """Methods that can be trained as runs of their own, anywhere, and are then all of this one.

        Where there are any, their stages do the work of this method's own.
        """
        return ()

    def first_stage(self) -> FirstStage | None:
        """What the first stage depends on, if that of another run may be taken over."""
        return None


def load(path: str | Path, encoder: nn.Module) -> Method:
    """The method that `Method.save` wrote, around an encoder of the same architecture."""
    tensors, metadata = load_tensors(Path(path))
    try:
        config = from_dict(MethodConfig, json.loads(metadata["method"]))
        num_classes, example = int(metadata["num_classes"]), _example(metadata)
    except (KeyError, ValueError, AttributeError) as error:
        raise StorageError(f"{path}: not written by Method.save ({error!r})") from None
    with seeded(0, torch.device("cpu")):
        method = config.build(encoder, num_classes, example)
    if isinstance(encoder, Headless) and _is_shared(encoder.head_name, tensors):
        method.get_submodule("head").register_module("linear", encoder.head)
    # Asked first: torch would overwrite all that fits before it refuses the rest.
    if different := differences(tensors, method.state_dict()):
        raise StorageError(f"{path}: does not fit this encoder: {different}")
    method.load_state_dict(tensors)
    return method.eval()


def _is_shared(head: str, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a saved method has the head of the model around which `attach` built it."""
    own, models = (under(p, tensors) for p in ("head.linear.", f"encoder.model.{head}."))
    return own.keys() == models.keys() and all(own[n].equal(models[n]) for n in own)


def _example(metadata: Mapping[str, str]) -> Tensor | None:
    """A batch like the one that a saved method was built with."""
    if "example_shape" not in metadata:
        return None
    shape, dtype = json.loads(metadata["example_shape"]), getattr(torch, metadata["example_dtype"])
    return torch.zeros(1, *shape, dtype=dtype)


def _per_row(rows: Tensor, like: Tensor) -> Tensor:
    """A value per row, shaped to broadcast over `like`."""
    return rows.view(-1, *[1] * (like.ndim - 1))
