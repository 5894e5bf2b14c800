"""The shape of methods that read a trained network: what they share, in place of a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from density_softmax.errors import UserError
from density_softmax.methods.base import Group, Method, MethodConfig
from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.execution import at_least_float32, full_precision
from density_softmax.nn.softmax.head import Head, entropy_of_logits
from density_softmax.nn.softmax.typicality import in_columns
from density_softmax.nn.taps import LayerReader
from density_softmax.training import Descent, Estimate, Stage, Train, Values
from density_softmax.types import Batch, Prediction


class FeatureMethod(Method, ABC):
    """A method whose forward pass is the encoder and then a function of its features.

    Features that are computed once serve many such methods: z stands in the first columns of what
    `features` returns, and columns that a method did not ask for make no difference to it.
    """

    head: Head

    def forward(self, x: Tensor) -> Prediction:
        """`predict_features` of `features`."""
        return self.predict_features(self.features(x))

    @abstractmethod
    def predict_features(self, features: Tensor) -> Prediction:
        """`forward` from what `features` returned, (batch, width)."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of layers whose pooled outputs are features too; by default none."""
        return ()

    def measure_features(self, example: Tensor | None) -> int:
        """The width of z; what the layers give in the same pass stays in the reader."""
        if self.layers and example is None:
            raise UserError("to read layers, build with example=, a batch of inputs")
        # Of a trained model the names are those that its owner knows.
        inside = "model" if isinstance(self.encoder, Headless) else ""
        self.reader = LayerReader(self.encoder, self.layers, inside)
        with self.reader.reading(self.encoder, example):
            return super().measure_features(example)

    def features(self, x: Tensor) -> Tensor:
        """The last features z and, behind them, what the layers gave."""
        with self.reader.reading(self.encoder, x):
            z = self.encode(x)
        return torch.cat([z, *self.reader.pop()], dim=1) if self.layers else z

    def named_features(self, x: Tensor) -> tuple[Tensor, list[tuple[str, str]]]:
        """`features`, and the layer and the channel of each of their columns."""
        with self.reader.reading(self.encoder, x):
            z = self.encode(x)
        by_layer = self.reader.pop_by_layer() if self.layers else {}
        names = [("features", str(number)) for number in range(z.shape[1])]
        for layer, found in by_layer.items():
            for statistic, h in zip(
                ("mean", "deviation") if found[1:] else ("",), found, strict=True
            ):
                names += [(layer, f"{statistic} {n}".strip()) for n in range(h.shape[1])]
        return torch.cat([z, *(h for found in by_layer.values() for h in found)], dim=1), names

    def encode(self, x: Tensor) -> Tensor:
        """The last features alone."""
        return super().features(x)

    def last(self, features: Tensor) -> Tensor:
        """The last features z, (batch, num_features), from what `features` returned."""
        return in_columns(features, slice(0, self.num_features))

    def nll(self, batch: Batch) -> Tensor:
        """−log softmax(g(f(x)))_y, at temperature 1."""
        logits = self.head.raw(self.encode(batch.x))
        return F.cross_entropy(logits, batch.y, reduction="none")

    def train_on_cross_entropy(self, descent: Descent) -> Train:
        """The training of ERM."""
        settings = {"objective": "cross entropy", "descent": descent}
        return self.train_stage(descent, settings=settings, modules=("encoder", "head"))

    def logits_stage(self, name: str, fit: Callable[[Tensor, Tensor], object]) -> Estimate:
        """A fit to all logits of the held-out slice, (samples, classes), and their labels."""
        return Estimate(
            name,
            statistics=lambda batch: {
                "logits": self.head.raw(self.last(batch.x)),
                "y": batch.y,
            },
            finish=lambda total: fit(total["logits"], total["y"]),
            reduce="concat",
            on="features",
            split="heldout",
        )


class PostHoc(FeatureMethod, ABC):
    """A method that estimates something from features and changes no weight of the network.

    Encoder and head are trained as ERM trains them, so that runs of all such methods share one
    training, or they are trained already (`descent` is None). What a method does not define is the
    network's own: softmax(g(z)) and its entropy.
    """

    config: PostHocConfig

    def stages(self) -> tuple[Stage, ...]:
        """The training of ERM, unless the network is trained; then the estimates."""
        descent = self.config.descent
        trained = () if descent is None else (self.train_on_cross_entropy(descent),)
        return (*trained, *self.estimates())

    def estimates(self) -> tuple[Stage, ...]:
        """What is estimated from features; by default nothing."""
        return ()

    def features_stage(
        self, name: str, statistics: Callable[[Tensor, Tensor], Values], **fields: Any
    ) -> Estimate:
        """An estimate from z in float64 and labels of the training data."""

        def of_batch(batch: Batch) -> Values:
            with full_precision(batch.x):
                return statistics(self.last(batch.x).double(), batch.y)

        return Estimate(name, of_batch, on="features", **fields)


class Score(PostHoc, ABC):
    """Epistemic uncertainty is a score of z; probabilities are the network's own."""

    def predict_features(self, features: Tensor) -> Prediction:
        """The softmax of the network, its entropy, and the score."""
        with full_precision(features):
            z = at_least_float32(self.last(features))
            logits = self.head.raw(z)
            score = self.score(z, logits)
        return Prediction(logits.softmax(-1), entropy_of_logits(logits), score)

    @abstractmethod
    def score(self, z: Tensor, logits: Tensor) -> Tensor:
        """How little is known, higher = less, (batch,), from z and g(z)."""


class Calibrator(PostHoc, ABC):
    """Probabilities are a function of the logits; their entropy stands for both uncertainties."""

    def predict_features(self, features: Tensor) -> Prediction:
        """The calibrated probabilities and their entropy."""
        with full_precision(features):
            logits = self.calibrated(features, self.head.raw(self.last(features)))
        entropy = entropy_of_logits(logits)
        return Prediction(logits.softmax(-1), entropy, entropy)

    @abstractmethod
    def calibrated(self, features: Tensor, logits: Tensor) -> Tensor:
        """Logits of the calibrated probabilities, (batch, classes), from features and g(z)."""


@dataclass(frozen=True)
class PostHocConfig(MethodConfig):
    """How the network is trained.

    Attributes:
        descent: training of encoder and head on cross entropy, or null if they are trained.
    """

    descent: Descent | None = Descent(epochs=100)
    reads_weights: ClassVar[bool] = False  # whether it computes with W of the head W z + b

    def __init_subclass__(
        cls,
        kind: str | None = None,
        group: Group = "posthoc",
        reads_weights: bool = False,
        **fields: Any,
    ) -> None:
        """Register a member, by default among the rivals."""
        super().__init_subclass__(kind, group=group, **fields)
        cls.reads_weights = reads_weights
