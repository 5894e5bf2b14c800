"""MC Dropout: the average over networks that dropout leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.config import ConfigError, at_least
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.layers.variational import add_dropout
from density_softmax.nn.softmax.averaging import average_members, in_chunks, tile
from density_softmax.nn.softmax.head import Head
from density_softmax.training import Descent, Stage, Train, Values
from density_softmax.types import Batch, Prediction

__all__ = ["MCDropout"]


@final
class MCDropout(Method):
    """MC Dropout (Gal & Ghahramani 2016): 1/S Σ_s softmax(g(f(x; b_s))), b_s fresh dropout masks.

    The masks are samples of an approximate posterior, so dropout stays on in prediction. Every
    block of the encoder drops single values behind its first weight layer; an encoder without
    blocks drops behind each of its weight layers. Dropout layers that it brought stay as they
    are, off in prediction.
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="mc_dropout"):
        """Rate and number of samples are those of uncertainty-baselines on CIFAR.

        Attributes:
            rate: share of the values that are set to zero.
            num_samples: S, how many masks a prediction averages over.
            chunk: how many of them share a pass, in a batch so many times as large; 0 = all.
            descent: training of the network, with one mask per sample and step.
        """

        rate: float = 0.1
        num_samples: int = 30
        chunk: int = 0
        descent: Descent = Descent(epochs=100)

        def __post_init__(self) -> None:
            """Reject what is no rate and no count."""
            if not 0 <= self.rate < 1:
                raise ConfigError(f"rate={self.rate}: choose 0 or more and less than 1")
            at_least(self, num_samples=1, chunk=0)

        def build(
            self, encoder: nn.Module, num_classes: int, example: Tensor | None = None
        ) -> MCDropout:
            """An untrained classifier around `encoder`, which gets dropout layers."""
            return MCDropout(encoder, num_classes, self, example)

    config: Config
    draws_samples = True

    def __init__(
        self,
        encoder: nn.Module,
        num_classes: int,
        config: Config | None = None,
        example: Tensor | None = None,
    ) -> None:
        config = config or MCDropout.Config()
        super().__init__(encoder, num_classes, config, example)
        add_dropout(encoder, config.rate)
        self.head = Head(self.num_features, num_classes)

    def stages(self) -> tuple[Stage, ...]:
        """One: the whole network on cross entropy, with dropout."""
        descent = Train(
            "train",
            loss=lambda batch: self._nll(batch).mean(),
            parameters=list(self.parameters()),
            descent=self.config.descent,
            monitor=self._monitor,
        )
        return (descent,)

    def forward(self, x: Tensor) -> Prediction:
        """1/S Σ_s softmax(g(f(x; b_s))), and what the masks disagree about."""
        return average_members(self.sample_logits(x))

    def sample_logits(self, x: Tensor) -> Tensor:
        """g(f(x; b_s)) for S masks, (samples, batch, classes)."""

        def sample(num_samples: int) -> Tensor:
            # Each copy of the batch meets masks of its own.
            logits = self.head(self.features(tile(x, num_samples)))
            return logits.unflatten(0, (num_samples, x.shape[0]))

        return in_chunks(sample, self.config.num_samples, self.config.chunk)

    def _nll(self, batch: Batch) -> Tensor:
        """−log softmax(g(f(x; b)))_y under one mask per sample."""
        return F.cross_entropy(self.head(self.features(batch.x)), batch.y, reduction="none")

    def _monitor(self, batch: Batch) -> Values:
        # Under one mask: S of them may cost more than the epoch that is monitored.
        return {"nll": self._nll(batch)}
