"""MC Dropout: the average over networks that dropout leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import final

from torch import Tensor

from density_softmax.config import at_least, shares
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.layers.variational import add_dropout
from density_softmax.nn.softmax.averaging import average_members, in_chunks
from density_softmax.training import Descent, Stage
from density_softmax.types import Needs, Prediction


@final
class MCDropout(Method):
    """MC Dropout (Gal & Ghahramani 2016): 1/S Σ_s softmax(g(f(x; b_s))), b_s fresh dropout masks.

    The masks are samples of an approximate posterior, so dropout stays on in prediction. Every
    block of the encoder drops single values behind its first weight layer; an encoder without
    blocks drops behind each of its weight layers. Dropout layers that it brought stay as they
    are, off in prediction.
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="mc_dropout", title="MC Dropout", rank=40):
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
            shares(self, "rate")
            at_least(self, num_samples=1, chunk=0)

        def needs(self) -> Needs:
            """What it needs beyond a plain classifier."""
            return Needs(self.num_samples, prior="the rate of dropout", inside="dropout")

    config: Config
    draws_samples = True

    def setup(self, example: Tensor | None) -> None:
        """Put dropout into the encoder and a head behind it."""
        add_dropout(self.encoder, self.config.rate)
        super().setup(example)

    def stages(self) -> tuple[Stage, ...]:
        """One: the whole network on cross entropy, with dropout."""
        # Monitored under one mask: S of them may cost more than the epoch.
        return (self.train_stage(self.config.descent),)

    def forward(self, x: Tensor) -> Prediction:
        """1/S Σ_s softmax(g(f(x; b_s))), and what the masks disagree about."""
        return average_members(self.sample_logits(x))

    def sample_logits(self, x: Tensor) -> Tensor:
        """g(f(x; b_s)) for S masks, (samples, batch, classes); each copy of x has its own."""
        sample = partial(self.logits_of_copies, x)
        return in_chunks(sample, self.config.num_samples, self.config.chunk)
