"""fDBD: how far a feature is from the decision boundaries, for its distance from the mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from density_softmax.methods.posthoc import PostHocConfig, Score
from density_softmax.training import Estimate, Values


@final
class FDBD(Score):
    """Fast decision-boundary detector (Liu & Qin, ICML 2024).

    With c the predicted class, minus the mean over k ≠ c of
    |g(z)_c − g(z)_k| / ‖w_c − w_k‖ / ‖z − μ‖: the distance to the boundary between c and k, over
    the distance from the mean μ of the training features.
    """

    @dataclass(frozen=True)
    class Config(
        PostHocConfig, kind="fdbd", title="fDBD", rank=28, defines=("score",), reads_weights=True
    ):
        """How the network is trained; nothing else is to choose."""

    config: Config
    mean: Tensor
    inverse_gap: Tensor

    def setup(self, example: Tensor | None) -> None:
        """Add μ and 1 / ‖w_c − w_k‖."""
        super().setup(example)
        self.register_buffer("mean", torch.zeros(self.num_features))
        self.register_buffer("inverse_gap", torch.ones(self.num_classes, self.num_classes))

    def estimates(self) -> tuple[Estimate, ...]:
        """One pass for μ."""
        return (
            self.features_stage(
                "mean",
                lambda z, y: {"count": z.new_tensor(len(z)), "sum": z.sum(0)},
                finish=self._estimate,
            ),
        )

    def score(self, z: Tensor, logits: Tensor) -> Tensor:
        """Minus the mean regularised distance to the boundaries."""
        largest, predicted = logits.max(-1)
        distances = (largest[:, None] - logits) * self.inverse_gap[predicted]
        from_mean = (z - self.mean).norm(dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
        return -distances.sum(-1) / (self.num_classes - 1) / from_mean

    def _estimate(self, total: Values) -> None:
        self.mean.copy_(total["sum"] / total["count"])
        weight = self.head.linear.weight.detach().double()
        gap = torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist")
        # A class has no boundary with itself, nor with one that has the same weights.
        self.inverse_gap.copy_(torch.where(gap > 0, 1 / gap, 0.0))
