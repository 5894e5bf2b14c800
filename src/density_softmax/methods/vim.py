"""ViM: what of the features lies outside of their principal subspace, as one more logit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from density_softmax.config import at_least
from density_softmax.methods.posthoc import PostHocConfig, Score
from density_softmax.training import Estimate, Values


@final
class ViM(Score):
    """Virtual-logit matching (Wang et al., CVPR 2022): α ‖P(z − o)‖ − log Σ_k exp g(z)_k.

    g(z) = W(z − o), so o = −W⁺ b. P projects on the eigenvectors of Σ (z − o)(z − o)ᵀ over the
    training features that have the smallest eigenvalues; α is the mean of max_k g(z)_k over that
    of ‖P(z − o)‖. The softmax over g(z) and the virtual logit orders inputs in the same way.
    """

    @dataclass(frozen=True)
    class Config(
        PostHocConfig, kind="vim", title="ViM", rank=28, defines=("score",), reads_weights=True
    ):
        """The published rule for the subspace.

        Attributes:
            dim: of the principal subspace; null is 1,000 of more than 1,500 features, 512 of 768
                or more, else half of them.
        """

        dim: int | None = None

        def __post_init__(self) -> None:
            at_least(self, dim=1)

    config: Config
    origin: Tensor
    residual: Tensor
    alpha: Tensor

    def setup(self, example: Tensor | None) -> None:
        """Add origin, projection and α."""
        super().setup(example)
        self.register_buffer("origin", torch.zeros(self.num_features))
        self.register_buffer("residual", torch.eye(self.num_features))
        self.register_buffer("alpha", torch.zeros(()))

    def estimates(self) -> tuple[Estimate, ...]:
        """One pass for the subspace and one for α."""
        return (
            self.features_stage(
                "subspace",
                lambda z, y: {"count": z.new_tensor(len(z)), "sum": z.sum(0), "outer": z.T @ z},
                finish=self._find_subspace,
            ),
            self.features_stage("alpha", self._magnitudes, finish=self._match),
        )

    def score(self, z: Tensor, logits: Tensor) -> Tensor:
        """The virtual logit minus log Σ_k exp g(z)_k."""
        return self.alpha * self._outside(z) - logits.logsumexp(-1)

    def _outside(self, z: Tensor) -> Tensor:
        return ((z - self.origin) @ self.residual).norm(dim=-1)

    def _find_subspace(self, total: Values) -> None:
        head, count, sums = self.head.linear, total["count"], total["sum"]
        if head.bias is not None:
            weight, bias = head.weight.detach().double(), head.bias.detach().double()
            self.origin.copy_(-torch.linalg.pinv(weight) @ bias)
        origin = self.origin.double()
        shift = torch.outer(origin, sums)
        outer = total["outer"] - shift - shift.T + count * torch.outer(origin, origin)
        basis = torch.linalg.eigh(outer).eigenvectors[:, : self.num_features - self._dim()]
        self.residual.copy_(basis @ basis.T)

    def _dim(self) -> int:
        width = self.num_features
        rule = 1000 if width > 1500 else 512 if width >= 768 else width // 2
        return min(self.config.dim or rule, width - 1)

    def _magnitudes(self, z: Tensor, y: Tensor) -> Values:
        z = z.to(self.origin.dtype)
        largest, outside = self.head.raw(z).amax(-1), self._outside(z)
        return {"logit": largest.double().sum(), "outside": outside.double().sum()}

    def _match(self, total: Values) -> None:
        outside = total["outside"]
        ratio = total["logit"] / outside.clamp_min(torch.finfo(torch.float32).tiny)
        # Features that all lie in the subspace say nothing about what is outside of it.
        self.alpha.copy_(torch.where(outside > 0, ratio, 0.0))
