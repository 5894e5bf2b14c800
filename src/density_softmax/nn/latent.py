"""A narrow, standardised space between an encoder and densities."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.nn.densities.base import mean_and_variance
from density_softmax.nn.precision import full_precision
from density_softmax.stages import Values
from density_softmax.types import Batch

__all__ = ["Latent"]


# The latents' standard deviation at the start. A sample t deviations out in every direction has
# r² = H t² σ², and NatPN's evidence exp(½ H log 2 − ½ r²) is above 1 while t σ < √log 2 ≈ 0.83.
# With σ = 1 samples beyond that begin with no evidence, hence no gradient, and many never return;
# with ¼ this holds to t = 3.3.
INITIAL_SCALE = 0.25


@final
class Latent(nn.Module):
    """u = BatchNorm(W z), in float32: every direction begins with mean 0 and deviation ¼.

    W has no bias, which the batch norm would remove.
    """

    def __init__(self, num_features: int, num_latent: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_latent, bias=False)
        self.norm = nn.BatchNorm1d(num_latent)
        nn.init.constant_(self.norm.weight, INITIAL_SCALE)

    def forward(self, z: Tensor) -> Tensor:
        """The latent vectors of a batch of features, (batch, latent)."""
        h = self.linear(z)
        with full_precision(h):
            return self._normalized(h.float())

    def _normalized(self, h: Tensor) -> Tensor:
        if not self.training or len(h) > 1:
            return self.norm(h)
        # A last batch of one sample has no variance: it is seen as in evaluation.
        norm = self.norm
        return F.batch_norm(
            h, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
        )

    def moments(self, batch: Batch) -> Values:
        """What a batch of features adds to the statistics of W z."""
        h = self.linear(batch.x).double()
        return {"count": h.new_tensor(len(h)), "sum": h.sum(0), "squares": h.square().sum(0)}

    def set_moments(self, total: Values) -> None:
        """Let evaluation mode standardise by the moments of a whole split."""
        mean, variance = mean_and_variance(total["count"], total["sum"], total["squares"])
        for buffer, value in ((self.norm.running_mean, mean), (self.norm.running_var, variance)):
            assert buffer is not None  # the norm keeps statistics
            buffer.copy_(value)
