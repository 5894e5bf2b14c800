"""The energy of reshaped features: clipped, pruned or scaled."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from density_softmax.config import ConfigError
from density_softmax.methods.posthoc import PostHocConfig, Score
from density_softmax.training import Estimate, Values

# Samples whose activations give a percentile.
LIMIT = 10_000


class ShapedEnergy(Score, ABC):
    """−log Σ_k exp g(s(z))_k, with a function s that reshapes the features of an input."""

    @abstractmethod
    def shaped(self, z: Tensor) -> Tensor:
        """s(z), (batch, features)."""

    def score(self, z: Tensor, logits: Tensor) -> Tensor:
        """The energy of s(z)."""
        return -self.head.raw(self.shaped(z)).logsumexp(-1)


def _check_percentile(percentile: float) -> None:
    if not 0 <= percentile < 100:
        raise ConfigError(f"percentile={percentile}: choose one from 0 to below 100")


@final
class ReAct(ShapedEnergy):
    """Rectified activations (Sun et al., NeurIPS 2021): the energy of min(z, c).

    c is a percentile of all activations of training features.
    """

    @dataclass(frozen=True)
    class Config(
        PostHocConfig, kind="react", title="ReAct", rank=27, defines=("score",), reads_weights=True
    ):
        """The setting of OpenOOD (configs/postprocessors/react.yml).

        Attributes:
            percentile: of the activations below c.
        """

        percentile: float = 90.0

        def __post_init__(self) -> None:
            _check_percentile(self.percentile)

    config: Config
    threshold: Tensor

    def setup(self, example: Tensor | None) -> None:
        """Add c, infinite before it is estimated."""
        super().setup(example)
        self.register_buffer("threshold", torch.tensor(math.inf))

    def estimates(self) -> tuple[Estimate, ...]:
        """One pass for c, over at most 10,000 samples."""
        return (
            Estimate(
                "threshold",
                statistics=lambda batch: {"z": self.last(batch.x)},
                finish=self._find_threshold,
                reduce="concat",
                on="features",
                limit=LIMIT,
            ),
        )

    def _find_threshold(self, total: Values) -> None:
        import numpy as np  # torch.quantile takes 16 million values at most

        activations = total["z"].float().cpu().numpy()
        self.threshold.fill_(float(np.percentile(activations, self.config.percentile)))

    def shaped(self, z: Tensor) -> Tensor:
        """min(z, c)."""
        return z.minimum(self.threshold)


@final
class ASH(ShapedEnergy):
    """Activation shaping, ASH-S (Djurisic et al., ICLR 2023): the energy of exp(r) · top(z).

    top(z) keeps the largest activations of an input and sets the others to 0; r is the sum of all
    its activations over that of those kept. Activations are those behind a ReLU: negative ones
    count as 0 in both sums.
    """

    @dataclass(frozen=True)
    class Config(
        PostHocConfig, kind="ash", title="ASH-S", rank=27, defines=("score",), reads_weights=True
    ):
        """The authors' setting for CIFAR-10 (config/cifar10_config.yml of andrijazz/ash).

        OpenOOD's ASH is ASH-B, also at 90.

        Attributes:
            percentile: of the activations that are set to 0.
        """

        percentile: float = 90.0

        def __post_init__(self) -> None:
            _check_percentile(self.percentile)

    config: Config

    def shaped(self, z: Tensor) -> Tensor:
        """exp(r) · top(z)."""
        kept, ratio = _top(z, self.config.percentile)
        return kept * ratio.exp()


@final
class SCALE(ShapedEnergy):
    """SCALE (Xu et al., ICLR 2024): the energy of exp(r) · z, with the r of ASH-S."""

    @dataclass(frozen=True)
    class Config(
        PostHocConfig, kind="scale", title="SCALE", rank=27, defines=("score",), reads_weights=True
    ):
        """The setting of the authors and of OpenOOD (configs/postprocessors/scale.yml of both).

        Attributes:
            percentile: of the activations that are left out of the smaller sum.
        """

        percentile: float = 85.0

        def __post_init__(self) -> None:
            _check_percentile(self.percentile)

    config: Config

    def shaped(self, z: Tensor) -> Tensor:
        """exp(r) · z."""
        _, ratio = _top(z, self.config.percentile)
        return z * ratio.exp()


def _top(z: Tensor, percentile: float) -> tuple[Tensor, Tensor]:
    """The largest activations of each input, zeros elsewhere, and r, (batch, 1)."""
    num_kept = max(1, z.shape[1] - round(z.shape[1] * percentile / 100))
    smallest = z.topk(num_kept, dim=-1).values[:, -1:]
    kept = z.where(z >= smallest, 0.0)
    total, of_kept = (part.clamp_min(0).sum(-1, keepdim=True) for part in (z, kept))
    # At least 1 where there are positive activations; their number bounds it.
    return kept, total / of_kept.clamp_min(torch.finfo(torch.float32).tiny)
