"""What every method is: stages of training and one forward pass."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax import __version__
from density_softmax.config import Family, Members, to_dict
from density_softmax.errors import UserError
from density_softmax.files import save_tensors
from density_softmax.nn.backbones.base import feature_width
from density_softmax.nn.execution import CallerLock, as_batch, evaluating, seeded
from density_softmax.nn.softmax.averaging import tile
from density_softmax.nn.softmax.head import Head
from density_softmax.training import Descent, Stage, Train
from density_softmax.types import Batch, Needs, Prediction


class Method(nn.Module, ABC):
    """A classifier that says what it does not know.

    A method writes a nested `Config`, whose kind registers it; `setup`, its layers behind the
    encoder; `stages`, the algorithm box of its paper; and `forward`, the equation. All that it
    learns or estimates is a parameter or a buffer; loops, optimizers and metrics are elsewhere.

    Args:
        encoder: maps inputs to features, (batch, ...) to (batch, features).
        num_classes: how many classes there are.
        config: the settings; the defaults of the method's `Config` if None.
        example: a batch of inputs to measure widths with.

    Attributes:
        draws_samples: whether `forward` draws random numbers, which no exported graph can.
    """

    Config: ClassVar[type[MethodConfig]]
    config: MethodConfig
    head: nn.Module  # from features to logits, in methods that have such a layer
    draws_samples: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Tell the nested `Config` what it builds."""
        super().__init_subclass__(**kwargs)
        if "Config" in vars(cls):
            cls.Config.method = cls

    def __init__(
        self,
        encoder: nn.Module,
        num_classes: int,
        config: MethodConfig | None = None,
        example: Tensor | None = None,
    ) -> None:
        super().__init__()
        if num_classes < 2:
            raise UserError(f"num_classes={num_classes}: a classifier needs at least two")
        self.encoder = encoder
        self.config = type(self).Config() if config is None else config
        self.num_classes = num_classes
        self.num_features = self.measure_features(example)
        self.example_shape = None if example is None else tuple(example.shape[1:])
        self.example_dtype = None if example is None else example.dtype
        self._lock = CallerLock()
        self.setup(example)

    def measure_features(self, example: Tensor | None) -> int:
        """The width of z, found before `setup`."""
        return feature_width(self.encoder, example)

    def setup(self, example: Tensor | None) -> None:
        """Build what stands behind the encoder, by default a linear layer."""
        self.head = Head(self.num_features, self.num_classes)

    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """The steps of training, in order."""

    @abstractmethod
    def forward(self, x: Tensor) -> Prediction:
        """Class probabilities and both parts of the uncertainty."""

    def ensemble(self) -> tuple[Method, ...]:
        """The members that `MethodConfig.ensemble` configures."""
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

    def nll(self, batch: Batch) -> Tensor:
        """−log p(y | x), (batch,); of softmax(head(z)) unless a method has another likelihood."""
        return F.cross_entropy(self.head(self.features(batch.x)), batch.y, reduction="none")

    def train_stage(
        self,
        descent: Descent,
        loss: Callable[[Batch], Tensor] | None = None,
        name: str = "train",
        **fields: Any,
    ) -> Train:
        """The stage that trains all parameters on `loss`, by default the mean of `nll`."""
        return Train(
            name,
            loss=loss or (lambda batch: self.nll(batch).mean()),
            parameters=list(self.parameters()),
            descent=descent,
            monitor=lambda batch: {"nll": self.nll(batch)},
            **fields,
        )

    def logits_of_copies(self, x: Tensor, num_copies: int) -> Tensor:
        """head(z) of copies of a batch in one pass, (copies, batch, classes)."""
        logits: Tensor = self.head(self.features(tile(x, num_copies)))
        return logits.unflatten(0, (num_copies, x.shape[0]))

    @torch.no_grad()
    def predict(self, x: Any, seed: int | None = None) -> Prediction:
        """Serve a batch in evaluation mode, on the model's device. Threads are served in turn.

        A row that is not finite, or too large to compute with, gets uniform probabilities and
        infinite epistemic uncertainty. With a seed, a method that draws samples repeats itself.
        """
        x = as_batch(x, next(self.parameters()), self.example_dtype)
        # Modes and generators are those of all threads, and not every encoder can be shared.
        with self._lock, evaluating(self), seeded(seed, x.device):
            return self.guarded(x)

    def guarded(self, x: Tensor) -> Prediction:
        """`forward` with bad rows flagged: what `predict` serves and what is exported."""
        # Few operations: 0 times a number is 0, and times anything else NaN, which a sum keeps.
        zero = (x * 0).flatten(1).sum(1)
        finite = (zero == 0).view(-1, *[1] * (x.ndim - 1))
        probs, aleatoric, epistemic = self(x.where(finite, 0))
        # An input so large that the density overflows is as unknown as one that is no number.
        good = (zero + probs.sum(1) + aleatoric + epistemic).abs() < math.inf
        probs = probs.where(good[:, None], 1 / self.num_classes)
        aleatoric = aleatoric.where(good, math.log(self.num_classes))
        return Prediction(probs, aleatoric, epistemic.where(good, math.inf))

    def save(self, path: str | Path) -> None:
        """Write weights, estimates and configuration to one safetensors file."""
        metadata = {"method": json.dumps(to_dict(self.config)), "version": __version__}
        metadata["num_classes"] = str(self.num_classes)
        if self.example_shape is not None:
            metadata["example_shape"] = json.dumps(self.example_shape)
            metadata["example_dtype"] = str(self.example_dtype).removeprefix("torch.")
        save_tensors(Path(path), self.state_dict(), metadata)


class MethodConfig(Family, package="density_softmax.methods"):
    """The family of methods; `kind` is the registry key.

    Attributes:
        title: the usual name in tables; by default the kind in title case.
        rank: where tables put the method; by default behind all that have a rank.
        log_density: the formula of which epistemic uncertainty is the negative, if a log density.
        control_for: of a control, the kind of the method that it repeats without a density.
    """

    members: ClassVar[Members[MethodConfig]]  # type: ignore[assignment]
    title: ClassVar[str]
    rank: ClassVar[int]
    log_density: ClassVar[str]
    control_for: ClassVar[str] = ""
    method: ClassVar[type[Method]]  # the class in which the config is nested

    def __init_subclass__(
        cls, kind: str | None = None, title: str = "", rank: int = 1000, log_density: str = ""
    ) -> None:
        """Register a member by its kind, with what tables say of it."""
        super().__init_subclass__(kind)
        cls.title = title or (kind or "").replace("_", " ").title()
        cls.rank, cls.log_density = rank, log_density

    def build(self, encoder: nn.Module, num_classes: int, example: Tensor | None = None) -> Method:
        """An untrained method around `encoder`; `example` is a batch to measure widths with."""
        return self.method(encoder, num_classes, self, example)

    def needs(self) -> Needs:
        """What it needs beyond a plain classifier."""
        return Needs()

    def ensemble(self) -> tuple[MethodConfig, ...]:
        """The members that are trained as runs of their own, in place of this method's stages."""
        return ()
