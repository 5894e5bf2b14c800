"""What is measured: pure functions of tensors, computed in float64 on the CPU."""

from density_softmax.metrics import cost, resampling, scoring
from density_softmax.metrics.cost import *  # noqa: F403
from density_softmax.metrics.resampling import *  # noqa: F403
from density_softmax.metrics.scoring import *  # noqa: F403

__all__ = cost.__all__ + resampling.__all__ + scoring.__all__
