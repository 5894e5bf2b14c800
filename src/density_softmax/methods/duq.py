"""DUQ: radial basis functions around class centroids, on features that keep their distances."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from density_softmax.config import ConfigError
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.layers.centroids import CentroidKernels, KernelPenalty
from density_softmax.nn.lipschitz.penalty import PenaltyOptions
from density_softmax.training import Descent, Estimate, Stage, Values
from density_softmax.types import Batch, Prediction


@final
class DUQ(Method):
    """Deterministic Uncertainty Quantification (van Amersfoort, Smith, Teh & Gal, ICML 2020).

    K_c = exp(−‖W_c z − e_c‖² / (2 n σ²)), one kernel per class, trained on the binary cross
    entropies of all kernels + λ (‖∇ₓ Σ_c K_c‖ − 1)². The penalty is the authors' code's; their
    paper prints ‖·‖². The centroids e_c follow the features of their class after each step.

    p_c = (K_c + ε) / Σ_k (K_k + ε): normalised kernels, and uniform where all of them vanish.
    Aleatoric is their entropy. Epistemic is −log max_c K_c, the squared distance to the nearest
    centroid in length scales: ordered like 1 − max_c K_c, and still so where that is rounded to 1.
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="duq", title="DUQ", rank=120):
        """The kernels and their training; defaults are those of the authors' CIFAR-10 code.

        Attributes:
            length_scale: σ.
            momentum: γ, how slowly the centroids move.
            centroid_size: n; null takes as many as there are features. All matrices W_c have
                classes · n · features weights together.
            penalty: λ and its options.
            floor: ε. A class whose kernel is smaller has no say.
            descent: training of everything at once.
        """

        length_scale: float = 0.1
        momentum: float = 0.999
        centroid_size: int | None = None
        penalty: PenaltyOptions = PenaltyOptions(weight=0.5)
        floor: float = 1e-7
        descent: Descent = Descent(epochs=100)

        def __post_init__(self) -> None:
            if self.length_scale <= 0:
                raise ConfigError(f"length_scale={self.length_scale}: choose more than 0")
            for name in ("momentum", "floor"):
                if not 0 < getattr(self, name) < 1:
                    raise ConfigError(f"{name}={getattr(self, name)}: choose between 0 and 1")
            if self.centroid_size is not None and self.centroid_size < 1:
                raise ConfigError(f"centroid_size={self.centroid_size}: choose 1 or more, or null")

    config: Config

    def setup(self, example: Tensor | None) -> None:
        """Add the kernels and the penalty."""
        config = self.config
        self.kernels = CentroidKernels(
            self.num_features,
            self.num_classes,
            config.centroid_size or self.num_features,
            config.length_scale,
            config.momentum,
            count=config.descent.batch_size / self.num_classes,
        )
        self.penalty = KernelPenalty(config.penalty)

    def stages(self) -> tuple[Stage, ...]:
        """One: the network and all W_c on the loss, the centroids after each step."""
        centroids = Estimate("centroids", statistics=self._sums, finish=self._move)
        train = self.train_stage(self.config.descent, self.loss, after_step=centroids)
        return (replace(train, monitor=self._monitor),)

    def forward(self, x: Tensor) -> Prediction:
        """Normalised kernels, their entropy, and the distance to the nearest centroid."""
        log_kernels = self.log_kernels(x)
        probs = self.normalized(log_kernels)
        aleatoric = -(probs * probs.log()).sum(-1)
        return Prediction(probs, aleatoric, -log_kernels.amax(-1))

    def log_kernels(self, x: Tensor) -> Tensor:
        """log K_c of every class, (batch, classes)."""
        log_kernels: Tensor = self.kernels(self.features(x))
        return log_kernels

    def normalized(self, log_kernels: Tensor) -> Tensor:
        """p_c = (K_c + ε) / Σ_k (K_k + ε)."""
        floored = log_kernels.exp() + self.config.floor
        return floored / floored.sum(-1, keepdim=True)

    def loss(self, batch: Batch) -> Tensor:
        """Mean binary cross entropy of all kernels + λ E(‖∇ₓ Σ_c K_c‖ − 1)²."""
        log_kernels, penalty = self.penalty(self.log_kernels, batch.x)
        return self._bce(log_kernels, batch.y).mean() + penalty

    def _bce(self, log_kernels: Tensor, y: Tensor) -> Tensor:
        """−[t log K + (1 − t) log(1 − K)], t = 1 for the true class; mean over classes."""
        # log(1 − K) has no value at K = 1.
        others = (-log_kernels.clamp_max(-torch.finfo(torch.float32).eps).expm1()).log()
        true = F.one_hot(y, self.num_classes).bool()
        return -torch.where(true, log_kernels, others).mean(-1)

    def _monitor(self, batch: Batch) -> Values:
        log_kernels = self.log_kernels(batch.x)
        nll = F.nll_loss(self.normalized(log_kernels).log(), batch.y, reduction="none")
        return {"nll": nll, "bce": self._bce(log_kernels, batch.y)}

    def _sums(self, batch: Batch) -> Values:
        return self.kernels.sums(self.features(batch.x), batch.y)

    def _move(self, total: Values) -> None:
        self.kernels.move(total)
        counting = self.penalty.after_step()
        if counting is not None:
            counting.finish(total)
