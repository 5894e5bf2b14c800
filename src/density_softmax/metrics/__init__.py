"""What is measured: pure functions of tensors, computed in float64 on the CPU."""

from density_softmax.metrics import cost, scoring
from density_softmax.metrics.cost import *  # noqa: F403
from density_softmax.metrics.scoring import *  # noqa: F403

__all__ = cost.__all__ + scoring.__all__
