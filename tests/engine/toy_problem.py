"""A problem small enough to train in a moment, for tests of the engine."""

from __future__ import annotations

import torch
from torch import nn

from density_softmax.data import ArraySource
from density_softmax.engine import EngineConfig
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.densities import FlowDensity
from density_softmax.training import Adam, Descent, OneCycle

EVERY_EPOCH = EngineConfig(accelerator="cpu", checkpoint_seconds=0.0, predict_batch_size=16)


def descent(epochs: int, **changes) -> Descent:
    settings = {"batch_size": 16, "optimizer": Adam(lr=1e-2), "schedule": OneCycle()} | changes
    return Descent(epochs=epochs, **settings)


def small_method(seed: int = 0, **changes) -> DensitySoftmax:
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 6))
    settings = {
        "representation": descent(3),
        "density": FlowDensity.Config(hidden=(4,), descent=descent(3)),
        "head": descent(2),
    } | changes
    return DensitySoftmax(encoder, 2, DensitySoftmax.Config(**settings))


def points(num_samples: int, seed: int) -> ArraySource:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_samples, 2, generator=generator)
    return ArraySource(x, (x[:, 0] > 0).long())
