"""ERM and what is made of it: the two controls and the ensemble."""

from __future__ import annotations

from density_softmax.methods import (
    ConstantTemperature,
    DeepEnsemble,
    Deterministic,
    MethodConfig,
    TemperatureScaling,
)
from density_softmax.nn.lipschitz.penalty import PenaltyConfig
from density_softmax.training import Descent

__all__ = ["plain_methods"]


def plain_methods(
    train: Descent, penalty: PenaltyConfig, temperature: float | None = None
) -> dict[str, MethodConfig]:
    """One network, trained in one way, as four methods.

    Args:
        train: how the network is trained, by Density-Softmax as well.
        penalty: that of Density-Softmax, for its control.
        temperature: one over the factor of Density-Softmax, for its control; None where
            typical data have the factor 1 and a temperature is fitted on held-out data.
    """
    erm = Deterministic.Config(descent=train)
    return {
        "deterministic": erm,
        "temperature_scaling": TemperatureScaling.Config(descent=train),
        "constant_temperature": ConstantTemperature.Config(penalty, train, temperature),
        # Four members as in the paper's tables and in uncertainty-baselines.
        "deep_ensemble": DeepEnsemble.Config(member=erm, num_members=4),
    }
