"""Scores of the logits alone: nothing is estimated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from density_softmax.config import ConfigError, at_least
from density_softmax.methods.posthoc import PostHocConfig, Score


@final
class MaxSoftmax(Score):
    """Maximum softmax probability (Hendrycks & Gimpel, ICLR 2017): 1 − max_k softmax(g(z))_k."""

    @dataclass(frozen=True)
    class Config(
        PostHocConfig,
        kind="max_softmax",
        title="Max softmax",
        rank=26,
        defines=("score",),
    ):
        """How the network is trained."""

    config: Config

    def score(self, z: Tensor, logits: Tensor) -> Tensor:
        """1 − max_k p_k."""
        return _complement_of_largest(logits.softmax(-1))


@final
class MaxLogit(Score):
    """Maximum logit (Hendrycks et al., ICML 2022): −max_k g(z)_k."""

    @dataclass(frozen=True)
    class Config(PostHocConfig, kind="max_logit", title="Max logit", rank=26, defines=("score",)):
        """How the network is trained."""

    config: Config

    def score(self, z: Tensor, logits: Tensor) -> Tensor:
        """−max_k g(z)_k."""
        return -logits.amax(-1)


@final
class Energy(Score):
    """Energy (Liu et al., NeurIPS 2020): −log Σ_k exp g(z)_k."""

    @dataclass(frozen=True)
    class Config(PostHocConfig, kind="energy", title="Energy", rank=26, defines=("score",)):
        """How the network is trained."""

    config: Config

    def score(self, z: Tensor, logits: Tensor) -> Tensor:
        """−log Σ_k exp g(z)_k."""
        return -logits.logsumexp(-1)


@final
class GEN(Score):
    """Generalised entropy (Liu et al., CVPR 2023): Σ_k p_k^γ (1 − p_k)^γ of the M largest p_k."""

    @dataclass(frozen=True)
    class Config(PostHocConfig, kind="gen", title="GEN", rank=26, defines=("score",)):
        """The published settings.

        Attributes:
            gamma: γ.
            num_classes: M, the most classes that are counted.
        """

        gamma: float = 0.1
        num_classes: int = 100

        def __post_init__(self) -> None:
            at_least(self, num_classes=1)
            if not 0 < self.gamma < 1:
                raise ConfigError(f"gamma={self.gamma}: choose one between 0 and 1")

    config: Config

    def score(self, z: Tensor, logits: Tensor) -> Tensor:
        """Σ_k p_k^γ (1 − p_k)^γ."""
        probs = logits.softmax(-1)
        largest = probs.topk(min(self.config.num_classes, self.num_classes), dim=-1).values
        first, others = largest[:, :1], largest[:, 1:]
        counted = others * (1 - others)
        of_first = first[:, 0] * _complement_of_largest(probs)
        gamma = self.config.gamma
        return of_first.pow(gamma) + counted.pow(gamma).sum(-1)


def _complement_of_largest(probs: Tensor) -> Tensor:
    """1 − max_k p_k as the sum of the others: exact where float32 rounds max_k p_k to 1."""
    largest = probs.argmax(-1, keepdim=True)
    return probs.scatter(-1, largest, 0.0).sum(-1)
