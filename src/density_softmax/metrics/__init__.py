"""What is measured: pure functions of tensors, computed in float64 on the CPU."""

from density_softmax.metrics.cost import (
    Latency,
    interleaved_latency,
    latency_ratio,
    latency_spread,
    num_parameters,
)
from density_softmax.metrics.detection import aupr, auroc, detection_scores, fpr95
from density_softmax.metrics.scoring import (
    ReliabilityBins,
    accuracy,
    aurc,
    brier,
    confidence,
    ece,
    entropy,
    mece,
    nll,
    reliability_bins,
    risk_coverage,
)
from density_softmax.metrics.significance import paired_t_test

__all__ = [
    "Latency",
    "ReliabilityBins",
    "accuracy",
    "aupr",
    "aurc",
    "auroc",
    "brier",
    "confidence",
    "detection_scores",
    "ece",
    "entropy",
    "fpr95",
    "interleaved_latency",
    "latency_ratio",
    "latency_spread",
    "mece",
    "nll",
    "num_parameters",
    "paired_t_test",
    "reliability_bins",
    "risk_coverage",
]
